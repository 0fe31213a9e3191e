"""An iterator that stops early returns unconsumed items to the table, in their order."""

import importlib
import signal
import threading
from itertools import islice

import numpy as np
import pytest
from helpers.data_tables import fill, insert, queue
from helpers.support import BackgroundCall, raises, wait_until

from engram import Store, Table, rate_limiters, selectors
from engram.data import numpy as data
from engram.errors import SignatureError

FRAMEWORKS = [
    "numpy",
    pytest.param("torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
    pytest.param("jax", marks=pytest.mark.jax),
]


def remaining(store):
    """Samples all items of the table; returns their first steps, in order."""
    info = store.info()["t"]
    assert info.hidden_items == 0
    return [int(store.sample("t", 1, timeout=10).data["x"][0, 0]) for _ in range(info.size)]


def read(elements, number):
    """Reads `number` elements, then closes the iterator."""
    iterator = iter(elements)
    values = [np.ravel(np.asarray(element.data["x"])).tolist() for element in islice(iterator, number)]
    iterator.close()
    return values


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_items_whose_steps_fill_no_batch_are_returned(open_store, framework):
    store = open_store(queue())
    dataset = importlib.import_module(f"engram.data.{framework}").dataset
    for number in (1, 2, 3):
        fill(store, [2] * 10)
        before = store.info()["t"].samples
        elements = dataset(store, "t", steps=True, batch_size=3, prefetch=4)
        assert read(elements, number) == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(number)]
        consumed = -(-3 * number // 2)
        assert store.info()["t"].samples - before == consumed, number
        assert remaining(store) == [2 * n for n in range(consumed, 10)], number


def test_items_after_the_last_element_are_returned_in_order(open_store):
    store = open_store(queue())
    for options in ({}, {"steps": True}, {"batch_size": 1}, {"steps": True, "batch_size": 1}):
        for number in (0, 1, 5, 9):
            fill(store, [1] * 10)
            assert len(read(data.dataset(store, "t", **options), number)) == number, options
            assert remaining(store) == list(range(number, 10)), (options, number)


def test_only_yielded_items_of_a_block_count_as_sampled(open_store):
    store = open_store(Table("t", rate_limiter=rate_limiters.MinSize(1)))
    fill(store, [4] * 5)
    for options, expected in (({}, 3), ({"steps": True}, 1), ({"steps": True, "batch_size": 2}, 2)):
        before = store.info()["t"].samples
        iterator = iter(data.dataset(store, "t", prefetch=4, **options))
        for _ in range(3):
            next(iterator)
        iterator.close()
        assert store.info()["t"].samples - before == expected, options


def test_ctrl_c_during_a_wait_consumes_no_item_of_the_next_batch(open_store):
    store = open_store(queue())
    fill(store, [2] * 4)
    with pytest.raises(KeyboardInterrupt):
        for element in data.dataset(store, "t", steps=True, batch_size=3, prefetch=1):
            if element.data["x"][0] == 3:  # the next batch has two steps, and waits for a third
                threading.Timer(0.1, interrupt_main).start()
    assert remaining(store) == [6]
    assert store.info()["t"].samples == 4


def interrupt_main():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_items_of_a_dropped_last_batch_are_returned(open_store):
    store = open_store(queue())
    for drop in (True, False):
        fill(store, [1] * 5)
        elements = list(data.dataset(store, "t", steps=True, batch_size=3, drop_remainder=drop, timeout=0.1))
        assert len(elements) == 2 - drop
        assert remaining(store) == ([3, 4] if drop else []), drop


def test_items_of_a_batch_that_fails_to_convert_are_returned(open_store, monkeypatch):
    store = open_store(queue())
    fill(store, [1] * 6)
    iterator = iter(data.dataset(store, "t", steps=True, batch_size=2))
    next(iterator)

    def fail(*_):
        raise SignatureError("not convertible")

    monkeypatch.setattr("engram.data.column_block.to_element", fail)
    elements = data.dataset(store, "t", steps=True, batch_size=2)
    iterator.close()
    with raises(SignatureError, "not convertible"):
        next(iter(elements))
    assert remaining(store) == [2, 3, 4, 5]


def test_a_queue_smaller_than_a_batch_fills_batches(open_store):
    """Items count as consumed before their batch is full if an insert waits for their space."""
    store = open_store(Table.queue("t", max_size=3))
    inserting = BackgroundCall(lambda: fill(store, [1] * 24))
    # The dataset's timeout is shorter than the test's, so that a failed insert is reported.
    elements = data.dataset(store, "t", steps=True, batch_size=8, timeout=30)
    batches = [element.data["x"].tolist() for element in islice(elements, 3)]
    inserting.result()
    assert batches == [list(range(8 * n, 8 * n + 8)) for n in range(3)]


def test_items_that_are_held_for_too_long_count_as_consumed(open_store, monkeypatch):
    """Otherwise the server would return them to the table, and they would be sampled twice."""
    monkeypatch.setattr("engram.consumption.MAX_HOLD", 0.0)
    store = open_store(queue())
    fill(store, [1] * 3)
    iterator = iter(data.dataset(store, "t", steps=True, batch_size=4))
    call = BackgroundCall(lambda: next(iterator))
    wait_until(lambda: store.info()["t"].size == 0)
    fill(store, [1] * 2, first=3)
    assert call.result().data["x"].tolist() == [0, 1, 2, 3]
    iterator.close()
    assert remaining(store) == [4]


def test_a_batch_may_need_more_items_than_a_stream_can_lease(open_store):
    """Items of a queue are leased one by one, and a server leases at most 1,024 batches, here items, to a stream."""
    store = open_store(queue())
    fill(store, [1] * 1_300)
    iterator = iter(data.dataset(store, "t", steps=True, batch_size=1_200))
    assert next(iterator).data["x"].tolist() == list(range(1_200))
    iterator.close()
    assert store.info()["t"].size == 100


@pytest.mark.frameworks
@pytest.mark.torch
def test_a_data_loader_without_workers_returns_items(open_store):
    torch = pytest.importorskip("torch.utils.data")
    from engram.data.torch import dataset, identity_collate  # noqa: PLC0415, an extra

    store = open_store(queue())
    fill(store, [2] * 8)
    elements = dataset(store, "t", steps=True, batch_size=3)
    loader = iter(torch.DataLoader(elements, batch_size=None, collate_fn=identity_collate, num_workers=0))
    assert next(loader).data["x"].tolist() == [0, 1, 2]
    del loader
    wait_until(lambda: store.info()["t"].hidden_items == 0)
    assert remaining(store) == [4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize("lengths", [[1, 3, 2, 4, 1, 1, 2], [5], [2, 2]])
def test_an_item_is_consumed_with_its_first_step(lengths):
    starts = np.cumsum([0, *lengths])[:-1].tolist()
    for size in (None, 2, 3):
        for number in range(sum(lengths) // (size or 1) + 1):
            with Store([queue()]) as store:
                fill(store, lengths)
                read(data.dataset(store, "t", steps=True, batch_size=size), number)
                steps = number * (size or 1)
                assert remaining(store) == [start for start in starts if start >= steps]


def test_returned_items_are_back_in_order_in_a_heap(open_store):
    store = open_store(Table("t", sampler=selectors.MaxHeap(), max_times_sampled=1))
    for value in (3, 1, 4, 1, 5):
        store.insert({"x": np.full(1, value)}, {"t": float(value)}, time_axis=True)
    iterator = iter(data.dataset(store, "t", steps=True, batch_size=2, prefetch=4))
    assert next(iterator).data["x"].tolist() == [5, 4]
    iterator.close()
    assert remaining(store) == [3, 1, 1]


def test_an_item_whose_steps_do_not_fit_the_batch_is_returned(open_store):
    store = open_store(queue())
    insert(store, {"x": np.arange(3)}, {"x": np.zeros(2, np.float32)})
    iterator = iter(data.dataset(store, "t", steps=True, batch_size=2))
    next(iterator)
    assert next(iterator).data["x"].tolist() == [2], "the last of the first item"
    with pytest.raises(SignatureError):
        next(iterator)
    assert store.info()["t"].size == 1
