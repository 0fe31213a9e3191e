"""Compares a store with the known content of a dm-reverb checkpoint."""

import numpy as np

from engram import rate_limiters


def column(entry):
    if entry["dtype"] == "string":
        return np.array([text.encode() for text in entry["data"]], object).reshape(entry["shape"])
    return np.array(entry["data"], entry["dtype"]).reshape(entry["shape"])


def by_key(store, table, wanted):
    """Metadata and data of every item of a table, by key."""
    found = {}
    store.set_rate_limiter(table, rate_limiters.MinSize(1))
    while len(found) < wanted:
        batch = store.sample(table, 1, timeout=10)
        key = int(batch.info.key[0])
        found.setdefault(key, (batch.info, [leaf[0] for leaf in batch.data]))
        if len(found) < wanted and not store.info()[table].max_times_sampled:
            continue
        store.delete(table, [key])
    return found


def check(store, expected):
    infos = store.info()
    assert sorted(infos) == sorted(expected)
    for table, entry in expected.items():
        info = infos[table]
        assert [info.inserts, info.samples, info.deletes] == entry["counts"]
        assert (info.size, info.num_unique_samples) == (len(entry["items"]), entry["unique"])
        found = by_key(store, table, len(entry["items"]))
        assert sorted(found) == sorted(item["key"] & (2**63 - 1) for item in entry["items"])
        for item in entry["items"]:
            info_of_item, columns = found[item["key"] & (2**63 - 1)]
            assert info_of_item.priority[0] == item["priority"]
            assert info_of_item.times_sampled[0] > item["times_sampled"]
            for got, wanted in zip(columns, map(column, item["columns"]), strict=True):
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
                assert np.array_equal(got, wanted)
