"""Tables and items that the tests of datasets share."""

import numpy as np

from engram import Table, selectors


def queue(**options):
    """A table whose items come once, in order."""
    return Table("t", sampler=selectors.Fifo(), max_times_sampled=1, **options)


def fill(store, lengths, first=0):
    """Items of so many steps, which are numbered throughout; their priorities are their lengths."""
    for length in lengths:
        steps = np.arange(first, first + length)
        store.insert({"x": steps, "y": [np.float32(steps)[:, None]]}, {"t": float(length)}, time_axis=True)
        first += length


def insert(store, *items, time_axis=True):
    """Items of priority 1."""
    for item in items:
        store.insert(item, {"t": 1.0}, time_axis=time_axis)
