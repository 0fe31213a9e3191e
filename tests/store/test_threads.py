"""Many threads at once: no item is lost or duplicated, and no call hangs."""

import contextlib
import threading
from collections import Counter

import numpy as np
from helpers.support import BackgroundCall, fill, sample_x, wait_until

from engram import Dataset, Pattern, Table, rate_limiters, selectors
from engram.errors import BackpressureError, ClosedError, DeadlineExceededError


def test_every_item_of_a_queue_is_sampled_exactly_once(open_store):
    store = open_store(Table.queue("q", max_size=16))
    items_per_writer, writers, readers = 300, 4, 3

    def write(number):
        with store.writer(chunk_length=1, max_in_flight_items=4) as writer:
            for value in range(items_per_writer):
                writer.append({"x": number * items_per_writer + value})
                writer.create_item("q", num_steps=1)

    def read():
        values = []
        while len(values) < items_per_writer * writers // readers:
            values += store.sample("q", 4).data["x"].ravel().tolist()
        return values

    writing = [BackgroundCall(lambda number=number: write(number)) for number in range(writers)]
    reading = [BackgroundCall(read) for _ in range(readers)]
    values = [value for reader in reading for value in reader.result(60)]
    for writer in writing:
        writer.result(60)
    assert Counter(values) == Counter(range(items_per_writer * writers))
    assert store.info()["q"].size == 0


def repeat(work, stop):
    """Repeats `work` in a thread until `stop` is set, ignoring timeouts; the thread's result is the number of calls."""

    def run():
        done = 0
        while not stop.is_set():
            with contextlib.suppress(DeadlineExceededError, BackpressureError):
                work()
            done += 1
        return done

    return BackgroundCall(run)


def test_concurrent_calls_return_whole_items_and_keep_counters_consistent(open_store):
    limiter = rate_limiters.SampleToInsertRatio(4.0, 10, 1000.0)
    store = open_store(
        Table("t", max_size=200, sampler=selectors.Prioritized(0.8), rate_limiter=limiter),
        Table("u", max_size=50, remover=selectors.MinHeap()),
    )
    stop = threading.Event()
    patterns = [Pattern("t", num_steps=2), Pattern("u", num_steps=1, priority=2.0)]

    def episode():
        with store.pattern_writer(patterns, timeout=0.5) as writer:
            for value in range(20):
                writer.append({"x": np.full(3, value, np.float32)})
                if stop.is_set():
                    return

    def learn():
        batch = store.sample("t", 32, at_least=1, timeout=0.2)
        x = batch.data["x"]
        assert (x[:, 1] == x[:, 0] + 1).all(), "a torn item"
        store.update_priorities("t", batch.info.key, batch.info.priority + 0.01)

    workers = [repeat(work, stop) for work in (episode, episode, learn, learn, store.info)]
    workers.append(repeat(lambda: store.delete("u", store.sample("u", 2).info.key), stop))
    wait_until(lambda: store.info()["t"].samples > 2000, 60)
    stop.set()
    store.set_rate_limiter("t", rate_limiters.MinSize(1))
    store.insert({"x": np.zeros((1, 3), np.float32)}, {"u": 1.0}, time_axis=True)
    assert all(worker.result(30) > 0 for worker in workers)
    info = store.info()["t"]
    assert info.size == info.inserts - info.deletes <= 200


def test_tables_are_created_and_dropped_during_calls(open_store):
    store = open_store(Table("t"))
    stop = threading.Event()

    errors = []

    def use():
        while not stop.is_set():
            try:
                fill(store, "t", [1])
                sample_x(store, "t", 3)
                for _ in Dataset(store, "t", 2, max_batches=2):
                    pass
            except (ClosedError, LookupError):
                errors.append(1)

    users = [BackgroundCall(use) for _ in range(3)]
    rounds = 0
    while rounds < 50 or not errors:
        rounds += 1
        store.drop_table("t")
        store.create_table(Table("t"))
        fill(store, "t", [1])
    stop.set()
    for user in users:
        user.result(30)
