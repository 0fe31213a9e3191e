"""Writers of a server whose store is durable: when they wait, and which errors they receive."""

import numpy as np
import pytest
from helpers.full_disk import (
    insert,
    is_durable,
    item,
    kill_this_process,
    limit_file_size,
    newest_log,
    queued,
    run_in_process,
    tables,
    write_error,
)
from helpers.support import raises, wait_until

from engram import Client, Server, Store, Table
from engram.errors import BackpressureError, DeadlineExceededError, StorageError

SLOW = 4.0
"""Seconds between two syncs: longer than any wait here except for the last flush."""


def flush_error(writer):
    """Returns the error text of a flush with a short timeout."""
    with pytest.raises(DeadlineExceededError) as caught:
        writer.flush(timeout=0.01)
    return str(caught.value)


def test_items_that_are_inserted_but_not_durable_do_not_block_a_writer(tmp_path):
    store = Store.open(tmp_path, [Table("t", max_size=1_000)], durability="disk", sync_interval=SLOW)
    with store, Server(store) as server, Client(server.address) as client:
        writer = client.writer(max_in_flight_items=10, timeout=SLOW / 2)
        for value in range(500):
            writer.append({"n": np.int64(value)})
            writer.create_item("t", num_steps=1)
        # All items are inserted, and none is synced.
        wait_until(lambda: flush_error(writer) == "all items are in their tables, but not yet on disk after 0.01 s")
        assert store.info()["t"].size == 500
        writer.flush()


def test_a_full_table_blocks_a_writer_until_its_timeout(tmp_path):
    queue = Table.queue("t", max_size=20)
    store = Store.open(tmp_path, [queue], durability="disk", sync_interval=0.0)
    with store, Server(store) as server, Client(server.address) as client:
        writer = client.writer(max_in_flight_items=10, timeout=0.5)
        sent = 0
        with pytest.raises(BackpressureError, match=r"items in flight \(`max_in_flight_items` = 10\)"):
            for sent in range(100):
                writer.append({"n": np.int64(sent)})
                writer.create_item("t", num_steps=1)
        # More than 30 items, as some are in chunks that are not full.
        assert 31 <= sent < 50
        sampled = [store.sample("t", 1).data["n"].item() for _ in range(20)]
        writer.flush()
        rest = store.sample("t", sent - 20).data["n"].ravel()
        assert sampled + rest.tolist() == list(range(sent))


# These functions run in another process, whose log may not grow until the limit is removed.


def receives_errors_until_durable(path, durability):
    store = Store.open(path, tables(), durability=durability)
    for value in range(10):
        insert(store, value, "queue")
    server = Server(store)
    client = Client(server.address)
    writer = client.writer(max_in_flight_items=10, timeout=5)
    limit_file_size(newest_log(path).stat().st_size)
    for value in range(10, 40):
        writer.append(item(value))
        writer.create_item("queue", num_steps=1)
    for _ in range(3):
        with raises(StorageError, write_error(path)):
            writer.flush()
    assert store.info()["queue"].size == 40
    # The writer accepts items, as the table is not blocked.
    writer.append(item(40))
    writer.create_item("queue", num_steps=1)
    limit_file_size(None)
    wait_until(lambda: is_durable(store))
    # An earlier error may be raised once more.
    try:
        writer.flush()
    except StorageError:
        writer.flush()
    kill_this_process()


def receives_an_error_for_one_item(path, durability):
    store = Store.open(path, tables(), durability=durability)
    server = Server(store)
    client = Client(server.address)
    limit_file_size(newest_log(path).stat().st_size)
    with raises(StorageError, write_error(path)):
        insert(client, 0, "queue")
    assert store.info()["queue"].size == 1
    limit_file_size(None)
    wait_until(lambda: is_durable(store))
    insert(client, 1, "queue")
    kill_this_process()


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_flush_raises_errors_until_items_are_durable(tmp_path, durability):
    run_in_process(receives_errors_until_durable, tmp_path / "store", durability)
    assert queued(tmp_path / "store") == (list(range(41)), ())


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_an_insert_that_is_not_durable_raises_an_error_and_keeps_the_item(tmp_path, durability):
    run_in_process(receives_an_error_for_one_item, tmp_path / "store", durability)
    assert queued(tmp_path / "store") == ([0, 1], ())


if __name__ == "__main__":
    import sys
    from pathlib import Path

    globals()[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
