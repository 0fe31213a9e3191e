"""Writers whose tables accept no items: they wait, raise errors, and lose nothing."""

import numpy as np
import pytest
from helpers.support import BackgroundCall, raises, wait_until

from engram import Pattern, Table
from engram.errors import BackpressureError, ClosedError, DeadlineExceededError, EngramError

FULL = "`q`: inserting waits: Queue(1) is full: 1 inserted item is not sampled yet"


@pytest.fixture
def store(open_store):
    return open_store(Table.queue("q", max_size=1))


def write(writer, values):
    for value in values:
        writer.append({"x": value})
        writer.create_item("q", num_steps=1)


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("call", ["flush", "end_episode", "close"])
def test_a_late_flush_keeps_the_remaining_items(store, call):
    writer = store.writer()
    write(writer, range(3))
    with raises(DeadlineExceededError, f"2 items are not in their tables after 0.05 s; they stay queued; {FULL}"):
        getattr(writer, call)(0.05)
    assert writer.pending_items == 2
    for value in range(3):
        assert store.sample("q", 1, timeout=5).data["x"].tolist() == [[value]]
    writer.close(5)
    assert writer.pending_items == 0


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize(("timeout", "seconds"), [(0, "0"), (0.05, "0.05")])
def test_append_raises_at_the_limit(store, timeout, seconds):
    writer = store.writer(max_in_flight_items=2, timeout=timeout, chunk_length=1)
    written = 0
    text = (
        "the writer has 2 items in flight (`max_in_flight_items` = 2), and the tables did "
        f"not accept enough of them within {seconds} s (`timeout`); {FULL}"
    )
    with raises(BackpressureError, text):
        while True:
            write(writer, [written])
            written += 1
    for value in range(written):
        if value == written - 1:
            writer.flush(5)
        assert store.sample("q", 1, timeout=5).data["x"].tolist() == [[value]]
    writer.close(5)


def test_large_items_wait_like_small_ones(open_store):
    store = open_store(Table.queue("q", max_size=2))
    writer = store.writer(max_in_flight_items=20, max_waiting_items=None, timeout=0, chunk_length=1, compression="off")
    # No sample is drawn meanwhile: 18 MiB wait.
    write(writer, np.zeros((20, 2**20), np.uint8))
    writer.create_item("q", num_steps=1)
    with pytest.raises(BackpressureError, match=r"^the writer has 2\d items in flight \(`max_in_flight_items` = 20\)"):
        write(writer, np.zeros((20, 2**20), np.uint8))
    reader = BackgroundCall(lambda: [store.sample("q", 1, timeout=5).data["x"].shape for _ in range(21)])
    writer.flush(5)
    assert reader.result() == [(1, 1, 2**20)] * 21
    writer.close(5)


@pytest.mark.parametrize("kind", ["pattern", "batched"])
def test_writers_with_patterns_raise_at_the_limit(store, kind):
    patterns, options = [Pattern("q", num_steps=1)], {"max_in_flight_items": 2, "timeout": 0, "chunk_length": 1}
    if kind == "pattern":
        writer = store.pattern_writer(patterns, **options)
    else:
        writer = store.batched_writer(1, patterns, **options)
    written = 0
    with pytest.raises(BackpressureError, match=r"^the writer has \d items in flight \(`max_in_flight_items` = 2\)"):
        while True:
            if kind == "pattern":
                writer.append({"x": written})
            else:
                writer.append_batch({"x": np.array([written])})
            written += 1
    reader = BackgroundCall(lambda: [store.sample("q", 1, timeout=5).data["x"].item() for _ in range(written)])
    writer.close(5)
    assert reader.result() == list(range(written))


def test_append_waits_at_the_limit(store):
    writer = store.writer(max_in_flight_items=1, chunk_length=1)
    caller = BackgroundCall(lambda: write(writer, range(20)))
    wait_until(lambda: store.info()["q"].waiting_inserts > 0)
    values = [store.sample("q", 1, timeout=5).data["x"].item() for _ in range(18)]
    caller.result()
    reader = BackgroundCall(lambda: [store.sample("q", 1, timeout=5).data["x"].item() for _ in range(2)])
    writer.close(5)
    assert values + reader.result() == list(range(20))


def test_a_writer_cannot_be_used_by_two_threads_at_once(store):
    writer = store.writer()
    write(writer, range(3))
    caller = BackgroundCall(writer.flush)
    wait_until(lambda: store.info()["q"].waiting_inserts > 0)
    calls = (
        lambda: writer.append({"x": 9}),
        lambda: writer.create_item("q", num_steps=1),
        lambda: writer.flush(0),
        lambda: writer.end_episode(0),
        lambda: writer.pending_items,
        lambda: writer.history,
        writer.close,
    )
    for call in calls:
        with raises(EngramError, "this writer is in use by another call; use each writer from one thread only"):
            call()
    assert [store.sample("q", 1, timeout=5).data["x"].item() for _ in range(3)] == [0, 1, 2]
    caller.result()
    write(writer, [3])
    writer.close(5)
    assert store.sample("q", 1, timeout=5).data["x"].item() == 3


@pytest.mark.parametrize("kind", ["pattern", "batched"])
def test_writers_with_patterns_cannot_be_used_by_two_threads_at_once(store, kind):
    pattern = Pattern("q", lambda step: {"x": step["x"][-1:]})
    if kind == "pattern":
        writer = store.pattern_writer([pattern])
        steps = [lambda index=index: writer.append({"x": index}) for index in range(3)]
    else:
        writer = store.batched_writer(1, [pattern])
        steps = [lambda index=index: writer.append_batch({"x": np.array([index])}) for index in range(3)]
    for step in steps:
        step()
    caller = BackgroundCall(writer.flush)
    wait_until(lambda: store.info()["q"].waiting_inserts > 0)
    for call in (steps[0], lambda: writer.flush(0), lambda: writer.pending_items, writer.close):
        with raises(EngramError, "this writer is in use by another call; use each writer from one thread only"):
            call()
    assert [store.sample("q", 1, timeout=5).data["x"].item() for _ in range(3)] == [0, 1, 2]
    caller.result()


def test_a_dropped_table_ends_the_wait(store):
    writer = store.writer()
    write(writer, range(3))
    caller = BackgroundCall(writer.flush)
    wait_until(lambda: store.info()["q"].waiting_inserts > 0)
    store.drop_table("q")
    with raises(ClosedError, "table `q` was dropped"):
        caller.result()


def test_a_block_that_ends_with_an_engram_error_does_not_wait(store):
    with pytest.raises(BackpressureError), store.writer(max_in_flight_items=1, timeout=0, chunk_length=1) as writer:
        write(writer, range(9))
    with pytest.warns(ResourceWarning, match="was garbage-collected with"):
        del writer


def test_a_block_that_ends_with_another_error_flushes(open_store):
    store = open_store(Table("t"))
    with pytest.raises(ZeroDivisionError), store.writer() as writer:
        writer.append({"x": 1})
        writer.create_item("t", num_steps=1)
        raise ZeroDivisionError
    assert store.info()["t"].size == 1
