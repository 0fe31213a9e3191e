"""Items that may be lost because a writer or adder is garbage-collected or left by an exception are logged."""

import gc
import logging

import numpy as np
import pytest
from helpers.episodes import timesteps
from helpers.support import raises

from engram import Pattern, Table
from engram.adders import NStepTransitionAdder, SequenceAdder, StructuredAdder
from engram.errors import ClosedError, ItemError
from engram.gymnasium import Transitions, VectorWriter

ONE_STEP = [Pattern("replay", num_steps=1)]
NO = np.zeros(1, bool)


def by_trajectory_writer(store):
    writer = store.writer()
    writer.append({"x": 1.0})
    writer.create_item("replay", num_steps=1)
    return writer


def by_pattern_writer(store):
    writer = store.pattern_writer(ONE_STEP)
    writer.append({"x": 1.0})
    return writer


def by_batched_writer(store):
    writer = store.batched_writer(1, ONE_STEP)
    writer.append_batch({"x": np.ones(1)})
    return writer


def by_vector_writer(store):
    writer = VectorWriter(store, 1, [Transitions("replay", discount=1.0)], autoreset_mode="NEXT_STEP")
    writer.reset(np.zeros(1))
    writer.step(np.zeros(1), np.zeros(1), np.zeros(1), NO, NO)
    return writer


def by_adder(make, rewards):
    def write(store):
        adder = make(store)
        first, *steps = timesteps(rewards)
        adder.add_first(first)
        for step in steps[:-1]:
            adder.add(0, step)
        return adder

    return write


WRITERS = {
    "TrajectoryWriter": by_trajectory_writer,
    "PatternWriter": by_pattern_writer,
    "BatchedWriter": by_batched_writer,
    "VectorWriter": by_vector_writer,
}
ADDERS = {
    "structured": (lambda store: StructuredAdder(store, ONE_STEP), "PatternWriter"),
    "transition": (lambda store: NStepTransitionAdder(store, 1, 1.0, priority_fns={"replay": 1.0}), "PatternWriter"),
    "sequence": (
        lambda store: SequenceAdder(store, 1, 1, priority_fns={"replay": lambda _: 1.0}, chunk_length=9),
        "TrajectoryWriter",
    ),
}


def lost(kind, items="1 pending item"):
    return f"a {kind} was garbage-collected with {items} of table `replay`, which may be lost; flush or close it first"


@pytest.mark.filterwarnings("ignore:a .* was garbage-collected with:ResourceWarning")
def test_pending_items_of_every_writer_are_logged(open_store, caplog):
    store = open_store(Table("replay"))
    gc.collect()  # what other tests have left
    caplog.clear()
    for kind, write in WRITERS.items():
        write(store).close()
        assert caplog.records == [], kind
        write(store)
        gc.collect()
        (record,) = caplog.records
        assert (record.name, record.levelno, record.message) == ("engram", logging.WARNING, lost(kind))
        caplog.clear()


@pytest.mark.filterwarnings("ignore:a .* was garbage-collected with:ResourceWarning")
def test_pending_items_of_adders_are_logged(open_store, caplog):
    store = open_store(Table("replay"))
    gc.collect()  # what other tests have left
    caplog.clear()
    for name, (make, kind) in ADDERS.items():
        write = by_adder(make, [1.0] * 4)
        with write(store):
            pass
        assert caplog.messages == [], name
        write(store)
        gc.collect()
        (text,) = caplog.messages
        assert text.startswith(f"a {kind} was garbage-collected with "), name
        assert "of table `replay`" in text, name
        caplog.clear()


@pytest.mark.filterwarnings("ignore:a .* was garbage-collected with:ResourceWarning")
def test_items_of_a_writer_that_an_exception_leaves_are_logged_with_their_tables(open_store, caplog):
    store = open_store(Table.queue("replay", max_size=1), Table.queue("other", max_size=1))

    def fail():
        with store.writer(chunk_length=1) as writer:
            for _ in range(3):
                writer.append({"x": 1.0})
                writer.create_item("replay", num_steps=1)
            writer.create_item("other", num_steps=1)
            raise ZeroDivisionError

    gc.collect()
    caplog.clear()
    with pytest.raises(ZeroDivisionError):
        fail()
    gc.collect()
    text = (
        "a TrajectoryWriter was garbage-collected with 2 pending items of tables `other`, `replay`, which may be lost"
    )
    assert caplog.messages == [f"{text}; flush or close it first"]


def test_rejected_items_of_a_writer_that_an_exception_leaves_are_logged(open_store, caplog):
    store = open_store(Table("replay", max_bytes=2000))
    with pytest.raises(ZeroDivisionError), store.pattern_writer(ONE_STEP) as writer:
        writer.append({"x": np.random.default_rng(1).random(1000)})
        1 / 0  # noqa: B018, an error
    (text,) = caplog.messages
    assert text.startswith(
        "a PatternWriter with 1 pending item of table `replay` was left by an exception, and not all of its items were "
        "inserted: an item of 8"
    )
    assert writer.pending_items == 0


def test_all_errors_of_a_writer_that_an_exception_leaves_are_logged(open_store, caplog):
    store = open_store(Table.queue("replay", max_size=1), Table("other"))
    with pytest.raises(ZeroDivisionError), store.pattern_writer(ONE_STEP, chunk_length=1) as writer:
        for _ in range(5):
            writer.append({"x": 1.0})
        store.drop_table("replay")
        1 / 0  # noqa: B018, an error
    assert caplog.messages
    for text in caplog.messages:
        start, reason = text.split(" was left by an exception, and not all of its items were inserted: ")
        assert start.startswith("a PatternWriter")
        assert reason in {"table `replay` was dropped", "no table `replay`; known tables: `other`"}
    assert writer.pending_items == 0


def test_a_closed_store_does_not_log_writers_without_pending_items(open_store, caplog):
    store = open_store(Table("replay"))
    with pytest.raises(ZeroDivisionError), store.pattern_writer(ONE_STEP) as writer:
        writer.append({"x": 1.0})
        writer.flush()
        store.close()
        1 / 0  # noqa: B018, an error
    assert caplog.messages == []


class FailingPriority:
    """A priority function that numbers its errors."""

    def __init__(self):
        self.calls = 0

    def __call__(self, _):
        self.calls += 1
        raise RuntimeError(f"call {self.calls}")


def test_the_error_of_an_adder_states_how_many_items_failed(open_store):
    adder = NStepTransitionAdder(open_store(Table("replay")), 3, 1.0, priority_fns={"replay": FailingPriority()})
    first, *steps = timesteps([1.0] * 5)
    adder.add_first(first)
    for step in steps[:3]:
        adder.add(0, step)
    text = "the transition was added, but an item that ends with it was not created: call 1"
    with raises(ItemError, text):
        adder.add(0, steps[3])
    text = "the transition was added, but 4 items that end with it were not created; the first error: call 2"
    with raises(ItemError, text):
        adder.add(0, steps[4])


def test_the_errors_of_an_adder_that_an_exception_leaves_are_logged(open_store, caplog):
    store, priority = open_store(Table("replay"), Table("other")), FailingPriority()
    adder = NStepTransitionAdder(store, 3, 1.0, priority_fns={"replay": priority, "other": priority})
    first, *steps = timesteps([1.0] * 4)
    with pytest.raises(ZeroDivisionError), adder:
        adder.add_first(first)
        for step in steps[:3]:
            adder.add(0, step)
        1 / 0  # noqa: B018, an error
    text = (
        "a NStepTransitionAdder was left by an exception, and not all of its items were inserted: the transition was "
        "added, but 2 items that end with it were not created; the first error: call 1"
    )
    assert caplog.messages == [text]
    with raises(ClosedError, "the adder is closed"):
        adder.add_first(first)
