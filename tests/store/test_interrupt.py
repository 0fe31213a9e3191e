"""Ctrl-C interrupts every blocking call at once, and loses no item."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
from helpers.support import BackgroundCall, fill, sample_x, wait_until

from engram import Dataset, Pattern, Table


def waiting_samples(store):
    return lambda: store.info()["q"].waiting_samples > 0


def waiting_inserts(store):
    return lambda: store.info()["q"].waiting_inserts > 0


@contextlib.contextmanager
def interrupted(is_waiting, after=0.03):
    """Sends Ctrl-C `after` seconds after the wait has begun, and expects the block to end within a second."""
    pressed = []

    def press():
        wait_until(is_waiting)
        time.sleep(after)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    caller = BackgroundCall(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        assert time.monotonic() - pressed[0] < 1.0
    finally:
        caller.result()


def test_ctrl_c_interrupts_sample(open_store):
    store = open_store(Table.queue("q", max_size=5))
    fill(store, "q", [1, 2])
    with interrupted(waiting_samples(store)):
        store.sample("q", 3)
    wait_until(lambda: (store.info()["q"].samples, store.info()["q"].waiting_samples) == (0, 0))
    assert sample_x(store, "q", 2) == [1, 2]


def test_ctrl_c_interrupts_insert(open_store):
    store = open_store(Table.queue("q", max_size=1))
    fill(store, "q", [1])
    with interrupted(waiting_inserts(store)):
        store.insert({"x": 2}, {"q": 1.0})
    assert store.info()["q"].waiting_inserts == 0
    assert sample_x(store, "q", 1) == [1]
    fill(store, "q", [3])
    assert sample_x(store, "q", 1) == [3]


@pytest.mark.parametrize("call", ["flush", "end_episode", "close"])
def test_ctrl_c_interrupts_a_writer_that_waits_for_its_items(open_store, call):
    store = open_store(Table.queue("q", max_size=1))
    writer = store.writer()
    for value in (1, 2):
        writer.append({"x": value})
        writer.create_item("q", num_steps=1)
    with interrupted(waiting_inserts(store)):
        getattr(writer, call)()
    assert writer.pending_items > 0
    assert sample_x(store, "q", 1) == [[1]]
    writer.flush(10)
    assert sample_x(store, "q", 1) == [[2]]
    writer.close()


@pytest.mark.parametrize("limit", ["max_in_flight_items", "max_waiting_items"])
@pytest.mark.parametrize("kind", ["trajectory", "pattern", "batched"])
def test_ctrl_c_interrupts_append_at_the_limit(open_store, kind, limit):
    store = open_store(Table.queue("q", max_size=1))
    patterns = [Pattern("q", num_steps=1)]
    if kind == "trajectory":
        writer = store.writer(chunk_length=1, **{limit: 1})

        def append(value):
            writer.append({"x": value})
            writer.create_item("q", num_steps=1)

    elif kind == "pattern":
        writer = store.pattern_writer(patterns, chunk_length=1, **{limit: 1})

        def append(value):
            writer.append({"x": value})

    else:
        writer = store.batched_writer(1, patterns, chunk_length=1, **{limit: 1})

        def append(value):
            writer.append_batch({"x": np.array([value])})

    written = 0
    with interrupted(waiting_inserts(store), after=0.1):
        while True:
            append(written)
            written += 1
    # Every step whose append returned is in the items, in order.
    reader = BackgroundCall(lambda: [sample_x(store, "q", 1) for _ in range(written)])
    writer.close(10)
    assert reader.result() == [[[value]] for value in range(written)]


def test_ctrl_c_interrupts_a_dataset(open_store):
    store = open_store(Table.queue("q", max_size=5))
    fill(store, "q", [1, 2])
    batches = iter(Dataset(store, "q", 3))
    with interrupted(waiting_samples(store)):
        next(batches)
    assert sample_x(store, "q", 2) == [1, 2]
    assert store.info()["q"].samples == 2


def test_ctrl_c_interrupts_a_for_loop(open_store):
    store = open_store(Table.queue("q", max_size=9))
    fill(store, "q", range(4))
    values = []
    with interrupted(lambda: len(values) == 4 and waiting_samples(store)()):
        for batch in Dataset(store, "q", 2):
            values += batch.data["x"].tolist()
    assert values == [0, 1, 2, 3]
    assert store.info()["q"].size == 0


def test_a_handler_that_raises_nothing_lets_the_call_continue(open_store):
    store = open_store(Table("t"))
    calls = []
    previous = signal.signal(signal.SIGINT, lambda *_: (calls.append(1), fill(store, "t", [7])))
    try:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        assert sample_x(store, "t", 1) == [7]
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [1]


def test_nothing_of_a_step_is_stored_if_inspecting_it_is_interrupted(open_store):
    class InterruptedInspection:
        @property
        def __class__(self):
            raise KeyboardInterrupt

    store = open_store(Table("t"))
    with store.writer() as writer:
        for value in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                writer.append({"x": InterruptedInspection()})
            writer.append({"x": value})
        writer.create_item("t", 1.0, num_steps=2)
    assert store.sample("t", 1).data["x"].tolist() == [[1, 2]]
