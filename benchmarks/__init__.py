"""Engram measured against its peers, one machine, one run: `python -m benchmarks --help`."""
