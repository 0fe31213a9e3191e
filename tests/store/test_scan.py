"""Scans: each item once, as it was when the scan began, without an effect on the table."""

import itertools
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.support import fill, raises, sample_x, wait_until
from hypothesis import given, settings

from engram import Batch, Client, Dataset, Sample, Server, Store, Table, rate_limiters, selectors
from engram.errors import ClosedError, InvalidArgumentError, UnknownTableError


def scan_x(store, table="t", **options):
    """Column `x` of all items of a scan, as a list."""
    return [x for batch in store.scan(table, **options) for x in batch.data["x"].tolist()]


def test_a_scan_returns_each_item_once_in_the_order_of_insertion(open_store):
    store = open_store(Table("t"))
    keys = fill(store, "t", range(10), priority=float)
    scan = store.scan("t", batch_size=4)
    assert scan.num_items == 10
    assert repr(scan) == "Scan('t', 10 items)"
    batches = list(scan)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert all(isinstance(batch, Batch) for batch in batches)
    assert [batch.data["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [key for batch in batches for key in batch.info.key.tolist()] == keys
    info = batches[1].info
    assert info.priority.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert info.times_sampled.tolist() == [0] * 4
    assert info.table_size.tolist() == [10] * 4
    assert info.probability.tolist() == batches[1].importance_weights().tolist() == [1.0] * 4
    assert list(scan) == []
    assert scan_x(store, order="newest_first") == [*range(9, -1, -1)]


def test_a_scan_of_an_empty_table_ends_at_once(open_store):
    store = open_store(Table("t"))
    assert scan_x(store) == []
    assert store.scan("t").num_items == 0


def test_a_scan_changes_nothing(open_store):
    queue = Table.queue("q", max_size=5)
    limited = Table("t", rate_limiter=rate_limiters.MinSize(100), sampler=selectors.Lifo(), max_times_sampled=2)
    store = open_store(queue, limited)
    fill(store, "q", range(5))
    fill(store, "t", range(5))
    before = store.info()
    for _ in range(3):
        assert scan_x(store, "q") == scan_x(store, "t") == [0, 1, 2, 3, 4]
    assert store.info() == before
    assert sample_x(store, "q", 5) == [0, 1, 2, 3, 4]
    assert scan_x(store, "q") == []


def test_a_scan_has_the_counts_of_samples(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo()))
    fill(store, "t", range(2))
    store.sample("t", 3)
    (batch,) = store.scan("t")
    assert batch.info.times_sampled.tolist() == [3, 0]


def test_a_scan_has_the_items_that_a_reader_holds(open_store):
    store = open_store(Table.queue("q", max_size=4))
    fill(store, "q", range(4))
    with Dataset(store, "q", batch_size=2, max_batches=1, hold=True) as dataset:
        batches = iter(dataset)
        assert next(batches).data["x"].tolist() == [0, 1]
        assert store.info()["q"].hidden_items == 2
        (batch,) = store.scan("q")
        assert batch.data["x"].tolist() == [0, 1, 2, 3]
        assert batch.info.times_sampled.tolist() == [1, 1, 0, 0]
        assert next(batches, None) is None
    wait_until(lambda: scan_x(store, "q") == [2, 3])


def test_selected_keys(open_store):
    store = open_store(Table("t"))
    keys = fill(store, "t", range(2_000))
    wanted = [keys[7], 12345, keys[3], keys[7], keys[1999]]
    assert scan_x(store, keys=wanted) == [3, 7, 1999]
    assert scan_x(store, keys=set(wanted), order="newest_first") == [1999, 7, 3]
    assert scan_x(store, keys=(key for key in wanted)) == [3, 7, 1999]
    assert scan_x(store, keys=np.array(wanted, np.uint64)) == [3, 7, 1999]
    assert scan_x(store, keys=[]) == scan_x(store, keys=[1]) == []
    assert store.scan("t", keys=wanted).num_items == 3
    # With more than 1,024 keys, a scan selects from all items instead of looking up each key.
    many = [*keys[::-1][:1_500], *range(1, 100), *keys[600:700]]
    assert scan_x(store, keys=many, batch_size=7) == [*range(500, 2_000)]
    assert scan_x(store, keys=many, order="newest_first") == [*range(1_999, 499, -1)]
    assert store.scan("t", keys=many[:1_200]).num_items == 1_200


def test_single_items(open_store):
    store = open_store(Table("t"))
    store.insert({"x": np.array([[1, 2], [3, 4]])}, {"t": 1.0}, time_axis=True)
    store.insert({"x": np.array([5, 6])}, {"t": 1.0})
    one, two = store.scan("t", batch_size=None)
    assert isinstance(one, Sample)
    assert one.info.key.shape == (1,)
    assert (one.data["x"].tolist(), two.data["x"].tolist()) == ([[1, 2], [3, 4]], [5, 6])


def test_items_of_different_lengths_are_ragged_or_padded(open_store):
    store = open_store(Table("t"))
    for length in (1, 3, 2):
        store.insert({"x": np.arange(length)}, {"t": 1.0}, time_axis=True)
    (batch,) = store.scan("t")
    assert batch.row_splits["x"].tolist() == [0, 1, 4, 6]
    assert batch.data["x"].tolist() == [0, 0, 1, 2, 0, 1]
    (batch,) = store.scan("t", pad=True)
    assert batch.lengths["x"].tolist() == [1, 3, 2]
    assert batch.data["x"].tolist() == [[0, 0, 0], [0, 1, 2], [0, 1, 0]]


def test_a_batch_ends_before_an_item_that_cannot_be_stacked(open_store):
    store = open_store(Table("t"))
    items = [
        *({"x": 1}, {"x": 2}),
        *({"x": 1.5}, {"x": 2.5}),  # another dtype
        {"x": np.array([1.5, 2.5])},  # another shape
        *({"y": 1}, {"y": 2}),  # another name
        {"y": {"z": 1}},  # another nest
        *({"x": 3}, {"x": 4}),
    ]
    for item in items:
        store.insert(item, {"t": 1.0})
    store.insert({"x": np.array([5])}, {"t": 1.0}, time_axis=True)
    batches = list(store.scan("t", batch_size=100))
    assert [len(batch) for batch in batches] == [2, 2, 1, 2, 1, 2, 1]
    assert batches[4].data["y"]["z"].tolist() == [1]
    assert batches[6].data["x"].tolist() == [[5]]
    store.reset("t")
    for value in range(20):
        store.insert({"x": value} if value % 2 else {"x": float(value)}, {"t": 1.0})
    assert scan_x(store, batch_size=3) == [*range(20)]
    assert scan_x(store, batch_size=3, order="newest_first") == [*range(19, -1, -1)]


def test_items_of_several_writers_are_in_one_batch(open_store):
    store = open_store(Table("t"))
    with store.writer() as one, store.writer(chunk_length=1) as two:
        for value in range(6):
            writer = (one, two)[value % 2]
            writer.append({"x": value, "text": f"n{value}"})
            writer.create_item("t", num_steps=1)
            writer.flush()
    (batch,) = store.scan("t")
    assert batch.data["x"].tolist() == [[value] for value in range(6)]
    assert batch.data["text"].tolist() == [[f"n{value}"] for value in range(6)]


def test_changes_after_the_beginning_do_not_affect_a_scan(open_store):
    store = open_store(Table("t", max_size=1_000))
    keys = fill(store, "t", range(1_000), priority=float)
    scan = store.scan("t", batch_size=100)
    first = next(scan)
    store.update_priorities("t", keys, np.zeros(1_000))
    store.delete("t", keys[50:150])
    fill(store, "t", range(1_000, 1_700))  # evicts items that the scan has not read
    store.sample("t", 100)
    rest = list(scan)
    assert [x for batch in (first, *rest) for x in batch.data["x"].tolist()] == [*range(1_000)]
    assert [p for batch in (first, *rest) for p in batch.info.priority.tolist()] == [*range(1_000)]
    assert not any(batch.info.times_sampled.any() for batch in rest)
    scan = store.scan("t", batch_size=10)
    next(scan)
    store.reset("t")
    assert sum(len(batch) for batch in scan) == 990
    assert scan_x(store) == []


def test_a_scan_after_close_or_drop_raises(open_store):
    store = open_store(Table("t"), Table("u"))
    for table in ("t", "u"):
        fill(store, table, range(100))
    dropped, closed, ended = store.scan("u", batch_size=10), store.scan("t", batch_size=10), store.scan("t")
    assert sum(map(len, ended)) == 100
    for scan in (dropped, closed):
        next(scan)
    store.drop_table("u")
    with pytest.raises(ClosedError, match="table `u` was dropped"):
        list(dropped)
    store.close()
    for _ in range(2):
        with pytest.raises(ClosedError):
            list(closed)
    assert list(ended) == []
    with pytest.raises(ClosedError):
        store.scan("t")


def test_a_scan_can_be_closed(open_store):
    store = open_store(Table("t"))
    fill(store, "t", range(100))
    with store.scan("t", batch_size=10) as scan:
        next(scan)
    assert list(scan) == []
    scan.close()
    assert scan.num_items == 100


def test_expired_items_are_left_out(open_store):
    store = open_store(Table("t", ttl=0.05))
    fill(store, "t", range(10))
    wait_until(lambda: store.scan("t").num_items == 0)
    assert scan_x(store) == []


def test_arguments_are_checked(open_store):
    store = open_store(Table("t"))
    with raises(InvalidArgumentError, "`batch_size` must be at least 1; got 0"):
        store.scan("t", batch_size=0)
    with raises(InvalidArgumentError, "`batch_size` must be at most 65536; got 65537"):
        store.scan("t", batch_size=65_537)
    with raises(InvalidArgumentError, '`order` must be "oldest_first" or "newest_first"; got \'random\' (str)'):
        store.scan("t", order="random")
    with raises(InvalidArgumentError, "`keys` must be integers; got float64"):
        store.scan("t", keys=[0.5])
    with raises(InvalidArgumentError, "`keys` must be at least 0; got -1"):
        store.scan("t", keys={-1})
    with raises(InvalidArgumentError, "`keys` must have at most 4194304 keys; got 4194305; read them in several calls"):
        store.scan("t", keys=np.zeros(4_194_305, np.uint64))
    with raises(InvalidArgumentError, "`pad` must be True or False; got 1 (int)"):
        store.scan("t", pad=1)
    with pytest.raises(UnknownTableError):
        store.scan("nope")


def test_many_keys_reach_a_server():
    with Store([Table("t")]) as store, Server(store) as server, Client(server.address) as client:
        keys = fill(store, "t", range(10))
        many = np.arange(200_000, dtype=np.uint64) + 1
        assert scan_x(client, keys=np.concatenate([many, np.array(keys[2:5], np.uint64), many])) == [2, 3, 4]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "update", "sample", "reset", "next"]), st.integers(0, 2**16)),
    max_size=60,
)


class ModelTable:
    """A table of at most 64 items, and its naive model: a dict from key to value, priority and number of samples."""

    def __init__(self, store):
        self.store, self.items, self._values = store, {}, itertools.count()

    def change(self, name, number):
        """Makes a change, unless it needs an item and there is none; `number` determines its details."""
        if name == "insert":
            for _ in range(number % 30):
                self.insert(float(number))
        elif name == "reset" and number % 4 == 0:
            self.store.reset("t")
            self.items.clear()
        elif self.items and name in ("delete", "update", "sample"):
            self.change_item(name, [*self.items][number % len(self.items)], number)

    def insert(self, priority):
        value = next(self._values)
        self.items[self.store.insert({"x": value}, {"t": priority})] = [value, priority, 0]
        if len(self.items) > 64:
            del self.items[next(iter(self.items))]

    def change_item(self, name, key, number):
        if name == "delete":
            self.store.delete("t", [key])
            del self.items[key]
        elif name == "update":
            self.store.update_priorities("t", [key], [number])
            self.items[key][1] = number
        else:
            self.store.sample("t", 2)
            self.items[next(iter(self.items))][2] += 2


@settings(max_examples=60)
@given(before=OPERATIONS, during=OPERATIONS, batch_size=st.integers(1, 40), newest=st.booleans(), data=st.data())
def test_a_scan_equals_the_items_at_its_beginning(before, during, batch_size, newest, data):
    table = Table("t", max_size=64, remover=selectors.Fifo(), sampler=selectors.Fifo())
    with Store([table], seed=1) as store:
        model = ModelTable(store)
        for operation in before:
            model.change(*operation)
        keys = data.draw(st.none() | st.lists(st.sampled_from([*model.items, 5]), max_size=100))
        expected = [(key, *item) for key, item in model.items.items() if keys is None or key in keys]
        scan = store.scan("t", batch_size=batch_size, order="newest_first" if newest else "oldest_first", keys=keys)
        assert scan.num_items == len(expected)
        batches = []
        for operation in during:
            if operation[0] == "next":
                batches.extend(itertools.islice(scan, 1))
            else:
                model.change(*operation)
        batches.extend(scan)
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        columns = [(b.info.key, b.data["x"], b.info.priority, b.info.times_sampled) for b in batches]
        found = [item for batch in columns for item in zip(*(c.tolist() for c in batch), strict=True)]
        assert found == (expected[::-1] if newest else expected)


def test_scans_and_a_checkpoint_at_the_same_time(tmp_path):
    """Each scan sees consecutive items although a writer evicts, and the checkpoint is complete."""
    size = 20_000
    with Store.open(tmp_path / "store", [Table("t", max_size=size)], checkpoint_interval=None) as store:
        writer = store.writer(chunk_length=100)
        stop, problems, numbers = threading.Event(), [], itertools.count()

        def append(n):
            for number in itertools.islice(numbers, n):
                writer.append({"x": number})
                writer.create_item("t", num_steps=1)

        def write():
            while not stop.is_set():
                append(100)

        def scan(order):
            while not stop.is_set():
                found = np.concatenate([batch.data["x"][:, 0] for batch in store.scan("t", order=order)])
                steps = np.diff(found) * (1 if order == "oldest_first" else -1)
                if len(found) != size or not (steps == 1).all():
                    problems.append((len(found), np.unique(steps)))
                    return

        append(2 * size)
        writer.flush()
        threads = [threading.Thread(target=write)]
        threads += [threading.Thread(target=scan, args=(order,)) for order in ("oldest_first", "newest_first") * 2]
        for thread in threads:
            thread.start()
        checkpoints = [store.checkpoint() for _ in range(5)]
        stop.set()
        for thread in threads:
            thread.join()
        writer.close()
        assert problems == []
        assert [checkpoint.items for checkpoint in checkpoints] == [size] * 5
        last = scan_x(store)
    with Store.open(tmp_path / "store") as store:
        assert scan_x(store) == last
