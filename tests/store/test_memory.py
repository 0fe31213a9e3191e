"""A batch larger than any memory raises an error, and loses no item."""

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.support import raises, wait_until

from engram import Client, Dataset, Pattern, Store, Table, selectors
from engram.errors import OutOfMemoryError

# Cells of 1 MiB: an empty string takes four bytes.
CELLS = {"bytes": np.zeros(2**20, np.uint8), "strings": np.full(2**18, "", object)}
HALF = 2**15
TIMES = 2**11
TEXT = f"column `x` of a batch of {2 * HALF} items needs {2**47} bytes, more than can be allocated"
REMOTE = (
    f"a batch of {2 * HALF} items takes at least {2**47} bytes, but at most {2**32} are allowed; "
    "sample fewer items at once"
)


@pytest.fixture(params=sorted(CELLS))
def store(request, open_store):
    """Two items, of one step and of 2,048 times the same step, each to be sampled 32,768 times."""
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=HALF))
    with store.writer(history=1) as writer:
        writer.append({"x": CELLS[request.param]})
        for times in (1, TIMES):
            writer.create_item("t", trajectory={"x": writer.history["x"][[0] * times]})
    return store


def text(store):
    return REMOTE if isinstance(store, Client) else TEXT


def test_a_padded_batch_of_terabytes_is_rejected(store):
    with raises(OutOfMemoryError, text(store)):
        store.sample("t", 2 * HALF, pad=True, timeout=10)
    info = store.info()["t"]
    assert (info.size, info.samples, info.hidden_items) == (2, 0, 0)
    assert store.sample("t", 2, timeout=10).data["x"].shape[:2] == (2, 1)


def test_a_prefetched_batch_of_terabytes_is_rejected(store):
    with raises(OutOfMemoryError, text(store)):
        next(iter(Dataset(store, "t", 2 * HALF, pad=True)))

    def has_all_items():
        info = store.info()["t"]
        return (info.size, info.samples, info.hidden_items) == (2, 0, 0)

    wait_until(has_all_items)  # a busy server may need longer than the iteration waits for it


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory use of a process, as Linux reports it")
def test_memory_of_a_dropped_table_returns_to_the_system():
    def lazily_freed_bytes():
        rollup = Path("/proc/self/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("LazyFree")) * 1024

    with Store([Table("t")]) as store:
        with store.batched_writer(64, [Pattern("t", num_steps=1)]) as writer:
            noise = np.random.default_rng(0).integers(0, 256, (64, 10_000), np.uint8)
            for _ in range(300):
                writer.append_batch({"x": noise})
        bytes_before = lazily_freed_bytes()
        store.drop_table("t")
        # 190 MB; within half a minute, and some more for a slow machine.
        wait_until(lambda: lazily_freed_bytes() > bytes_before + 150e6, seconds=90)
