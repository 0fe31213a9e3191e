"""Measures Engram and its peers on one machine: `python -m benchmarks --help`."""
