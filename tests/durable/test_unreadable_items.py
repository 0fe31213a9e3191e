"""Items whose stored data is corrupt, although its checksum is right, do not block a queue."""

import contextlib
import re

import numpy as np
import pytest
from helpers import records
from helpers.support import raises

from engram import Client, Dataset, Server, Store, Table
from engram.errors import EngramError, StorageError

LOG = "log-0000000001"
CAUSE = "column `x` is corrupt: its LZ4 block cannot be decompressed to 10000 bytes"


@pytest.fixture
def directory(tmp_path):
    """A store with a queue of three items, of which the second is corrupt; also returns the keys of the items."""
    path = tmp_path / "store"
    with Store.open(path, [Table.queue("q", max_size=10), Table("t")]) as store, store.writer(chunk_length=1) as writer:
        keys = []
        for value in range(3):
            writer.append({"x": np.full(10_000, value, np.uint8)})
            keys.append(writer.create_item("q", num_steps=1))
            writer.create_item("t", num_steps=1, priority=2.0)
    chunks = [record for record in records.records(path / LOG) if record.kind == "chunk"]
    assert len(chunks) == 3
    body = chunks[1].body
    assert len(body) < 1_000, "compressed"
    records.replace(path / LOG, chunks[1]._replace(body=body[:-20] + bytes(20)))
    return path, keys


@contextlib.contextmanager
def opened(path, where):
    if where == "in process":
        with Store.open(path) as store:
            yield store
    else:
        with Store.open(path) as store, Server(store) as server, Client(server.address) as client:
            yield client


def value(data):
    return int(np.unique(data["x"]).item())


@pytest.mark.parametrize("where", ["in process", "served"])
def test_a_sample_names_the_unreadable_item_and_the_next_sample_continues(directory, where):
    path, keys = directory
    with opened(path, where) as store:
        assert value(store.sample("q", 1, timeout=20).data) == 0
        with raises(EngramError, f"item {keys[1]} of table `q` cannot be read and was removed: {CAUSE}"):
            store.sample("q", 1, timeout=20)
        info = store.info()["q"]
        assert (info.size, info.unreadable_items, info.samples) == (1, 1, 2)
        # Also in table `t`, only the corrupt item is lost.
        with pytest.raises(EngramError, match="of table `t` cannot be read and was removed"):
            for _ in range(1_000):
                store.sample("t", 3, timeout=20)
        assert {value({"x": row}) for row in store.sample("t", 100, timeout=20).data["x"]} == {0, 2}
    with opened(path, where) as store:
        info = store.info()
        assert (info["q"].size, info["t"].size, info["q"].unreadable_items) == (1, 2, 0)
        assert value(store.sample("q", 1, timeout=20).data) == 2


@pytest.mark.parametrize("where", ["in process", "served"])
def test_a_dataset_names_the_unreadable_item_and_the_next_iteration_continues(directory, where):
    path, keys = directory
    with opened(path, where) as store:
        dataset = Dataset(store, "q", timeout=1)
        values = []
        with raises(EngramError, f"item {keys[1]} of table `q` cannot be read and was removed: {CAUSE}"):
            values.extend(value(sample.data) for sample in dataset)
        values += [value(sample.data) for sample in dataset]
        assert values == [0, 2]
        assert store.info()["q"].unreadable_items == 1


def test_a_store_with_an_invalid_structure_of_a_layout_is_not_opened(directory):
    path, _ = directory
    layout = next(record for record in records.records(path / LOG) if record.kind == "layout")
    for old, new, problem in [
        (b'{"d":[["x",0]]}', b'{"d":[       ]}', "describes 0 columns, expected 1; it needs one leaf per column"),
        (b'{"d":[["x",0]]}', b'{"d":[["x",7]]}', "cannot be read: invalid value: integer `7`, expected"),
    ]:
        assert old in layout.body
        records.replace(path / LOG, layout._replace(body=layout.body.replace(old, new)))
        with pytest.raises(StorageError, match=re.escape(f"the structure of a layout {problem}")):
            Store.open(path)


@pytest.mark.parametrize("where", ["in process", "served"])
@pytest.mark.parametrize("batch_size", [2, 10])
def test_a_scan_names_the_unreadable_item_and_continues_without_it(directory, where, batch_size):
    path, keys = directory
    with opened(path, where) as store:
        before = store.info()["q"]
        scan = store.scan("q", batch_size=batch_size)
        found = []
        text = f"item {keys[1]} of table `q` cannot be read, and the scan leaves it out: {CAUSE}"
        with raises(EngramError, text):
            found += [int(x) for batch in scan for x in batch.data["x"][:, 0, 0]]
        found += [int(x) for batch in scan for x in batch.data["x"][:, 0, 0]]
        assert found == [0, 2]
        assert store.info()["q"] == before


@pytest.mark.parametrize("where", ["in process", "served"])
def test_a_peek_states_why_an_item_cannot_be_read(directory, where):
    path, keys = directory
    with opened(path, where) as store:
        before = store.info()["q"]
        items = store.peek("q", order="oldest").items
        assert [item.key for item in items] == keys
        assert [item.data is None for item in items] == [False, True, False]
        text = f"item {keys[1]} of table `q` cannot be read, and the scan leaves it out: {CAUSE}"
        assert [item.error for item in items] == [None, text, None]
        assert store.info()["q"] == before
