"""Large chunks: as they were written, and after a checkpoint copied them from a sparse log to a new one."""

from functools import cache

import numpy as np
import pytest
from helpers import records
from helpers.records import flip
from helpers.sample_stores import copied

from engram import Store, Table

COUNT, KEPT = 300, range(180, 300)
"""Number of inserted items, and those that are not deleted."""

LARGE = 20_000
"""Incompressible bytes per chunk. Opening verifies chunks of this size in separate threads."""


@cache
def content(value):
    return np.random.default_rng(value).integers(0, 256, LARGE, np.uint8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory of a store whose first log is sparse, so that its third log has copies of the chunks in use."""
    path = tmp_path_factory.mktemp("relocated") / "store"
    with Store.open(path, [Table("t", max_size=1_000)]) as store:
        keys = [store.insert({"n": np.int64(value), "x": content(value)}, {"t": 1.0}) for value in range(COUNT)]
        assert store.delete("t", keys[: KEPT.start]) == KEPT.start
        assert store.checkpoint().bytes > len(KEPT) * LARGE
    return path


@pytest.fixture
def relocated(made, tmp_path):
    """A copy of that directory."""
    return copied(made, tmp_path / "store")


def chunks(path):
    return [record for record in records.records(path) if record.kind == "chunk"]


def check(path, num_notes):
    """Opens the store twice and checks all items each time; only the first time may there be notes."""
    for expected_notes in (num_notes, 0):
        with Store.open(path) as store:
            assert len(store.notes) == expected_notes
            batches = [store.sample("t", 100), *store.scan("t")]
            assert {n for batch in batches[1:] for n in batch.data["n"].tolist()} == set(KEPT)
            for data in (batch.data for batch in batches):
                assert all((steps == content(value)).all() for value, steps in zip(data["n"], data["x"], strict=True))


def test_relocated_chunks_are_read(relocated):
    copies = relocated / "log-0000000003"
    assert len(chunks(copies)) == len(KEPT)
    check(relocated, 0)


@pytest.mark.parametrize("which", [0, 5, -1])
def test_the_original_is_read_in_place_of_a_damaged_copy(relocated, which):
    copies = relocated / "log-0000000003"
    flip(copies, chunks(copies)[which].body_offset + LARGE // 2)
    check(relocated, 1)


# The originals are not read if the copies are intact.
@pytest.mark.parametrize(("name", "num_notes"), [("log-0000000001", 0), ("log-0000000003", 1)])
def test_no_item_is_lost_if_chunks_are_damaged_in_only_one_log(relocated, name, num_notes):
    for record in chunks(relocated / name)[::7]:
        flip(relocated / name, record.body_offset + LARGE // 2)
    check(relocated, num_notes)


MIB = 1 << 20
SIZES = [9_000, 17_000, 70_000, 262_144, 300_000, MIB - 100, MIB, 2 * MIB, 5 * MIB + 3]
"""Sizes of chunks in bytes: too small for threads, several in one block of the file, and several blocks."""

RARE = [*120 * [9_000], 17_000]
"""Few chunks that are checked in threads, among many small ones.

A chunk that waits for its thread keeps a block of the file in memory, and reading stalls while there are too many.
"""


def noise(number, sizes):
    return np.frombuffer(np.random.default_rng(number).bytes(sizes[number % len(sizes)]), np.uint8)


@pytest.mark.parametrize(
    "sizes", [3 * SIZES, pytest.param(3 * SIZES[::2] + 3 * SIZES[::-1], marks=pytest.mark.slow), 15 * RARE]
)
def test_chunks_of_any_size_are_read(tmp_path, spawn, sizes):
    with Store.open(tmp_path, [Table.queue("t", max_size=len(sizes))]) as store:
        for number in range(len(sizes)):
            store.insert({"x": noise(number, sizes)}, {"t": 1.0}, time_axis=True)
        store.checkpoint()
    # A deadlock of opening would also occur here, where a timeout ends it.
    status, _, errors = spawn("inspect", tmp_path).end()
    assert (status, errors) == (0, "")
    with Store.open(tmp_path) as store:
        assert store.notes == ()
        for number in range(len(sizes)):
            stored = store.sample("t", 1).data["x"].ravel()
            np.testing.assert_array_equal(stored, noise(number, sizes), f"item {number}")
