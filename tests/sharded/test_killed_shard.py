"""A shard is killed while others write and sample: nothing acknowledged is lost, nothing is doubled."""

import logging
import threading
import time

import numpy as np
import pytest
from helpers.faults import ServerProcess
from helpers.support import BackgroundCall, wait_until

import engram
from engram import Dataset

TABLES = "[engram.Table('t', max_size=1_000_000), engram.Table('u', max_size=1_000_000)]"

RECONNECT_TIMEOUT = 1.0


@pytest.fixture
def shards(tmp_path):
    """Three durable servers in other processes."""
    servers = [ServerProcess(TABLES, tmp_path / f"shard-{shard}", shard + 1) for shard in range(3)]
    yield servers
    for server in servers:
        server.__exit__()


def connect(servers):
    addresses = [server.address for server in servers]
    return engram.ShardedClient(addresses, reconnect_timeout=RECONNECT_TIMEOUT, seed=2, items_per_request=1)


def items_by_shard(servers, table="t"):
    """The numbers of all items, per shard."""
    by_shard = []
    for server in servers:
        with engram.Client(server.address) as client:
            batches = [batch.data["x"] for batch in client.scan(table)]
        by_shard.append(np.concatenate(batches).ravel().tolist() if batches else [])
    return by_shard


def sizes(servers, table="t"):
    """The numbers of items, per shard."""
    return [engram.Client(server.address).info()[table].size for server in servers]


@pytest.mark.parametrize("kind", ["trajectory", "insert", "insert_batch"])
def test_writers_move_to_another_shard_and_no_item_is_lost_or_doubled(shards, kind):
    client = connect(shards)
    written, stop = [], threading.Event()

    def write():
        number = 0
        writer = client.writer(chunk_length=4) if kind == "trajectory" else None
        while not stop.is_set():
            if writer is not None:
                writer.append({"x": number})
                writer.create_item("t", 1.0, num_steps=1)
                writer.create_item("u", 1.0, num_steps=1)
                number += 1
            elif kind == "insert":
                client.insert({"x": number}, {"t": 1.0, "u": 1.0})
                number += 1
            else:
                client.insert_batch("t", {"x": np.arange(number, number + 50)})
                number += 50
        if writer is not None:
            writer.close()
        written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: sum(sizes(shards)) > 100)
    victim = int(np.argmax(sizes(shards)))
    others = [server for server in shards if server is not shards[victim]]
    before = sum(sizes(others))
    shards[victim].kill()
    wait_until(lambda: sum(sizes(others)) > before + 100)
    shards[victim].start()
    time.sleep(0.7)  # longer than the pause between two attempts to reach a shard
    stop.set()
    thread.join(20.0)
    assert not thread.is_alive()
    # The restarted shard deletes what the writer has sent to another one.
    tables = ("t", "u") if kind != "insert_batch" else ("t",)
    for table in tables:
        wait_until(lambda table=table: sum(sizes(shards, table)) <= written[0])
        items = [x for part in items_by_shard(shards, table) for x in part]
        assert sorted(items) == list(range(written[0]))
    client.close()


def test_the_keys_of_moved_items_are_those_that_insert_batch_returns(shards):
    client = connect(shards)
    keys = [client.insert_batch("t", {"x": np.arange(10)})]
    victim = int(keys[0][0] >> np.uint64(53)) - 1
    results = []

    def insert():
        results.extend(client.insert_batch("t", {"x": np.arange(1000)}) for _ in range(30))

    thread = threading.Thread(target=insert)
    thread.start()
    time.sleep(0.05)
    shards[victim].kill()
    thread.join(20.0)
    shards[victim].start()
    everything = np.concatenate([*keys, *results])
    stored = lambda: np.concatenate([batch.info.key for batch in client.scan("t")])  # noqa: E731
    wait_until(lambda: len(stored()) == len(everything))
    assert sorted(stored().tolist()) == sorted(everything.tolist())
    client.close()


def test_samples_go_on_with_the_other_shards_and_are_logged(shards, caplog):
    client = connect(shards)
    for number, server in enumerate(shards):
        with engram.Client(server.address) as one:
            one.insert_batch("t", {"x": np.full(100, number)})
    assert set(client.sample("t", 600).data["x"].tolist()) == {0, 1, 2}
    dataset = iter(Dataset(client, "t", 60))
    next(dataset)
    shards[1].kill()
    with caplog.at_level(logging.WARNING, "engram"):
        started = time.monotonic()
        for _ in range(20):
            batch = client.sample("t", 600)
        assert time.monotonic() - started < RECONNECT_TIMEOUT + 3.0
    assert set(batch.data["x"].tolist()) == {0, 2}
    np.testing.assert_allclose(batch.info.probability, 1 / 200)
    assert f"shard 1 (at {shards[1].address}) cannot be reached; calls go on with the others" in caplog.text
    # A batch of 60 items has items of one or two shards.
    batches = [next(dataset) for _ in range(30)]
    assert {x for batch in batches[-20:] for x in batch.data["x"].tolist()} == {0, 2}
    assert client.info()["t"].size == 200
    shards[1].start()
    wait_until(lambda: set(client.sample("t", 600).data["x"].tolist()) == {0, 1, 2})
    dataset.close()
    client.close()


def test_without_any_shard_calls_fail_and_name_them(shards):
    client = connect(shards)
    client.insert({"x": 1}, {"t": 1.0})
    for server in shards:
        server.kill()
    started = time.monotonic()
    inserting = BackgroundCall(lambda: client.insert({"x": 1}, {"t": 1.0}))
    with pytest.raises(engram.errors.UnavailableError, match=f"no shard can be reached: {shards[0].address}, "):
        client.sample("t", 1)
    with pytest.raises(engram.errors.UnavailableError):
        inserting.result()
    assert time.monotonic() - started < 15.0
    client.close()
