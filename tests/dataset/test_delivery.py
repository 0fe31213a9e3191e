"""An item is consumed if and only if its reader has received it: with Ctrl-C at any moment, and with silent readers."""

import gc
import signal
import time

import numpy as np
import pytest
from helpers.store_types import STORE_TYPES
from helpers.support import BackgroundCall, fill, runs_all_tests, sample_x, wait_until

from engram import Client, Dataset, Server, Store, Table
from engram.data import numpy as data


@pytest.fixture
def interrupting():
    """`interrupting(seconds)` raises KeyboardInterrupt in the main thread after that time; 0 cancels it."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.disable()  # a callback of the garbage collector, such as that of hypothesis, would swallow the exception
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    gc.enable()
    signal.signal(signal.SIGALRM, previous)


DOORS_AND_KINDS = [
    pytest.param(door, kind, marks=pytest.mark.slow if (door, kind) == ("sharded", "steps") else [])
    for door in sorted(STORE_TYPES)
    for kind in ("batches", "steps")
]


@pytest.mark.parametrize(("open_store", "kind"), DOORS_AND_KINDS, indirect=["open_store"])
def test_ctrl_c_loses_and_repeats_nothing(open_store, interrupting, kind):
    capacity = 40_000
    store = open_store(Table.queue("t", max_size=capacity))
    # An iteration in process reads a thousand items within the time of one interrupt.
    items = capacity if isinstance(store, Store) else 2_000
    if not runs_all_tests():
        items //= 10 if isinstance(store, Store) else 20
    with store.writer() as writer:
        for value in range(items):
            writer.append({"x": value})
            writer.create_item("t", num_steps=1)
    elements, interrupts, fruitless = [], 0, 0
    while store.info()["t"].size > 0:
        before = len(elements)
        dataset = Dataset(store, "t", 1, timeout=0) if kind == "batches" else data.dataset(store, "t", timeout=0)
        iterator = iter(dataset)
        try:
            # On a busy machine, an iteration may need longer until its first element.
            interrupting((0.0005 + interrupts % 97 / 20_000) * 2 ** min(fruitless // 20, 8))
            for element in iterator:
                elements.append(element)  # noqa: PERF402, an interrupted `extend` would lose elements
            interrupting(0.0)
        except KeyboardInterrupt:
            interrupts += 1
        fruitless = 0 if len(elements) > before else fruitless + 1
        del iterator, dataset
    values = [int(element.data["x"].ravel()[0]) for element in elements]
    assert values == list(range(items))
    assert interrupts > 3


def test_the_lease_of_a_silent_reader_ends():
    with Server([Table.queue("q", max_size=8)], lease_timeout=1.0) as server:
        silent, other = Client(server.address), Client(server.address)
        fill(other, "q", range(4))
        began = time.monotonic()
        # More batches are requested than the table has.
        iterator = iter(Dataset(silent, "q", 1, prefetch=8))
        assert next(iterator).data["x"].tolist() == [0]
        wait_until(lambda: other.info()["q"].hidden_items == 3)
        assert sample_x(other, "q", 3) == [1, 2, 3]
        assert time.monotonic() - began >= 1.0
        # The reader continues: it skips what others have received.
        fill(other, "q", [4, 5])
        assert BackgroundCall(lambda: [next(iterator).data["x"][0] for _ in range(2)]).result() == [4, 5]
        iterator.close()
        wait_until(lambda: other.info()["q"].size == 0)


def test_returned_leases_stay_in_the_table_while_their_reader_is_silent():
    with Server([Table.queue("q", max_size=8)], lease_timeout=2.0) as server:
        silent, other = Client(server.address), Client(server.address)
        fill(other, "q", range(3))
        iterator = iter(Dataset(silent, "q", 1, prefetch=8))
        next(iterator)
        wait_until(lambda: other.info()["q"].hidden_items == 2)
        wait_until(lambda: other.info()["q"].hidden_items == 0)
        time.sleep(0.2)
        assert other.info()["q"].hidden_items == 0
        # They are yielded once the reader requests them again.
        assert [next(iterator).data["x"][0] for _ in range(2)] == [1, 2]
        iterator.close()
        wait_until(lambda: other.info()["q"].size == 0)


def test_steps_that_wait_for_their_batch_are_used_before_their_lease_ends():
    with Server([Table.queue("q", max_size=8)], lease_timeout=2.0) as server, Client(server.address) as client:
        client.insert({"x": np.array([0])}, {"q": 1.0}, time_axis=True)
        iterator = iter(data.dataset(client, "q", steps=True, batch_size=2))
        reading = BackgroundCall(lambda: next(iterator))
        wait_until(lambda: client.info()["q"].size == 0)
        client.insert({"x": np.array([1])}, {"q": 1.0}, time_axis=True)
        assert reading.result().data["x"].tolist() == [0, 1]
        iterator.close()
