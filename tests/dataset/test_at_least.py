"""The options `at_least` and `max_items`."""

import threading

import numpy as np
import pytest
from helpers.support import BackgroundCall, fill, raises, wait_until

from engram import Dataset, Pattern, Table, rate_limiters, selectors
from engram.errors import DeadlineExceededError, InvalidArgumentError, UnsatisfiableError


def store_with_queue(open_store, items, max_size=100):
    """Returns a store whose queue `q` has this number of items."""
    store = open_store(Table.queue("q", max_size=max_size))
    fill(store, "q", range(items))
    return store


def values(batch):
    return batch.data["x"].tolist()


def test_available_items_are_enough(open_store):
    store = store_with_queue(open_store, 3)
    assert values(store.sample("q", 10, at_least=1, timeout=10)) == [0, 1, 2]
    assert store.info()["q"].size == 0


def test_no_more_than_n_items_are_sampled(open_store):
    store = store_with_queue(open_store, 5)
    assert values(store.sample("q", 2, at_least=1)) == [0, 1]


def test_a_sample_waits_while_fewer_than_at_least_are_available(open_store):
    store = store_with_queue(open_store, 1)
    call = BackgroundCall(lambda: store.sample("q", 10, at_least=3))
    wait_until(lambda: store.info()["q"].waiting_samples)
    fill(store, "q", [1, 2, 3])
    sampled = values(call.result())
    assert sampled == list(range(len(sampled)))
    assert len(sampled) >= 3


def test_fewer_than_at_least_are_returned_to_the_table_at_the_deadline(open_store):
    store = store_with_queue(open_store, 2)
    with pytest.raises(
        DeadlineExceededError,
        match=r"had 2 of 10 samples available within .* s \(at least 3 needed\); they were returned to it; ",
    ):
        store.sample("q", 10, at_least=3, timeout=0.05)
    assert values(store.sample("q", 10, at_least=2)) == [0, 1]


def test_n_may_exceed_what_a_table_can_hold_but_at_least_may_not(open_store):
    store = store_with_queue(open_store, 4, max_size=4)
    with pytest.raises(UnsatisfiableError):
        store.sample("q", 10)
    assert values(store.sample("q", 10, at_least=4)) == [0, 1, 2, 3]
    with pytest.raises(UnsatisfiableError):
        store.sample("q", 10, at_least=5)


def test_several_readers_take_turns(open_store):
    store = store_with_queue(open_store, 0)
    first = BackgroundCall(lambda: store.sample("q", 4, at_least=1))
    wait_until(lambda: store.info()["q"].waiting_samples == 1)
    second = BackgroundCall(lambda: store.sample("q", 4, at_least=1))
    wait_until(lambda: store.info()["q"].waiting_samples == 2)
    fill(store, "q", [0])
    assert values(first.result()) == [0]
    fill(store, "q", [1])
    assert values(second.result()) == [1]


@pytest.mark.parametrize(
    ("at_least", "text"),
    [(0, "from 1 to {} (4); got 0"), (5, "from 1 to {} (4); got 5"), (1.5, "an integer; got 1.5 (float)")],
)
def test_bad_bounds_are_rejected(open_store, at_least, text):
    store = store_with_queue(open_store, 4)
    with raises(InvalidArgumentError, f"`at_least` must be {text.format('`n`')}"):
        store.sample("q", 4, at_least=at_least)
    with raises(InvalidArgumentError, f"`at_least` must be {text.format('`batch_size`')}"):
        Dataset(store, "q", 4, at_least=at_least)
    with raises(InvalidArgumentError, "`max_items` must be at least 1; got 0"):
        Dataset(store, "q", 4, max_items=0)
    assert store.info()["q"].size == 4


def test_a_dataset_yields_partial_batches(open_store):
    store = store_with_queue(open_store, 5)
    with Dataset(store, "q", 3, at_least=1) as dataset:
        batches = iter(dataset)
        sampled = []
        while len(sampled) < 5:
            sampled += values(next(batches))
        assert sampled == [0, 1, 2, 3, 4]
        fill(store, "q", [5])
        assert values(next(batches)) == [5]


@pytest.mark.parametrize("at_least", [None, 1, 3])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_max_items_is_exact(open_store, at_least, prefetch):
    store = store_with_queue(open_store, 20)
    dataset = Dataset(store, "q", 4, at_least=at_least, prefetch=prefetch, max_items=10)
    sampled = [values(batch) for batch in dataset]
    assert [value for batch in sampled for value in batch] == list(range(10))
    assert [len(batch) for batch in sampled] == [4, 4, 2]
    info = store.info()["q"]
    assert (info.size, info.hidden_items, info.samples) == (10, 0, 10)


def test_max_items_is_exact_with_partial_batches(open_store):
    store = store_with_queue(open_store, 0)

    def trickle():
        for value in range(12):
            fill(store, "q", [value])

    writer = threading.Thread(target=trickle)
    writer.start()
    dataset = Dataset(store, "q", 4, at_least=3, prefetch=8, max_items=10)
    sampled = [values(batch) for batch in dataset]
    writer.join()
    assert [value for batch in sampled for value in batch] == list(range(10))
    assert all(len(batch) in {3, 4} for batch in sampled[:-1])
    wait_until(lambda: store.info()["q"].size == 2)


def test_undelivered_items_are_returned_to_the_table(open_store):
    store = store_with_queue(open_store, 10)
    batches = iter(Dataset(store, "q", 4, at_least=1, prefetch=2))
    first = values(next(batches))
    batches.close()
    assert first == [0, 1, 2, 3]
    assert values(store.sample("q", 6)) == [4, 5, 6, 7, 8, 9]


def test_the_limiter_determines_the_batch_size(open_store):
    limiter = rate_limiters.SampleToInsertRatio(2.0, min_size=1, error_buffer=4.0)
    store = open_store(Table("t", sampler=selectors.Fifo(), rate_limiter=limiter))
    fill(store, "t", [7])
    batch = store.sample("t", 100, at_least=1)
    # The limiter allows four samples, as many as if they were drawn one by one.
    assert np.array_equal(batch.data["x"], [7] * 4)


@pytest.mark.parametrize("size", [1024, 20_000])
def test_all_available_items_are_sampled_at_once(open_store, size):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    with store.batched_writer(1000, [Pattern("t", num_steps=1)]) as writer:
        for start in range(0, size, 1000):
            writer.append_batch({"x": np.arange(start, start + 1000)})
    size_before = store.info()["t"].size
    assert len(store.sample("t", 40_000, at_least=1)) == size_before


def test_items_inserted_together_are_sampled_together(open_store):
    store = open_store(Table.queue("q", max_size=100))
    call = BackgroundCall(lambda: store.sample("q", 100, at_least=1, timeout=10))
    wait_until(lambda: store.info()["q"].waiting_samples)
    with store.batched_writer(50, [Pattern("q", num_steps=1)]) as writer:
        writer.append_batch({"x": np.arange(50)})
    assert len(call.result()) == 50


def test_a_reset_during_the_wait_restarts_it(open_store):
    store = store_with_queue(open_store, 2)
    call = BackgroundCall(lambda: store.sample("q", 10, at_least=3, timeout=10))
    wait_until(lambda: store.info()["q"].waiting_samples)
    store.reset("q")
    with store.batched_writer(3, [Pattern("q", num_steps=1)]) as writer:
        writer.append_batch({"x": np.arange(7, 10)})
    assert call.result().data["x"][:, 0].tolist() == [7, 8, 9]
    assert store.info()["q"].samples == 3
