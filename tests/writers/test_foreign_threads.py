"""Large arrays are copied without the GIL: other threads can write to them, but not resize them."""

import sys
import threading

import numpy as np
import pytest

from engram import Client, Pattern, Table
from engram.errors import SignatureError

LARGE = 2**25


@pytest.fixture
def long_switch_interval():
    """Makes a thread keep the GIL until it waits or releases it."""
    previous = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(previous)


def by_writer(store):
    writer = store.writer(history=1, chunk_length=1, compression="off")
    return lambda value: writer.append({"x": value})


def by_batched_writer(store):
    writer = store.batched_writer(1, [Pattern("t", num_steps=1)], chunk_length=1, compression="off")
    writer.append_batch({"x": np.ones((1, LARGE), np.uint8)})
    return lambda value: writer.append_batch({"x": value})


def by_insert(store):
    return lambda value: store.insert({"x": value}, {"t": 1.0})


def race(append, value, resized):
    """Resizes `resized` in another thread while `value` is appended.

    Returns "resized", "rejected", or None if the append ended first.
    """
    outcome = None
    go, done = threading.Event(), []

    def resize():
        nonlocal outcome
        go.wait()
        try:
            if not done:
                resized.resize(1, refcheck=False)
                outcome = "resized"
        except ValueError:
            outcome = "rejected"

    other = threading.Thread(target=resize)
    other.start()
    go.set()
    try:
        append(value)
    finally:
        done.append(True)
        other.join()
    return outcome


@pytest.mark.usefixtures("long_switch_interval")
@pytest.mark.filterwarnings("ignore:a BatchedWriter was garbage-collected:ResourceWarning")
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("appender", [by_writer, by_batched_writer, by_insert])
def test_an_array_is_not_resized_while_it_is_copied(open_store, appender, view):
    append = appender(open_store(Table("t", max_size=1)))
    outcomes = set()
    for _ in range(20):  # until the other thread is neither too early nor too late
        value = np.zeros((1, LARGE), np.uint8)
        outcomes.add(race(append, value[:] if view else value, value))
        if "rejected" in outcomes:
            return
    pytest.fail(f"never rejected: {outcomes}")


class ArrayWithHook(np.ndarray):
    """An array whose `base` is Python code. Such code could resize other arrays; here it fails if it runs."""

    @property
    def base(self):
        raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore:a BatchedWriter was garbage-collected:ResourceWarning")
@pytest.mark.parametrize("appender", [by_writer, by_batched_writer, by_insert])
def test_no_python_code_runs_after_an_array_was_inspected(open_store, appender):
    append = appender(open_store(Table("t", max_size=1)))
    append(np.zeros((1, LARGE), np.uint8).view(ArrayWithHook))


@pytest.mark.usefixtures("long_switch_interval")
def test_an_array_that_another_thread_resizes_is_rejected_or_stored_whole(open_store):
    store = open_store(Table("t", max_size=1))
    append = by_insert(store)
    text = "column `x/later` had 9 bytes and has 1 now: another thread resized it"
    for _ in range(20):  # until the other thread is neither too early nor too late
        later = np.arange(9, dtype=np.uint8)
        try:
            outcome = race(append, {"large": np.zeros(LARGE, np.uint8), "later": later}, later)
        except SignatureError as error:
            assert str(error) == text  # noqa: PT017, if it fails, it fails with this text
            return
        assert store.sample("t", 1).data["x"]["later"].tolist() == [list(range(9))]
        if outcome == "rejected":
            assert isinstance(store, Client), "in process, small arrays can be resized"
            return
    pytest.fail("never resized or rejected during a copy")
