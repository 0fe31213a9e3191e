"""A call of a writer raises the errors of earlier items before it does anything else."""

import time
from contextlib import suppress

import pytest

from engram import Table
from engram.errors import EngramError, UnknownTableError


def writer_with_rejected_items(open_store):
    """A writer with pending items for a full queue, which was then dropped."""
    store = open_store(Table.queue("full", max_size=1), Table("t", max_size=100))
    store.insert({"x": 0}, {"full": 1.0})
    writer = store.writer(history=4, chunk_length=1)
    for step in range(3):
        writer.append({"x": step})
        writer.create_item("full", num_steps=1)
    writer.append({"x": 3})
    store.drop_table("full")
    return store, writer


def test_an_append_that_raises_for_an_earlier_item_stores_nothing(open_store):
    store, writer = writer_with_rejected_items(open_store)
    step = errors = 0
    deadline = time.monotonic() + 10
    while not errors or step < 5:
        assert time.monotonic() < deadline
        steps_before = writer.episode_steps
        try:
            writer.append({"x": 4 + step})
        except EngramError:
            assert writer.episode_steps == steps_before
            errors += 1
        else:
            step += 1
            time.sleep(0.001)
    assert writer.history["x"][-2:].numpy().tolist() == [2 + step, 3 + step]
    for _ in range(10):  # it may raise the errors of more items
        with suppress(EngramError):
            writer.create_item("t", num_steps=4)
            break
    while writer.pending_items:
        with suppress(EngramError):
            writer.flush()
    assert store.sample("t", 1, timeout=10).data["x"].tolist() == [[step, step + 1, step + 2, step + 3]]


def test_create_item_that_raises_for_an_earlier_item_creates_nothing(open_store):
    store, writer = writer_with_rejected_items(open_store)
    num_created = 0
    for _ in range(50):
        try:
            writer.create_item("t", num_steps=1)
        except EngramError:
            continue
        num_created += 1
    while writer.pending_items:
        with suppress(EngramError):
            writer.flush()
    assert store.info()["t"].size == num_created
    with pytest.raises(UnknownTableError):
        writer.create_item("full", num_steps=1)
