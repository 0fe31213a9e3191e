"""Tables and items for the tests of datasets."""

import numpy as np

from engram import Table, selectors


def queue(**options):
    """Returns a table `t` whose items are sampled once each, in order."""
    return Table("t", sampler=selectors.Fifo(), max_times_sampled=1, **options)


def fill(store, lengths, first=0, timeout=None):
    """Inserts one item per length, with that many steps; all steps are numbered in sequence, from `first` on.

    The priority of an item is its length.
    """
    for length in lengths:
        steps = np.arange(first, first + length)
        item = {"x": steps, "y": [np.float32(steps)[:, None]]}
        store._native.insert(item, [("t", float(length))], timeout, True)  # as below
        first += length


def insert(store, *items, time_axis=True):
    """Inserts items with priority 1."""
    for item in items:
        store._native.insert(item, [("t", 1.0)], None, time_axis)  # `insert` refuses lists that may be steps
