"""What an iterator that is left early gives back: all items that none of its elements was of, in their order."""

import importlib
import signal
import threading
from itertools import islice

import numpy as np
import pytest
from data_tables import fill, insert, queue
from support import BackgroundCall, raises, wait_until

from engram import Store, Table, rate_limiters, selectors
from engram.data import numpy as data
from engram.errors import SignatureError

FRAMEWORKS = [
    "numpy",
    *(pytest.param(name, marks=pytest.mark.frameworks) for name in ("torch", "jax")),
]


def left(store):
    """The first steps of the items that are in the table, in order; it is empty then."""
    info = store.info()["t"]
    assert info.leased_out == 0
    return [int(store.sample("t", 1, timeout=10).data["x"][0, 0]) for _ in range(info.size)]


def leave(elements, number):
    """Reads so many elements, and leaves."""
    reading = iter(elements)
    found = [np.ravel(np.asarray(element.data["x"])).tolist() for element in islice(reading, number)]
    reading.close()
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_items_whose_steps_fill_no_batch_go_back(open_store, framework, number):
    store = open_store(queue())
    fill(store, [2] * 10)
    made = importlib.import_module(f"engram.data.{framework}").dataset(store, "t", steps=True, batch_size=3, prefetch=4)
    assert leave(made, number) == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(number)]
    begun = -(-3 * number // 2)
    assert store.info()["t"].samples == begun
    assert left(store) == [2 * n for n in range(begun, 10)]


@pytest.mark.parametrize("number", [0, 1, 5, 9])
@pytest.mark.parametrize("options", [{}, {"steps": True}, {"batch_size": 1}, {"steps": True, "batch_size": 1}])
def test_what_follows_goes_back_in_order(open_store, number, options):
    store = open_store(queue())
    fill(store, [1] * 10)
    assert len(leave(data.dataset(store, "t", **options), number)) == number
    assert left(store) == list(range(number, 10))


@pytest.mark.parametrize("options", [{}, {"steps": True}, {"steps": True, "batch_size": 2}])
def test_of_a_block_only_what_was_yielded_counts(open_store, options):
    store = open_store(Table("t", rate_limiter=rate_limiters.MinSize(1)))
    fill(store, [4] * 5)
    reading = iter(data.dataset(store, "t", prefetch=4, **options))
    for _ in range(3):
        next(reading)
    reading.close()
    used = {(): 3, ("steps",): 1, ("steps", "batch_size"): 2}[tuple(options)]
    assert store.info()["t"].samples == used


def test_a_batch_that_is_waited_for_is_not_used(open_store):
    """Ctrl-C strikes while a batch is not full."""
    store = open_store(queue())
    fill(store, [2] * 4)
    with pytest.raises(KeyboardInterrupt):
        for element in data.dataset(store, "t", steps=True, batch_size=3, prefetch=1):
            if element.data["x"][0] == 3:  # the next has two steps, and waits for a third
                threading.Timer(0.3, signal_main).start()
    assert left(store) == [6]
    assert store.info()["t"].samples == 4


def signal_main():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize("drop", [True, False])
def test_a_last_batch_that_is_dropped_is_not_used(open_store, drop):
    store = open_store(queue())
    fill(store, [1] * 5)
    found = list(data.dataset(store, "t", steps=True, batch_size=3, drop_remainder=drop, timeout=0.3))
    assert len(found) == 2 - drop
    assert left(store) == ([3, 4] if drop else [])


def test_a_batch_that_is_refused_is_not_used(open_store, monkeypatch):
    store = open_store(queue())
    fill(store, [1] * 6)
    reading = iter(data.dataset(store, "t", steps=True, batch_size=2))
    next(reading)

    def refuse(*_):
        raise SignatureError("refused")

    monkeypatch.setattr("engram.data.column_block.element", refuse)
    elements = data.dataset(store, "t", steps=True, batch_size=2)
    reading.close()
    with raises(SignatureError, "refused"):
        next(iter(elements))
    assert left(store) == [2, 3, 4, 5]


def test_a_queue_smaller_than_a_batch(open_store):
    """Items that wait for their batch make room: here they count as used before."""
    store = open_store(Table.queue("t", max_size=3))
    inserting = BackgroundCall(lambda: fill(store, [1] * 24))
    # Should nothing come, it is seen what became of the inserts.
    found = data.dataset(store, "t", steps=True, batch_size=8, timeout=30)
    batches = [element.data["x"].tolist() for element in islice(found, 3)]
    inserting.result()
    assert batches == [list(range(8 * n, 8 * n + 8)) for n in range(3)]


def test_items_that_are_held_for_long_count_as_used(open_store, monkeypatch):
    """A server would take them back, and they would come again."""
    monkeypatch.setattr("engram._consumption.MAX_HOLD", 0.0)
    store = open_store(queue())
    fill(store, [1] * 3)
    reading = iter(data.dataset(store, "t", steps=True, batch_size=4))
    waiting = BackgroundCall(lambda: next(reading))
    wait_until(lambda: store.info()["t"].size == 0)
    fill(store, [1] * 2, first=3)
    assert waiting.result().data["x"].tolist() == [0, 1, 2, 3]
    reading.close()
    assert left(store) == [4]


def test_more_blocks_than_a_server_keeps_on_lease(open_store):
    store = open_store(queue())
    fill(store, [1] * 1_300)
    reading = iter(data.dataset(store, "t", steps=True, batch_size=1_200))
    assert next(reading).data["x"].tolist() == list(range(1_200))
    reading.close()
    assert store.info()["t"].size == 100


@pytest.mark.frameworks
def test_a_data_loader_in_this_process(open_store):
    torch = pytest.importorskip("torch.utils.data")
    from engram.data.torch import dataset, identity_collate  # noqa: PLC0415, an extra

    store = open_store(queue())
    fill(store, [2] * 8)
    made = dataset(store, "t", steps=True, batch_size=3)
    loader = iter(torch.DataLoader(made, batch_size=None, collate_fn=identity_collate, num_workers=0))
    assert next(loader).data["x"].tolist() == [0, 1, 2]
    del loader
    wait_until(lambda: store.info()["t"].leased_out == 0)
    assert left(store) == [4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize("lengths", [[1, 3, 2, 4, 1, 1, 2], [5], [2, 2]])
def test_a_step_makes_its_item_used(lengths):
    """Whatever the items' lengths, and wherever the loop ends."""
    starts = np.cumsum([0, *lengths])[:-1].tolist()
    for size in (None, 2, 3):
        for number in range(sum(lengths) // (size or 1) + 1):
            with Store([queue()]) as store:
                fill(store, lengths)
                leave(data.dataset(store, "t", steps=True, batch_size=size), number)
                seen = number * (size or 1)
                assert left(store) == [start for start in starts if start >= seen]


def test_a_heap_regains_its_order(open_store):
    store = open_store(Table("t", sampler=selectors.MaxHeap(), max_times_sampled=1))
    for value in (3, 1, 4, 1, 5):
        store.insert({"x": np.full(1, value)}, {"t": float(value)}, time_axis=True)
    reading = iter(data.dataset(store, "t", steps=True, batch_size=2, prefetch=4))
    assert next(reading).data["x"].tolist() == [5, 4]
    reading.close()
    assert left(store) == [3, 1, 1]


def test_steps_that_do_not_go_together_stay(open_store):
    store = open_store(queue())
    insert(store, {"x": np.arange(3)}, {"x": np.zeros(2, np.float32)})
    reading = iter(data.dataset(store, "t", steps=True, batch_size=2))
    next(reading)
    assert next(reading).data["x"].tolist() == [2], "the last of the first item"
    with pytest.raises(SignatureError):
        next(reading)
    assert store.info()["t"].size == 1
