"""The APIs of other replay libraries on Engram's engine, for code that was written for those libraries."""
