"""Log messages of calls that wait long for another thread or process."""

import contextlib
import logging

import numpy as np
import pytest
from helpers.support import BackgroundCall, fill, sample_x, wait_until

from engram import Dataset, Pattern, Table, _engram
from engram.errors import DeadlineExceededError

SAMPLING_WAITS = "`q`: sampling waits: the table is empty (Queue)"
INSERTING_WAITS = "`q`: inserting waits: Queue(1) is full: 1 inserted item is not sampled yet"


@pytest.fixture(autouse=True)
def short_waits_are_long():
    _engram.set_long_wait(0.05)
    yield
    _engram.set_long_wait(10.0)


def insert(store):
    store.insert({"x": 1}, {"q": 1.0})


def insert_batch(store):
    store.insert_batch("q", {"x": np.arange(2)})


def append(store):
    with store.pattern_writer([Pattern("q", num_steps=1)], chunk_length=1, max_waiting_items=1) as writer:
        for value in range(3):
            writer.append({"x": value})


def flush(store):
    with store.pattern_writer([Pattern("q", num_steps=1)]) as writer:
        writer.append({"x": 1})
        writer.flush()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (insert, "`insert` has waited 0 s for a table to accept an item"),
        (insert_batch, "a writer has waited 0 s for tables to accept 2 items"),
        (append, "a writer has waited 0 s for tables to accept 1 item"),
        (flush, "a writer has waited 0 s for tables to accept 1 item"),
    ],
)
def test_a_long_wait_for_a_sample_is_logged_with_the_reason(open_store, caplog, call, text):
    store = open_store(Table.queue("q", max_size=1))
    fill(store, "q", [0])
    caller = BackgroundCall(lambda: call(store))
    wait_until(lambda: f"{text}; {INSERTING_WAITS}" in caplog.messages)
    while caller.is_alive():
        with contextlib.suppress(DeadlineExceededError):
            store.sample("q", 1, timeout=0.01)
    caller.result()


def next_batch(store):
    with Dataset(store, "q", batch_size=1) as batches:
        return next(iter(batches)).data["x"].tolist()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda store: sample_x(store, "q", 1), "`sample` has waited 0 s for 1 item of table `q`"),
        (next_batch, "a dataset of table `q` has waited 0 s for its next batch"),
    ],
)
def test_a_long_wait_for_an_insert_is_logged_with_the_reason(open_store, caplog, call, text):
    store = open_store(Table.queue("q", max_size=1))
    caller = BackgroundCall(lambda: call(store))
    wait_until(lambda: f"{text}; {SAMPLING_WAITS}" in caplog.messages)
    assert {(record.name, record.levelno) for record in caplog.records} == {("engram", logging.WARNING)}
    fill(store, "q", [7])
    assert caller.result() == [7]


def test_the_message_mentions_items_that_writers_have_not_sent(open_store, caplog):
    store = open_store(Table("t"))
    with store.pattern_writer([Pattern("t", num_steps=1)], chunk_length=10) as writer:
        writer.append({"x": 1})
        caller = BackgroundCall(lambda: sample_x(store, "t", 1))
        note = "; writers hold 1 item for this or other tables in unfinished chunks; call `flush` to send it"
        wait_until(lambda: any(text.endswith(note) for text in caplog.messages))
    assert caller.result() == [[1]]


def test_a_wait_is_logged_each_time_it_has_doubled(open_store, caplog):
    store = open_store(Table("t"))
    caller = BackgroundCall(lambda: sample_x(store, "t", 1))
    wait_until(lambda: len(caplog.messages) == 4)
    times = [record.created for record in caplog.records]
    fill(store, "t", [1])
    caller.result()
    gaps = np.diff(times)
    assert all(gaps > [0.04, 0.09, 0.19])


def test_an_exception_of_a_log_handler_ends_the_wait(open_store):
    class Refuses(logging.Filter):
        def filter(self, record):
            raise RuntimeError(record.name)

    store = open_store(Table.queue("q", max_size=1))
    logger = logging.getLogger("engram")
    refuses = Refuses()
    logger.addFilter(refuses)
    try:
        for call in (lambda: store.sample("q", 1), lambda: next_batch(store)):
            with pytest.raises(RuntimeError, match="engram"):
                call()
        fill(store, "q", [0])
        for call in (insert, insert_batch, flush):
            with pytest.raises(RuntimeError, match="engram"):
                call(store)
    finally:
        logger.removeFilter(refuses)
