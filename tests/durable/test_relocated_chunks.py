"""Large chunks: as they were written, and those that a checkpoint has moved from a sparse log to one of its own."""

import subprocess
import sys

import numpy as np
import pytest
import records
from records import flip

from engram import Store, Table

COUNT, KEPT = 500, range(300, 500)
LARGE = 20_000
"""Bytes that nothing compresses: threads of their own check such chunks."""


def content(value):
    return np.random.default_rng(value).integers(0, 256, LARGE, np.uint8)


@pytest.fixture
def moved(tmp_path):
    """A store whose first log is sparse, so that its third has copies of what is in use."""
    with Store.open(tmp_path, [Table("t", max_size=1_000)]) as store:
        keys = [store.insert({"n": np.int64(value), "x": content(value)}, {"t": 1.0}) for value in range(COUNT)]
        assert store.delete("t", keys[: KEPT.start]) == KEPT.start
        assert store.checkpoint().bytes > len(KEPT) * LARGE
    return tmp_path


def chunks(path):
    return [record for record in records.records(path) if record.kind == "chunk"]


def check(path, notes):
    """Everything is there, twice: as it was opened, and after what that has changed."""
    for found in (notes, 0):
        with Store.open(path) as store:
            assert len(store.notes) == found
            data = store.sample("t", 10_000).data
            assert set(data["n"].tolist()) == set(KEPT)
            assert all((steps == content(value)).all() for value, steps in zip(data["n"], data["x"], strict=True))


def test_what_was_moved_comes_back(moved):
    copies = moved / "log-0000000003"
    assert len(chunks(copies)) == len(KEPT)
    check(moved, 0)


@pytest.mark.parametrize("which", [0, 5, -1])
def test_a_damaged_copy_leaves_what_it_is_a_copy_of(moved, which):
    copies = moved / "log-0000000003"
    flip(copies, chunks(copies)[which].body_offset + LARGE // 2)
    check(moved, 1)


@pytest.mark.parametrize("name", ["log-0000000001", "log-0000000003"])
def test_one_of_the_two_is_enough(moved, name):
    for record in chunks(moved / name)[::7]:
        flip(moved / name, record.body_offset + LARGE // 2)
    with Store.open(moved) as store:
        assert store.info()["t"].size == len(KEPT)


MIB = 1 << 20
SIZES = [9_000, 17_000, 70_000, 262_144, 300_000, MIB - 100, MIB, 2 * MIB, 5 * MIB + 3]
"""Of chunks: too small for threads, several in a block that is read at once, and several blocks."""


RARE = [*120 * [9_000], 17_000]
"""Few that threads are given among many: they must not keep all that is read ahead."""


def noise(number, sizes):
    return np.random.default_rng(number).integers(0, 256, sizes[number % len(sizes)], np.uint8)


@pytest.mark.parametrize("sizes", [5 * SIZES, 5 * SIZES[::2] + 5 * SIZES[::-1], 15 * RARE])
def test_chunks_of_any_size_come_back(tmp_path, sizes):
    with Store.open(tmp_path, [Table.queue("t", max_size=len(sizes))]) as store:
        for number in range(len(sizes)):
            store.insert({"x": noise(number, sizes)}, {"t": 1.0}, time_axis=True)
        store.checkpoint()
    # Where opening waits for itself, this does, too, and can be ended.
    subprocess.run([sys.executable, "-m", "engram.cli", "inspect", tmp_path], check=True, timeout=60)
    with Store.open(tmp_path) as store:
        assert store.notes == ()
        for number in range(len(sizes)):
            found = store.sample("t", 1).data["x"].ravel()
            np.testing.assert_array_equal(found, noise(number, sizes), f"item {number}")
