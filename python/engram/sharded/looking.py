"""Peeks and histograms of all shards as one."""

import numpy as np

from engram.peek import Histogram, Peek, PeekedItem, PeekOrder

__all__ = ["merge_histograms", "merge_peeks"]


def merge_peeks(peeks: list[Peek], n: int, order: PeekOrder) -> Peek:
    """Merges what each shard returned for the same arguments. Ages are those in the shard of an item."""
    keys = {
        "newest": lambda item: item.age,
        "oldest": lambda item: -item.age,
        "highest_priority": lambda item: -item.priority,
        "lowest_priority": lambda item: item.priority,
        "most_sampled": lambda item: -item.times_sampled,
    }
    items: list[PeekedItem] = sorted((item for peek in peeks for item in peek.items), key=keys[order])
    return Peek(
        items=items[:n],
        num_compared=sum(peek.num_compared for peek in peeks),
        table_size=sum(peek.table_size for peek in peeks),
    )


def merge_histograms(histograms: list[Histogram], bins: int) -> Histogram:
    """Merges the histograms of shards, each with as many bins as possible.

    An item counts in the bin with the middle of its shard's bin: at most one narrow bin away from its own.
    """
    filled = [histogram for histogram in histograms if histogram.table_size] or histograms[:1]
    low = min(histogram.edges[0] for histogram in filled)
    high = max(histogram.edges[-1] for histogram in filled)
    middles = np.concatenate([(histogram.edges[1:] + histogram.edges[:-1]) / 2 for histogram in filled])
    counts, edges = np.histogram(
        middles, bins=bins, range=(low, high), weights=np.concatenate([histogram.counts for histogram in filled])
    )
    return Histogram(
        counts=counts.astype(np.int64),
        edges=edges,
        below=sum(histogram.below for histogram in filled),
        above=sum(histogram.above for histogram in filled),
        table_size=sum(histogram.table_size for histogram in filled),
    )
