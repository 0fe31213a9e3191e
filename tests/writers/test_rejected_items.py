"""Items that tables reject: all others are inserted, and each error is raised, before a later call does anything."""

import re
import time
from contextlib import suppress

import numpy as np
import pytest
from helpers.support import raises

from engram import Pattern, Store, Table, patterns
from engram.errors import BackpressureError, EngramError, PriorityError, UnknownTableError, UnsatisfiableError

TOO_LARGE = (
    r"an item of \d+ bytes \(including its chunks\) never fits into table `t`, whose max_bytes is 60000; insert "
    r"smaller items, lower the writer's `chunk_length` or use a larger max_bytes"
)
NAN = (
    "the TD errors in column `td` of the item give an invalid priority: priority for table `{}` is NaN; it must be a "
    "number"
)


@pytest.mark.parametrize(("num_large", "end"), [(1, ""), (3, "; 3 items were rejected, this is the first")])
def test_items_that_are_too_large_do_not_take_others_with_them(open_store, num_large, end):
    store = open_store(Table("t", max_bytes=60_000))
    writer = store.writer(history=64, chunk_length=16, compression="off")
    for step in range(72):
        writer.append({"x": np.full(256, step, np.float32)})  # 16 KiB per chunk
        writer.create_item("t", num_steps=1)
        if 70 - num_large < step <= 70:
            writer.create_item("t", num_steps=64)
    with pytest.raises(UnsatisfiableError, match=f"^{TOO_LARGE}{end}$"):
        writer.flush()
    writer.close()
    info = store.info()["t"]
    assert (info.inserts, writer.pending_items) == (72, 0)


def td_pattern(table):
    return Pattern(table, lambda s: {"td": s["td"][-1:]}, priority=patterns.td_error(lambda s: s["td"]))


@pytest.mark.parametrize("kind", ["pattern", "batched"])
def test_an_error_that_ends_a_call_early_also_reports_lost_items(open_store, kind):
    store = open_store(Table.queue("q", max_size=20))
    td = np.ones(100, np.float32)
    td[[0, 3]] = np.nan
    if kind == "pattern":
        writer = store.pattern_writer([td_pattern("q")], chunk_length=4, timeout=0.0)
    else:
        writer, td = store.batched_writer(1, [td_pattern("q")], chunk_length=4, timeout=0.0), td[None]
    end = rf"; also: {re.escape(NAN.format('q'))}; the first \d+ of 100 steps are stored$"
    with pytest.raises(BackpressureError, match=end):
        writer.append_steps({"td": td})
    store.sample("q", 20)
    writer.append_steps({"td": td[..., -1:]})  # reports nothing again


@pytest.mark.parametrize("kind", ["pattern", "batched"])
def test_an_append_reports_the_items_of_all_tables(open_store, kind):
    store = open_store(Table("a"), Table("b", max_bytes=300))
    both = [td_pattern("a"), Pattern("b", lambda s: {"x": s["x"][-1:]})]
    step = {"td": np.float32(np.nan), "x": np.zeros(100)}
    if kind == "pattern":
        writer = store.pattern_writer(both, chunk_length=1)
        append = writer.append
    else:
        writer = store.batched_writer(1, both, chunk_length=1)
        step = {name: np.asarray(value)[None] for name, value in step.items()}
        append = writer.append_batch
    with raises(PriorityError, NAN.format("a")):
        append(step)
    large = r"an item of \d+ bytes .* never fits into table `b`, whose max_bytes is 300; "
    text = f"^{re.escape(NAN.format('a'))}; also: {large}"
    with pytest.raises(PriorityError, match=text):  # the second step seals the first one's chunk
        append(step)
    if kind == "pattern":
        with pytest.raises(PriorityError, match=text):
            writer.end_episode()


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


def test_a_rejected_item_does_not_hide_that_a_table_was_dropped():
    with Store([Table("small", max_bytes=300), Table("dropped")]) as store, store.writer() as writer:
        writer.append({"x": np.zeros(100)})
        writer.create_item("small", num_steps=1)
        writer.create_item("dropped", num_steps=1)
        store.drop_table("dropped")
        with pytest.raises(UnsatisfiableError, match=r"max_bytes is 300; .*; also: table `dropped` "):
            writer.flush()
