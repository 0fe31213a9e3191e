"""Peeks and histograms of all shards as one."""

import numpy as np
import numpy.typing as npt

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

    An item counts in the bin with the middle of its shard's bin: at most one narrow bin away from its own. If a shard
    has counted only some of its items, as large a fraction of the counts of each other shard is used.
    """
    filled = [histogram for histogram in histograms if histogram.counts.any()] or histograms[:1]
    edges = _equal_bins(
        min(histogram.edges[0] for histogram in filled), max(histogram.edges[-1] for histogram in filled), bins
    )
    weights = _weights(histograms)
    counts = np.zeros(bins)
    for histogram, weight in zip(histograms, weights, strict=True):
        # Not half of the sum, which can be infinite.
        middles = histogram.edges[1:] / 2 + histogram.edges[:-1] / 2
        indices = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, bins - 1)
        counts += np.bincount(indices, weight * histogram.counts, bins)
    return Histogram(
        counts=np.rint(counts).astype(np.int64),
        edges=edges,
        below=round(sum(weight * histogram.below for histogram, weight in zip(histograms, weights, strict=True))),
        above=round(sum(weight * histogram.above for histogram, weight in zip(histograms, weights, strict=True))),
        table_size=sum(histogram.table_size for histogram in histograms),
    )


def _equal_bins(low: float, high: float, bins: int) -> npt.NDArray[np.float64]:
    """Returns the edges of bins of equal width, also if the width is infinite, or less than that of a float."""
    part = np.arange(bins + 1) / bins
    return np.maximum.accumulate(np.clip(low * (1 - part) + high * part, low, high))


def _weights(histograms: list[Histogram]) -> list[float]:
    """Returns a factor per shard with which all shards count the same fraction of their items.

    A shard with few items counts all of them, and a shard with many only some.
    """
    fractions = [histogram.num_items / max(histogram.table_size, 1) for histogram in histograms]
    least = min((fraction for fraction in fractions if fraction > 0), default=1)
    return [least / fraction if fraction > 0 else 1.0 for fraction in fractions]
