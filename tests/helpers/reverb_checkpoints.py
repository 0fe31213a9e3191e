"""Compares a store with the expected content of a dm-reverb checkpoint."""

import numpy as np

from engram import rate_limiters


def column(encoded):
    """Returns a column of the expected content as an array."""
    if encoded["dtype"] == "string":
        return np.array([text.encode() for text in encoded["data"]], object).reshape(encoded["shape"])
    return np.array(encoded["data"], encoded["dtype"]).reshape(encoded["shape"])


def by_key(store, table, num_items):
    """Samples until every item was drawn; returns info and data of its first draw, by key.

    Deletes the last drawn item, and all of them if the table limits how often an item is sampled.
    """
    samples = {}
    store.set_rate_limiter(table, rate_limiters.MinSize(1))
    while len(samples) < num_items:
        batch = store.sample(table, 1, timeout=10)
        key = int(batch.info.key[0])
        samples.setdefault(key, (batch.info, [leaf[0] for leaf in batch.data]))
        if len(samples) < num_items and not store.info()[table].max_times_sampled:
            continue
        store.delete(table, [key])
    return samples


def check(store, expected):
    """Compares tables and items with those expected; a key is the lower 63 bits of Reverb's."""
    infos = store.info()
    assert sorted(infos) == sorted(expected)
    for table, content in expected.items():
        info = infos[table]
        assert [info.inserts, info.samples, info.deletes] == content["counts"]
        assert (info.size, info.num_unique_samples) == (len(content["items"]), content["unique"])
        samples = by_key(store, table, len(content["items"]))
        assert sorted(samples) == sorted(item["key"] & (2**63 - 1) for item in content["items"])
        for item in content["items"]:
            info, columns = samples[item["key"] & (2**63 - 1)]
            assert info.priority[0] == item["priority"]
            assert info.times_sampled[0] > item["times_sampled"]
            for array, expected_array in zip(columns, map(column, item["columns"]), strict=True):
                assert (array.dtype, array.shape) == (expected_array.dtype, expected_array.shape)
                assert np.array_equal(array, expected_array)
