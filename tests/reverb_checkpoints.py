"""Whether a store has what a checkpoint of dm-reverb is known to hold."""

import numpy as np

from engram import rate_limiters


def column(told):
    if told["dtype"] == "string":
        return np.array([text.encode() for text in told["data"]], object).reshape(told["shape"])
    return np.array(told["data"], told["dtype"]).reshape(told["shape"])


def by_key(store, table, wanted):
    """Every item of a table, by key, one sample each."""
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
    for table, told in expected.items():
        info = infos[table]
        assert [info.inserts, info.samples, info.deletes] == told["counts"]
        assert (info.size, info.num_unique_samples) == (len(told["items"]), told["unique"])
        found = by_key(store, table, len(told["items"]))
        assert sorted(found) == sorted(item["key"] & (2**63 - 1) for item in told["items"])
        for item in told["items"]:
            facts, columns = found[item["key"] & (2**63 - 1)]
            assert facts.priority[0] == item["priority"]
            assert facts.times_sampled[0] > item["times_sampled"]
            for got, wanted in zip(columns, map(column, item["columns"]), strict=True):
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
                assert np.array_equal(got, wanted)
