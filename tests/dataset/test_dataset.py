"""Datasets: prefetching, leases, and the end of an iteration."""

import signal
import threading
import time
from collections import Counter, namedtuple

import numpy as np
import pytest
from helpers.support import BackgroundCall, case, fill, raises, sample_x, wait_until

from engram import Batch, Dataset, Sample, Table, rate_limiters, selectors
from engram.errors import (
    ClosedError,
    InvalidArgumentError,
    UnknownTableError,
    UnsatisfiableError,
)


def batches(dataset):
    return [batch.data["x"].tolist() for batch in dataset]


def wait_for_prefetch(store, table, samples):
    """Waits until at least `samples` items were drawn; returns the number."""
    wait_until(lambda: store.info()[table].samples >= samples)
    return store.info()[table].samples


# --- delivery ------------------------------------------------------------------------------------


def test_batches_are_yielded_in_order(open_store):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", range(10))
    assert batches(Dataset(store, "q", 2, max_batches=5)) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert store.info()["q"].size == 0


def test_a_dataset_may_be_iterated_again(open_store):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", range(4))
    dataset = Dataset(store, "q", 1, max_batches=2)
    assert [batches(dataset), batches(dataset)] == [[[0], [1]], [[2], [3]]]


def test_without_a_batch_size_single_samples_are_yielded(open_store):
    store = open_store(Table.queue("q", max_size=10))
    store.insert({"x": np.arange(3), "y": 1}, {"q": 2.0}, time_axis=False)
    store.insert({"x": np.arange(6).reshape(2, 3), "y": np.arange(2)}, {"q": 3.0}, time_axis=True)
    first, second = Dataset(store, "q", max_batches=2)
    assert isinstance(first, Sample)
    assert (first.data["x"].shape, first.data["y"].shape) == ((3,), ())
    assert (second.data["x"].shape, second.data["y"].shape) == ((2, 3), (2,))
    assert [sample.info.priority.tolist() for sample in (first, second)] == [[2.0], [3.0]]
    assert first.info.key.shape == (1,)


def test_prefetch_limits_the_fetched_batches(open_store):
    store = open_store(Table.queue("q", max_size=50))
    fill(store, "q", range(50))
    iterator = iter(Dataset(store, "q", 2, prefetch=3))
    next(iterator)
    # One delivered, three ready, and one that waits for space.
    assert wait_for_prefetch(store, "q", 8) <= 10
    time.sleep(0.1)
    assert store.info()["q"].samples <= 10
    iterator.close()


def test_without_prefetch_a_batch_is_sampled_when_it_is_requested(open_store):
    store = open_store(Table.queue("q", max_size=50))
    fill(store, "q", range(10))
    values = []
    for number, batch in enumerate(Dataset(store, "q", 2, prefetch=0, max_items=9, timeout=60), start=1):
        values += batch.data["x"].ravel().tolist()
        assert store.info()["q"].samples == min(2 * number, 9)
    assert values == list(range(9))


def test_prefetch_can_exceed_the_servers_own_limit(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [7])
    assert batches(Dataset(store, "t", 1, prefetch=3_000, max_batches=4_000)) == [[7]] * 4_000


def test_a_yielded_batch_is_acknowledged(open_store):
    store = open_store(Table.queue("q", max_size=6))
    fill(store, "q", range(6))
    iterator = iter(Dataset(store, "q", 2, prefetch=1))
    for remaining in (4, 2, 0):
        next(iterator)
        assert store.info()["q"].size == remaining
        assert (store._native.can_insert("q", 6 - remaining), store._native.can_insert("q", 7 - remaining)) == (
            True,
            False,
        )
    assert not store._native.can_sample("q", 1)


def test_hold_acknowledges_a_batch_when_the_next_is_requested(open_store):
    store = open_store(Table.queue("q", max_size=6))
    fill(store, "q", range(6))
    iterator = iter(Dataset(store, "q", 2, prefetch=1, hold=True))
    next(iterator)
    assert store.info()["q"].size == 6, "leased items stay until they are acknowledged"
    next(iterator)
    wait_until(lambda: store.info()["q"].size == 4)
    iterator.close()
    assert (store.info()["q"].size, store.info()["q"].samples) == (2, 4)


def test_items_of_different_lengths_are_ragged_or_padded(open_store):
    store = open_store(Table.queue("q", max_size=6))
    for length in (1, 3, 1, 3):
        store.insert({"x": np.arange(length)}, {"q": 1.0}, time_axis=True)
    [ragged] = Dataset(store, "q", 2, max_batches=1)
    assert ragged.row_splits["x"].tolist() == [0, 1, 4]
    [padded] = Dataset(store, "q", 2, max_batches=1, pad=True)
    assert padded.mask["x"].tolist() == [[True, False, False], [True, True, True]]


# --- returned items ---------------------------------------------------------------------------------


def leave_by_break(dataset, fetched):
    for _ in dataset:
        fetched()
        break


def leave_by_error(dataset, fetched):
    with pytest.raises(ZeroDivisionError):
        for _ in dataset:
            fetched()
            raise ZeroDivisionError


def leave_by_close(dataset, fetched):
    iterator = iter(dataset)
    next(iterator)
    fetched()
    dataset.close()
    assert list(iterator) == []


def leave_by_with(dataset, fetched):
    with dataset:
        iterator = iter(dataset)
        next(iterator)
        fetched()
    assert list(iterator) == []


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, leave_by_with])
def test_undelivered_items_regain_their_place_in_the_queue(open_store, leave):
    store = open_store(Table.queue("q", max_size=20))
    fill(store, "q", range(20))
    leave(Dataset(store, "q", 3, prefetch=4), lambda: wait_for_prefetch(store, "q", 15))
    info = store.info()["q"]
    assert (info.size, info.samples, info.hidden_items) == (17, 3, 0)
    assert sample_x(store, "q", 17) == list(range(3, 20))


def test_items_are_returned_if_ctrl_c_strikes_before_delivery(open_store, monkeypatch):
    store = open_store(Table.queue("q", max_size=9))
    fill(store, "q", range(6))
    iterator = iter(Dataset(store, "q", 2))
    assert next(iterator).data["x"].tolist() == [0, 1]

    def raise_sigint(_):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("engram.dataset.Batch", raise_sigint)
        next(iterator)
    assert sample_x(store, "q", 4) == [2, 3, 4, 5]
    assert store.info()["q"].samples == 6


def test_items_are_returned_if_the_dataset_is_closed_before_delivery(open_store, monkeypatch):
    store = open_store(Table.queue("q", max_size=9))
    fill(store, "q", range(6))
    dataset = Dataset(store, "q", 2)
    iterator = iter(dataset)
    assert next(iterator).data["x"].tolist() == [0, 1]

    def close_dataset_first(native):
        BackgroundCall(dataset.close).result()
        return Batch(native)

    with monkeypatch.context() as patched:
        patched.setattr("engram.dataset.Batch", close_dataset_first)
        assert list(iterator) == []
    assert sample_x(store, "q", 4) == [2, 3, 4, 5]
    assert store.info()["q"].samples == 6


class FailingNest(namedtuple("FailingNest", "x")):  # noqa: PYI024, a subclass with its own constructor
    """A namedtuple whose constructor can fail."""

    __slots__ = ()
    fails = False

    def __new__(cls, x):
        if cls.fails:
            raise ZeroDivisionError
        return super().__new__(cls, x)


def test_items_are_returned_if_their_batch_cannot_be_built(open_store, monkeypatch):
    store = open_store(Table.queue("q", max_size=9))
    for value in range(4):
        store.insert(FailingNest(value), {"q": 1.0})
    iterator = iter(Dataset(store, "q", 2))
    assert next(iterator).data.x.tolist() == [0, 1]
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(FailingNest, "fails", True)
        next(iterator)
    assert store.sample("q", 2, timeout=10).data.x.tolist() == [2, 3]


def test_heap_order_is_regained(open_store):
    store = open_store(Table("t", sampler=selectors.MinHeap(), max_times_sampled=1))
    fill(store, "t", [5, 3, 8, 1, 9, 2], priority=float)
    iterator = iter(Dataset(store, "t", 1, prefetch=3))
    assert next(iterator).data["x"].tolist() == [1]
    wait_for_prefetch(store, "t", 4)
    iterator.close()
    assert store.info()["t"].samples == 1
    assert sample_x(store, "t", 5) == [2, 3, 5, 8, 9]


def test_equal_priorities_regain_their_order(open_store):
    store = open_store(Table("t", sampler=selectors.MaxHeap(), max_times_sampled=1))
    fill(store, "t", range(6))
    iterator = iter(Dataset(store, "t", 2, prefetch=1))
    next(iterator)
    wait_for_prefetch(store, "t", 4)
    iterator.close()
    assert sample_x(store, "t", 4) == [2, 3, 4, 5]


def test_times_sampled_of_undelivered_items_are_undone(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo()))
    fill(store, "t", [7])
    iterator = iter(Dataset(store, "t", 1, prefetch=5))
    next(iterator)
    wait_for_prefetch(store, "t", 6)
    iterator.close()
    assert store.info()["t"].samples == 1
    assert store.sample("t", 1).info.times_sampled.tolist() == [2]


def test_deleted_items_are_not_returned(open_store):
    store = open_store(Table.queue("q", max_size=9))
    keys = fill(store, "q", range(6))
    iterator = iter(Dataset(store, "q", 1, prefetch=3))
    next(iterator)
    wait_for_prefetch(store, "q", 4)
    store.delete("q", keys[:2])
    iterator.close()
    assert sample_x(store, "q", 4) == [2, 3, 4, 5]

    fill(store, "q", range(6))
    iterator = iter(Dataset(store, "q", 1, prefetch=3))
    next(iterator)
    store.reset("q")
    iterator.close()
    assert (store.info()["q"].size, store.info()["q"].samples) == (0, 0)


def test_inserts_into_a_queue_wait_while_all_items_are_held(open_store):
    store = open_store(Table.queue("t", max_size=2))
    fill(store, "t", [1, 2])
    iterator = iter(Dataset(store, "t", 2, prefetch=1, hold=True))
    next(iterator)
    assert not store._native.can_insert("t", 1)
    blocked = (
        "`t`: sampling waits: the learner has caught up with the writers, which is as far as Queue allows (2 inserted "
        "x 1 sample per insert - 2 sampled = 0); `t`: inserting waits: the table is full, and readers still hold 2 of "
        "2 items; continue to read from their datasets or close them"
    )
    assert store.info()["t"].blocked == blocked
    caller = BackgroundCall(lambda: fill(store, "t", [3]))
    wait_until(lambda: store.info()["t"].waiting_inserts == 1)
    iterator.close()
    caller.result()
    assert sample_x(store, "t", 1) == [3]


def test_inserts_replace_items_that_a_dataset_has_fetched(open_store):
    store = open_store(Table("t", max_size=2, sampler=selectors.Fifo(), max_times_sampled=1))
    fill(store, "t", [0, 1])
    iterator = iter(Dataset(store, "t", 1, prefetch=9))
    next(iterator)
    fill(store, "t", [2])
    wait_until(lambda: store.info()["t"].hidden_items == 2)
    blocked = (
        "`t`: sampling waits: all 2 items have reached `max_times_sampled`, and datasets, or `sample` calls that "
        "wait for more items, still hold them; insert new "
        "items (if the table is full, continue to read from the datasets first), or close the datasets"
    )
    assert store.info()["t"].blocked == blocked
    fill(store, "t", range(3, 9))
    assert next(iterator).data["x"].tolist() == [1]


# --- end of an iteration ---------------------------------------------------------------------------------


def test_timeout_ends_iteration(open_store):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", range(5))
    start = time.monotonic()
    assert batches(Dataset(store, "q", 2, timeout=0.2)) == [[0, 1], [2, 3]]
    assert 0.2 <= time.monotonic() - start < 10
    assert sample_x(store, "q", 1) == [4]


@pytest.mark.parametrize(
    ("timeout", "prefetch"),
    [
        (0, 1),
        (0, 2),
        (0, 50),
        (0.0001, 1),
        pytest.param(0.0001, 2, marks=pytest.mark.slow),
        pytest.param(0.0001, 50, marks=pytest.mark.slow),
    ],
)
def test_available_items_are_yielded_however_short_the_timeout(open_store, timeout, prefetch):
    store = open_store(
        Table.queue("q", max_size=200), Table("t", rate_limiter=rate_limiters.SampleToInsertRatio(1, 1, 100))
    )
    for table in ("q", "t") * 2:
        store.insert_batch(table, {"x": np.arange(90)})
        before = store.info()[table].samples
        read = batches(Dataset(store, table, 1, prefetch=prefetch, timeout=timeout))
        info = store.info()[table]
        assert len(read) == info.samples - before >= 90
        assert info.sampling_blocked is not None, "the rate limiter allows no more samples"


def test_timeout_zero_yields_full_batches(open_store):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", range(6))
    assert batches(Dataset(store, "q", 4, timeout=0)) == [[0, 1, 2, 3]]
    assert batches(Dataset(store, "q", 4, timeout=0, max_items=2)) == [[4, 5]]
    fill(store, "q", range(6))
    assert batches(Dataset(store, "q", 3, timeout=0, max_batches=1)) == [[0, 1, 2]]
    assert batches(Dataset(store, "q", 4, timeout=0, at_least=1)) == [[3, 4, 5]]


def test_max_batches_fetches_no_more(open_store):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", range(10))
    assert len(batches(Dataset(store, "q", 2, max_batches=2, prefetch=9))) == 2
    assert (store.info()["q"].samples, store.info()["q"].size) == (4, 6)


@pytest.mark.parametrize(("end", "text"), [("close", "the store is closed"), ("drop", "table `q` was dropped")])
def test_a_closed_store_or_dropped_table_ends_iteration(open_store, end, text):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", [1])
    iterator = iter(Dataset(store, "q", 1))
    next(iterator)
    waiting = BackgroundCall(lambda: next(iterator))
    wait_until(lambda: store.info()["q"].waiting_samples > 0)
    store.close() if end == "close" else store.drop_table("q")
    with raises(ClosedError, text):
        waiting.result()


def test_close_from_another_thread_ends_a_waiting_reader(open_store):
    store = open_store(Table.queue("q", max_size=10))
    dataset = Dataset(store, "q", 1)
    waiting = BackgroundCall(lambda: list(dataset))
    wait_until(lambda: store.info()["q"].waiting_samples > 0)
    dataset.close()
    assert waiting.result() == []
    assert store.info()["q"].waiting_samples == 0


def test_close_while_an_iteration_starts_ends_it(open_store):
    store = open_store(Table.queue("q", max_size=10))
    dataset = Dataset(store, "q", 1)
    native = store._native

    class ClosesFirst:
        def stream(self, *options):
            stream = native.stream(*options)
            dataset.close()
            return stream

    store._native = ClosesFirst()
    try:
        assert BackgroundCall(lambda: list(dataset)).result() == []
    finally:
        store._native = native


def test_no_thread_is_left_over(open_store):
    store = open_store(Table.queue("q", max_size=10))
    fill(store, "q", range(10))
    before = threading.active_count()
    for _ in range(3):
        leave_by_break(Dataset(store, "q", 1), lambda: None)
    del store
    assert threading.active_count() == before


def test_several_readers_receive_each_item_of_a_queue_once(open_store):
    items, readers = 1000, 4
    store = open_store(Table.queue("q", max_size=64))

    def read():
        return [x for batch in Dataset(store, "q", 5, prefetch=3, timeout=1.0) for x in batch.data["x"].tolist()]

    callers = [BackgroundCall(read) for _ in range(readers)]
    fill(store, "q", range(items))
    values = [x for caller in callers for x in caller.result(60)]
    assert Counter(values) == Counter(range(items))


def test_readers_that_stop_lose_nothing(open_store):
    items = 600
    store = open_store(Table.queue("q", max_size=items))
    fill(store, "q", range(items))
    values = []
    while len(values) < items:
        for number, batch in enumerate(Dataset(store, "q", 3, prefetch=4)):
            values += batch.data["x"].tolist()
            if number == 3 or len(values) == items:
                break
    assert values == list(range(items))


# --- errors ------------------------------------------------------------------------------------


def test_bad_options_are_rejected(open_store):
    store = open_store(Table("t"))
    number_of_seconds = "`timeout` must be a number of seconds, at least 0, or None to wait forever; got"
    for options, text in (
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        ({"batch_size": 2**24 + 1}, "`batch_size` must be at most 16777216; got 16777217"),
        ({"batch_size": 1.5}, "`batch_size` must be an integer; got 1.5 (float)"),
        ({"prefetch": -1}, "`prefetch` must be at least 0; got -1"),
        ({"max_batches": 0}, "`max_batches` must be at least 1; got 0"),
        ({"timeout": -1}, f"{number_of_seconds} -1"),
        ({"timeout": "1"}, f"{number_of_seconds} '1' (str)"),
    ):
        with case(options), raises(InvalidArgumentError, text):
            Dataset(store, "t", **options)
    with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 't' (str)"):
        Dataset("t", store)


def test_batches_that_can_never_be_available_are_rejected(open_store):
    store = open_store(Table.queue("q", max_size=2))
    with raises(UnknownTableError, "no table `t`; known tables: `q`"):
        next(iter(Dataset(store, "t")))
    text = "table `q` can never yield 3 samples at once: it has at most 2 items, each sampled at most 1 time"
    with raises(UnsatisfiableError, text):
        next(iter(Dataset(store, "q", 3)))
