"""Chunks larger than one message: many at once arrive, and none is confused with another."""

import numpy as np
import pytest
from helpers.store_types import STORE_TYPES
from helpers.support import case, raises, runs_all_tests

from engram import Client, Pattern, Server, Store, Table, selectors
from engram.errors import InvalidArgumentError

PART = 2**18  # bytes of a chunk in one message
SIZES = [PART - 64, PART, PART + 1, 3 * PART + 7]
if runs_all_tests():
    SIZES += [2 * PART - 64, 5 * PART]


CASES = [
    pytest.param(
        door,
        compression,
        kind,
        # Only over the network is a chunk sent in parts, in the same way to each shard.
        marks=[] if door == "remote" or (compression, kind) == ("auto", "batched") else pytest.mark.slow,
    )
    for door in sorted(STORE_TYPES)
    for compression in ("off", "auto")
    for kind in ("trajectory", "pattern", "batched")
]


@pytest.mark.parametrize(("open_store", "compression", "kind"), CASES, indirect=["open_store"])
def test_many_large_chunks_arrive_unchanged(open_store, kind, compression):
    store = open_store(Table("t", sampler=selectors.Fifo(), remover=selectors.Fifo(), max_times_sampled=1))
    rng = np.random.default_rng(0)
    # Half of each chunk is compressible. Chunks of one size differ only in content: a mix-up changes values.
    noise = rng.integers(0, 256, 5 * PART, np.uint8) * (np.arange(5 * PART) % 512 < 256).astype(np.uint8)
    for size in SIZES:
        values = [np.roll(noise, i)[:size] for i in range(12)]
        patterns, options = [Pattern("t", num_steps=1)], {"chunk_length": 1, "compression": compression}
        if kind == "batched":
            with store.batched_writer(2, patterns, **options) as writer:
                for pair in np.array(values).reshape(6, 2, size):
                    writer.append_batch({"x": pair})
        elif kind == "pattern":
            with store.pattern_writer(patterns, **options) as writer:
                for value in values:
                    writer.append({"x": value})
        else:
            with store.writer(**options) as writer:
                for value in values:
                    writer.append({"x": value})
                    writer.create_item("t", num_steps=1)
        batch = store.sample("t", len(values), timeout=30)
        with case(size):
            np.testing.assert_array_equal(batch.data["x"][:, 0], values)


def test_a_server_rejects_an_item_of_too_many_slices():
    table, steps = Table("t"), 250_000
    error = (
        f"the item is too large for a server: it has {steps // 2} slices; at most 120000 are allowed; create smaller "
        "items, or raise the writer's `chunk_length`"
    )
    with Server([table]) as server, Store([table]) as local, Client(server.address) as remote:
        for store in (local, remote):
            with store.writer(history=steps, chunk_length=steps // 4) as writer:
                for value in range(steps):
                    writer.append(np.int32(value))
                writer.create_item("t", trajectory=writer.history[::2])
                if store is remote:
                    with raises(InvalidArgumentError, error):
                        writer.flush(30)
                    writer.create_item("t", num_steps=steps)
                writer.flush(30)
        assert local.sample("t", 1).data.tolist() == [list(range(0, steps, 2))]
        assert remote.sample("t", 1).data.tolist() == [list(range(steps))]


@pytest.mark.slow
def test_an_item_may_use_a_chunk_that_the_server_no_longer_keeps():
    with Server([Table.queue("q", max_size=2)]) as server, Client(server.address) as store:
        value = np.zeros(2**25, np.uint8)
        with store.writer(history=50, chunk_length=1, compression="off") as writer:
            for step in range(45):  # 1.4 GiB; without tables, the server keeps about 1 GiB
                value[0] = step
                writer.append({"x": value})
                writer.create_item("q", num_steps=1)
                writer.flush(30)
                assert store.sample("q", 1, timeout=30).data["x"][0, 0, 0] == step
            writer.create_item("q", trajectory={"x": writer.history["x"][0:1]})
            writer.flush(30)
            assert store.sample("q", 1, timeout=30).data["x"][0, 0, 0] == 0
