"""Loops that insert and sample in one thread never wait for themselves, also while they hold what they sampled."""

import importlib

import numpy as np
import pytest
from helpers import lock_step
from helpers.store_types import STORE_TYPES
from helpers.support import BackgroundCall, fill, runs_all_tests, sample_x

from engram import Dataset, Table, selectors

SIZES = range(1, 9) if runs_all_tests() else (1, 2, 8)


def batches(store, table, n):
    return (batch.data["x"].ravel().tolist() for batch in Dataset(store, table, n))


def batches_far_ahead(store, table, n):
    return (batch.data["x"].ravel().tolist() for batch in Dataset(store, table, n, prefetch=50))


def single_items(store, table, n):
    items = iter(Dataset(store, table))
    while True:
        yield [int(next(items).data["x"][0]) for _ in range(n)]


def samples(store, table, n):
    while True:
        yield store.sample(table, n, timeout=lock_step.SECONDS).data["x"].ravel().tolist()


def framework(name, **options):
    def elements(store, table, n):
        module = importlib.import_module(f"engram.data.{name}")
        iterator = iter(module.dataset(store, table, **{"batch_size": n, **options}))
        while True:
            values = []
            while len(values) < n:
                values += np.ravel(np.asarray(next(iterator).data["x"])).tolist()
            yield values

    return elements


READERS = {
    "sample": samples,
    "batches": batches,
    "far_ahead": batches_far_ahead,
    "single": single_items,
    "numpy": framework("numpy"),
    "numpy_single": framework("numpy", batch_size=None),
    "numpy_steps": framework("numpy", steps=True),
    "numpy_single_steps": framework("numpy", steps=True, batch_size=None, prefetch=9),
}
MARKS = {
    "torch": [pytest.mark.frameworks, pytest.mark.torch],
    "jax": [pytest.mark.jax],
    "tensorflow": [pytest.mark.frameworks],
}
ALL = [
    *((name, reader, []) for name, reader in READERS.items()),
    *(
        (f"{name}{ending}", reader, MARKS[name])
        for name in MARKS
        for ending, reader in (
            ("", framework(name)),
            ("_steps", framework(name, steps=True, prefetch=4)),
            ("_single", framework(name, batch_size=None)),
        )
    ),
]


def is_slow(door, name, times):
    """True if a case differs little from others: readers of frameworks, for example, read from those of NumPy."""
    if door == "in_process":
        return False
    is_sharded_again = door == "sharded" and times == 3 and name not in ("sample", "batches")
    return times == 2 or name not in READERS or is_sharded_again


CASES = [
    pytest.param(
        door,
        reader,
        times,
        id=f"{door}-{name}-{times}",
        marks=[*marks, *is_slow(door, name, times) * [pytest.mark.slow]],
    )
    for door in sorted(STORE_TYPES)
    for name, reader, marks in ALL
    for times in (1, 2, 3)
]


@pytest.mark.parametrize(("open_store", "reader", "times"), CASES, indirect=["open_store"])
def test_no_loop_waits_for_itself(open_store, reader, times):
    store = open_store(*(lock_step.table(f"t{size}", size, times) for size in SIZES))
    for size in SIZES:
        name, n = f"t{size}", 1 + size // 2
        iterator = reader(store, name, n)

        def insert(value, name=name):
            store.insert({"x": np.array([value])}, {name: 1.0}, time_axis=True)

        def check(model, name=name):
            info = store.info()[name]
            assert info.size == model.num_items()
            assert store._native.can_insert(name, 1) == model.can_insert()
            if not model.remaining:
                assert not store._native.can_sample(name, 1)

        lock_step.run(lock_step.Model(size, times), insert, iterator.__next__, check, n=n, seed=size)
        iterator.close()


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4])
def test_a_replay_table_accepts_items_while_a_dataset_has_fetched_all(open_store, size, times):
    store = open_store(Table("t", max_size=size, sampler=selectors.Fifo(), max_times_sampled=times))
    fill(store, "t", range(size))
    iterator = iter(Dataset(store, "t", 1, prefetch=99))
    assert next(iterator).data["x"].tolist() == [0]

    def program():
        for value in range(20):
            fill(store, "t", range(value, value + 2 * size))
            next(iterator)

    BackgroundCall(program).result(lock_step.SECONDS)


def test_a_held_batch_is_free_once_the_next_is_requested(open_store):
    store = open_store(Table.queue("q", max_size=4))
    fill(store, "q", range(4))
    iterator = iter(Dataset(store, "q", 2, prefetch=1, hold=True))
    assert next(iterator).data["x"].tolist() == [0, 1]
    assert not store._native.can_insert("q", 1)
    assert next(iterator).data["x"].tolist() == [2, 3]
    fill(store, "q", [4, 5])
    iterator.close()
    assert sample_x(store, "q", 2) == [4, 5]
