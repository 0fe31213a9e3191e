"""Reverb's package of the default platform's modules."""
