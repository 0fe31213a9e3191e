"""Reverb's package of platform-dependent modules."""
