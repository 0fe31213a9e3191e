"""Peeks and histograms: what they return, without an effect on the table."""

import threading
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.support import fill, raises, sample_x
from hypothesis import given, settings

from engram import Client, Dataset, Server, Store, Table, rate_limiters, selectors
from engram.errors import ClosedError, InvalidArgumentError, UnknownTableError

ORDERS = {
    "oldest": lambda item: -item.age,
    "newest": lambda item: item.age,
    "highest_priority": lambda item: -item.priority,
    "lowest_priority": lambda item: item.priority,
    "most_sampled": lambda item: -item.times_sampled,
}


def counters(store):
    """The state of all tables, without the rates, which change with time."""
    return {name: replace(info, inserts_per_s=0, samples_per_s=0) for name, info in store.info().items()}


def peek_x(store, table="t", n=None, **options):
    """Column `x` of the items of a peek, as a list."""
    return [int(item.data["x"]) for item in store.peek(table, n, **options).items]


@pytest.fixture(scope="module")
def large_table():
    """A store and a client with a table of 250,000 items, so that only a part of the items is compared."""
    rows = np.arange(250_000)
    with Store([Table("t", max_size=250_000, remover=selectors.Lifo()), Table("f", max_size=250_000)]) as store:
        store.insert_batch("t", {"x": rows}, rows.astype(float))
        store.insert_batch("f", {"x": rows}, rows.astype(float))
        with Server(store) as server, Client(server.address) as client:
            yield {"in process": store, "remote": client}


def test_a_peek_returns_the_newest_items_with_their_numbers(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo()))
    keys = fill(store, "t", range(12), priority=float)
    store.sample("t", 3)
    peek = store.peek("t", 3)
    assert [item.key for item in peek.items] == keys[:-4:-1]
    assert [item.data["x"].tolist() for item in peek.items] == [11, 10, 9]
    assert [(item.age, item.priority, item.bytes) for item in peek.items] == [(0, 11.0, 8), (1, 10.0, 8), (2, 9.0, 8)]
    assert (peek.num_compared, peek.table_size, peek.is_approximate) == (12, 12, False)
    (oldest,) = store.peek("t", 1, order="oldest").items
    assert (oldest.times_sampled, oldest.age, oldest.error) == (3, 11, None)
    assert len(store.peek("t").items) == 10


def test_a_peek_of_an_empty_table(open_store):
    store = open_store(Table("t"))
    peek = store.peek("t")
    assert (peek.items, peek.num_compared, peek.table_size) == ([], 0, 0)


@pytest.mark.parametrize("remover", [selectors.Fifo(), selectors.Lifo(), selectors.MaxHeap()])
def test_every_order(open_store, remover):
    store = open_store(Table("t", remover=remover, sampler=selectors.MinHeap()))
    keys = fill(store, "t", range(6), priority=lambda value: [3.0, 1.0, 2.0, 1.0, 5.0, -1.0][value])
    store.sample("t", 2)  # of item 5
    store.update_priorities("t", [keys[5]], [4.0])
    store.sample("t", 1)  # of item 1
    assert peek_x(store, order="oldest") == [0, 1, 2, 3, 4, 5]
    assert peek_x(store, order="newest", n=4) == [5, 4, 3, 2]
    assert peek_x(store, order="highest_priority") == [4, 5, 0, 2, 1, 3]
    assert peek_x(store, order="lowest_priority", n=3) == [1, 3, 2]
    assert peek_x(store, order="most_sampled") == [5, 1, 0, 2, 3, 4]


def test_selected_keys(open_store):
    store = open_store(Table("t"))
    keys = fill(store, "t", range(30), priority=lambda value: -value)
    wanted = [keys[7], 12345, keys[3], keys[7], keys[29]]
    assert peek_x(store, keys=wanted) == [29, 7, 3]
    assert peek_x(store, keys=wanted, order="highest_priority") == [3, 7, 29]
    assert peek_x(store, n=2, keys=iter(wanted), order="oldest") == [3, 7]
    assert len(store.peek("t", keys=np.array(keys, np.uint64)).items) == 30
    assert store.peek("t", keys=[1]).items == store.peek("t", keys=[]).items == []


def test_a_peek_and_a_histogram_change_nothing(open_store):
    queue = Table.queue("q", max_size=5)
    limited = Table("t", rate_limiter=rate_limiters.MinSize(100), sampler=selectors.Lifo(), max_times_sampled=2)
    store = open_store(queue, limited)
    fill(store, "q", range(5))
    fill(store, "t", range(5))
    before = counters(store)
    for _ in range(3):
        for order in ORDERS:
            assert sorted(peek_x(store, "q", order=order)) == sorted(peek_x(store, "t", order=order)) == [0, 1, 2, 3, 4]
        for of in ("priority", "age", "times_sampled"):
            assert store.histogram("q", of).num_items == 5
    assert counters(store) == before
    assert sample_x(store, "q", 5) == [0, 1, 2, 3, 4]
    assert peek_x(store, "q") == []


def test_samples_are_the_same_with_and_without_peeks(open_store):
    def samples(looks):
        store = open_store(Table("t", sampler=selectors.Prioritized()), seed=7)
        fill(store, "t", range(50), priority=lambda value: value + 1.0)
        drawn = []
        for _ in range(10):
            drawn += sample_x(store, "t", 8)
            if looks:
                store.peek("t", order="highest_priority")
                store.histogram("t")
        return drawn

    assert samples(looks=False) == samples(looks=True)


def test_a_peek_has_the_items_that_a_reader_holds(open_store):
    store = open_store(Table.queue("q", max_size=4))
    fill(store, "q", range(4))
    with Dataset(store, "q", batch_size=2, max_batches=1, hold=True) as dataset:
        batches = iter(dataset)
        next(batches)
        assert store.info()["q"].hidden_items == 2
        assert peek_x(store, "q", order="oldest") == [0, 1, 2, 3]
        assert store.histogram("q", "times_sampled").counts.tolist() == [2, 2]
        assert next(batches, None) is None


def test_items_of_different_kinds(open_store):
    store = open_store(Table("t"))
    store.insert({"x": np.zeros((3, 2), np.uint8)}, {"t": 1.0}, time_axis=True)
    store.insert({"y": {"z": "text"}}, {"t": 1.0})
    store.insert({"x": np.zeros((0, 4))}, {"t": 1.0})
    empty, text, steps = store.peek("t").items
    assert (empty.data["x"].shape, empty.bytes) == ((0, 4), 0)
    assert text.data["y"]["z"] == "text"
    assert steps.data["x"].shape == (3, 2)


def test_the_data_of_large_items_is_not_read(open_store):
    store = open_store(Table("t"))
    for size in (100, 1_000, 10):
        store.insert({"x": np.zeros(size, np.uint8)}, {"t": 1.0})
    items = store.peek("t", max_bytes=100, order="oldest").items
    assert [item.bytes for item in items] == [100, 1_000, 10]
    assert [None if item.data is None else len(item.data["x"]) for item in items] == [100, None, 10]
    assert [item.data for item in store.peek("t", max_bytes=0).items] == [None] * 3


def test_items_name_their_chunk_and_episode(open_store):
    store = open_store(Table("t"))
    with store.writer(chunk_length=2) as one, store.writer() as two:
        for writer in (one, one, one, two):
            writer.append({"x": 1})
            writer.create_item("t", num_steps=1)
        one.end_episode()
        one.append({"x": 1})
        one.create_item("t", num_steps=1)
    items = {item.key: item for item in store.peek("t", order="oldest").items}
    chunks = [item.chunk for item in items.values()]
    episodes = [item.episode for item in items.values()]
    assert len(items) == 5
    assert sorted(map(chunks.count, chunks)) == [1, 1, 1, 2, 2]
    assert sorted(map(episodes.count, episodes)) == [1, 1, 3, 3, 3]
    assert None not in episodes


def test_histogram_of_priorities(open_store):
    store = open_store(Table("t", sampler=selectors.MaxHeap()))
    values = [0.0, 1.0, 1.5, 4.0, float("inf"), float("-inf")]
    fill(store, "t", range(6), priority=lambda value: values[value])
    histogram = store.histogram("t", bins=4)
    assert histogram.edges.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert histogram.counts.tolist() == [1, 2, 0, 1]
    assert (histogram.below, histogram.above) == (1, 1)
    assert (histogram.num_items, histogram.table_size, histogram.is_approximate) == (6, 6, False)
    assert (histogram.counts.dtype, histogram.edges.dtype) == (np.int64, np.float64)


def test_histograms_of_counts_have_bins_of_whole_numbers(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo()))
    keys = fill(store, "t", range(10))
    store.sample("t", 5)
    store.delete("t", keys[1:3])
    ages = store.histogram("t", "age", bins=5)
    assert (ages.edges.tolist(), ages.counts.tolist()) == ([0, 2, 4, 6, 8, 10], [2, 2, 2, 1, 1])
    samples = store.histogram("t", "times_sampled")
    assert (samples.edges.tolist(), samples.counts.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [7, 0, 0, 0, 0, 1])


def test_histograms_of_equal_values_and_of_no_items(open_store):
    store = open_store(Table("t"))
    empty = store.histogram("t")
    assert (empty.counts.tolist(), empty.edges.tolist(), empty.table_size) == ([0], [0.0, 1.0], 0)
    fill(store, "t", range(3))
    equal = store.histogram("t")
    assert (equal.counts.tolist(), equal.edges.tolist()) == ([3], [0.5, 1.5])


@pytest.mark.parametrize("where", ["in process", "remote"])
def test_of_a_large_table_only_a_part_is_compared(large_table, where):
    store = large_table[where]
    peek = store.peek("t", 5, order="highest_priority")
    assert peek.is_approximate
    assert 95_000 <= peek.num_compared <= 105_000
    assert peek.table_size == 250_000
    assert all(item.priority > 249_000 for item in peek.items)
    assert peek_x(store, n=5, order="highest_priority") != peek_x(store, n=5, order="highest_priority")
    histogram = store.histogram("t", bins=10)
    assert histogram.is_approximate
    assert 95_000 <= histogram.num_items <= 105_000
    assert np.allclose(histogram.counts / histogram.num_items, 0.1, atol=0.002)
    # Insertion order is exact: `t` has a Lifo remover, `f` a Fifo one.
    for table in ("t", "f"):
        assert peek_x(store, table, 3, order="oldest") == [0, 1, 2]
        assert peek_x(store, table, 3, order="newest") == [249_999, 249_998, 249_997]
    assert not store.peek("f", 3).is_approximate


@settings(deadline=None, max_examples=20)
@given(
    priorities=st.lists(st.sampled_from([0.0, 1.0, 2.5]), max_size=12),
    removed=st.sets(st.integers(0, 11)),
    num_samples=st.integers(0, 6),
    n=st.integers(1, 13),
    remover=st.sampled_from([selectors.Fifo(), selectors.Uniform()]),
)
def test_peeks_are_those_of_a_sorted_scan(priorities, removed, num_samples, n, remover):
    with Store([Table("t", remover=remover)]) as store:
        keys = fill(store, "t", range(len(priorities)), priority=lambda value: priorities[value])
        if keys:
            store.sample("t", num_samples) if num_samples else None
            store.delete("t", np.array([keys[index] for index in removed if index < len(keys)], np.uint64))
        items = store.peek("t", order="oldest", n=100).items
        scanned = [(batch.info, int(batch.data["x"])) for batch in store.scan("t", batch_size=None)]
        assert [(item.key, item.priority, item.times_sampled, item.age, int(item.data["x"])) for item in items] == [
            (info.key[0], info.priority[0], info.times_sampled[0], len(keys) - 1 - x, x) for info, x in scanned
        ]
        for order, rank in ORDERS.items():
            assert store.peek("t", n, order=order).items == sorted(items, key=rank)[:n]


def test_peeks_while_the_table_changes(open_store):
    store = open_store(Table("t", max_size=50, remover=selectors.Uniform()))
    end = threading.Event()

    def insert():
        while not end.is_set():
            store.insert_batch("t", {"x": np.arange(100)})

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        for _ in range(30):
            items = store.peek("t", 5, order="newest").items
            assert [item.age for item in items] == sorted(item.age for item in items)
            assert store.histogram("t", "age").table_size <= 200
    finally:
        end.set()
        thread.join()


def test_a_client_sees_its_own_changes_of_before(open_store):
    store = open_store(Table("t"))
    keys = fill(store, "t", range(3))
    for priority in range(10):
        store.update_priorities("t", [keys[0]], [float(priority)], wait=False)
        assert store.peek("t", 1, order="oldest").items[0].priority == priority


def test_invalid_arguments(open_store):
    store = open_store(Table("t"))
    orders = '"oldest", "newest", "highest_priority", "lowest_priority" or "most_sampled"'
    with raises(InvalidArgumentError, f"`order` must be {orders}; got 'best' (str)"):
        store.peek("t", order="best")
    with raises(InvalidArgumentError, "`n` must be at least 1; got 0"):
        store.peek("t", 0)
    with raises(InvalidArgumentError, "`n` must be at most 1024; got 1025"):
        store.peek("t", 1025)
    with raises(InvalidArgumentError, "`keys` must have at most 1024 keys; got 1025; read them in several calls"):
        store.peek("t", keys=np.zeros(1025, np.uint64))
    with pytest.raises(InvalidArgumentError, match="`max_bytes` must be at least 0; got -1"):
        store.peek("t", max_bytes=-1)
    with raises(InvalidArgumentError, '`of` must be "priority", "age" or "times_sampled"; got \'size\' (str)'):
        store.histogram("t", "size")
    with raises(InvalidArgumentError, "`bins` must be at most 1024; got 1025"):
        store.histogram("t", bins=1025)
    for call in (store.peek, store.histogram):
        with pytest.raises(UnknownTableError, match="`x`"):
            call("x")


def test_a_dropped_table_and_a_closed_store(open_store):
    store = open_store(Table("t"))
    store.drop_table("t")
    for call in (store.peek, store.histogram):
        with pytest.raises(UnknownTableError, match="`t`"):
            call("t")
    store.close()
    for call in (store.peek, store.histogram):
        with pytest.raises(ClosedError):
            call("t")
