"""Histograms over shards: as a histogram of all items together."""

import numpy as np

from engram import Table
from engram.peek import Histogram
from engram.sharded.looking import merge_histograms

MAX = np.finfo(np.float64).max
EPSILON = np.finfo(np.float64).eps


def insert(shards, priorities):
    for shard, values in zip(shards, priorities, strict=True):
        for priority in values:
            shard.insert({"x": 1}, {"t": priority})


def test_almost_equal_priorities_have_bins(connect):
    client, shards = connect([Table("t")], shards=2)
    insert(shards, [[1.0, 1.0 + EPSILON], [1.0, 1.0 + 2 * EPSILON]])
    histogram = client.histogram("t")
    assert (histogram.edges[0], histogram.edges[-1]) == (1.0, 1.0 + 2 * EPSILON)
    assert (np.diff(histogram.edges) >= 0).all()
    assert (histogram.counts.sum(), len(histogram.counts), histogram.table_size) == (4, 32, 4)


def test_extreme_priorities_have_bins(connect):
    client, shards = connect([Table("t")], shards=2)
    insert(shards, [[-MAX, MAX], [0.0, 1.0]])
    histogram = client.histogram("t", bins=3)
    assert histogram.counts.tolist() == [1, 2, 1]
    assert (histogram.edges[0], histogram.edges[-1]) == (-MAX, MAX)


def test_a_shard_with_infinite_priorities_only_does_not_widen_the_bins(connect):
    client, shards = connect([Table("t")], shards=2)
    insert(shards, [[100.0, 200.0], [np.inf, np.inf, -np.inf]])
    histogram = client.histogram("t", bins=2)
    assert histogram.edges.tolist() == [100.0, 150.0, 200.0]
    assert (histogram.counts.tolist(), histogram.below, histogram.above) == ([1, 1], 1, 2)
    assert (histogram.table_size, histogram.is_approximate) == (5, False)


def test_a_shard_that_counts_some_of_its_items_weighs_as_much_as_its_items():
    def shard(counts, table_size):
        edges = np.array([0.0, 1.0, 2.0])
        return Histogram(counts=np.array(counts), edges=edges, below=0, above=counts[1], table_size=table_size)

    merged = merge_histograms([shard([100_000, 0], 1_000_000), shard([0, 25_000], 50_000)], 2)
    assert (merged.counts.tolist(), merged.above) == ([100_000, 2_500], 2_500)
    assert (merged.table_size, merged.is_approximate) == (1_050_000, True)
