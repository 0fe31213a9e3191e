"""Engram under the names of other replay libraries, for code that was written for them."""
