"""Batches that go out before they are full, and a bound on items."""

import threading

import numpy as np
import pytest
from support import Caller, fill, raises, until

from engram import Dataset, Table, rate_limiters, selectors
from engram.errors import DeadlineExceededError, InvalidArgumentError, NeverServedError


def queue(open_store, items, max_size=100):
    store = open_store(Table.queue("q", max_size=max_size))
    fill(store, "q", range(items))
    return store


def values(batch):
    return batch.data["x"].tolist()


def test_what_is_there_will_do(open_store):
    store = queue(open_store, 3)
    assert values(store.sample("q", 10, at_least=1, timeout=10)) == [0, 1, 2]
    assert store.info()["q"].size == 0


def test_no_more_than_asked_for(open_store):
    store = queue(open_store, 5)
    assert values(store.sample("q", 2, at_least=1)) == [0, 1]


def test_fewer_than_the_least_are_waited_for(open_store):
    store = queue(open_store, 1)
    asked = Caller(lambda: store.sample("q", 10, at_least=3))
    until(lambda: store.info()["q"].waiting_samples)
    fill(store, "q", [1, 2, 3])
    got = values(asked.result())
    assert got == list(range(len(got)))
    assert len(got) >= 3


def test_in_vain_all_goes_back(open_store):
    store = queue(open_store, 2)
    with pytest.raises(DeadlineExceededError, match="yielded 2 of 10 samples"):
        store.sample("q", 10, at_least=3, timeout=0.05)
    assert values(store.sample("q", 10, at_least=2)) == [0, 1]


def test_more_than_a_table_can_hold(open_store):
    store = queue(open_store, 4, max_size=4)
    with pytest.raises(NeverServedError):
        store.sample("q", 10)
    assert values(store.sample("q", 10, at_least=4)) == [0, 1, 2, 3]
    with pytest.raises(NeverServedError):
        store.sample("q", 10, at_least=5)


def test_others_are_served_by_turns(open_store):
    store = queue(open_store, 0)
    first = Caller(lambda: store.sample("q", 4, at_least=1))
    until(lambda: store.info()["q"].waiting_samples == 1)
    second = Caller(lambda: store.sample("q", 4, at_least=1))
    until(lambda: store.info()["q"].waiting_samples == 2)
    fill(store, "q", [0])
    assert values(first.result()) == [0]
    fill(store, "q", [1])
    assert values(second.result()) == [1]


@pytest.mark.parametrize(
    ("given", "text"), [(0, "at least 1; got 0"), (5, "at most 4; got 5"), (1.5, "an integer; got 1.5 (float)")]
)
def test_bad_bounds(open_store, given, text):
    store = queue(open_store, 4)
    with raises(InvalidArgumentError, f"`at_least` must be {text}"):
        store.sample("q", 4, at_least=given)
    with raises(InvalidArgumentError, f"`at_least` must be {text}"):
        Dataset(store, "q", 4, at_least=given)
    with raises(InvalidArgumentError, "`max_items` must be at least 1; got 0"):
        Dataset(store, "q", 4, max_items=0)
    assert store.info()["q"].size == 4


def test_a_dataset_does_not_wait_for_full_batches(open_store):
    store = queue(open_store, 5)
    with Dataset(store, "q", 3, at_least=1) as dataset:
        batches = iter(dataset)
        got = []
        while len(got) < 5:
            got += values(next(batches))
        assert got == [0, 1, 2, 3, 4]
        fill(store, "q", [5])
        assert values(next(batches)) == [5]


@pytest.mark.parametrize("at_least", [None, 1, 3])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_max_items_are_exactly_so_many(open_store, at_least, prefetch):
    store = queue(open_store, 20)
    dataset = Dataset(store, "q", 4, at_least=at_least, prefetch=prefetch, max_items=10)
    got = [value for batch in dataset for value in values(batch)]
    assert got == list(range(10))
    info = store.info()["q"]
    assert (info.size, info.leased_out, info.samples) == (10, 0, 10)


def test_max_items_that_come_in_drops(open_store):
    store = queue(open_store, 0)

    def trickle():
        for value in range(12):
            fill(store, "q", [value])

    writer = threading.Thread(target=trickle)
    writer.start()
    dataset = Dataset(store, "q", 4, at_least=1, prefetch=3, max_items=9)
    got = [value for batch in dataset for value in values(batch)]
    writer.join()
    assert got == list(range(9))
    until(lambda: store.info()["q"].size == 3)


def test_what_was_not_delivered_goes_back(open_store):
    store = queue(open_store, 10)
    batches = iter(Dataset(store, "q", 4, at_least=1, prefetch=2))
    first = values(next(batches))
    batches.close()
    assert first == [0, 1, 2, 3]
    assert values(store.sample("q", 6)) == [4, 5, 6, 7, 8, 9]


def test_the_limiter_decides_how_many(open_store):
    limiter = rate_limiters.SampleToInsertRatio(2.0, min_size=1, error_buffer=4.0)
    store = open_store(Table("t", sampler=selectors.Fifo(), rate_limiter=limiter))
    fill(store, "t", [7])
    batch = store.sample("t", 100, at_least=1)
    # I * 2 - S >= 2 - 4: four samples, as one by one.
    assert np.array_equal(batch.data["x"], [7] * 4)
