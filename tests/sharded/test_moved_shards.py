"""Shards that move, and another number of shards: the client and its writers follow."""

import contextlib
import time

import numpy as np
import pytest
from helpers.support import BackgroundCall, raises

from engram import Client, Pattern, Server, ShardedClient, Store, Table
from engram.errors import InvalidArgumentError
from engram.resharding import reshard


class Shards:
    """Servers of the stores in `directories`; shard ids begin with `first_id`."""

    def __init__(self, directories, first_id):
        self._stack = contextlib.ExitStack()
        self.directories = directories
        self.servers = []
        for index, directory in enumerate(directories):
            store = self._stack.enter_context(Store.open(directory, [Table("t")]))
            self.servers.append(self._stack.enter_context(Server(store, shard_id=first_id + index)))
        self.addresses = [server.address for server in self.servers]

    def resharded(self, count, output, first_id):
        self._stack.close()
        return Shards(reshard(self.directories, into=count, output=output).directories, first_id)

    def close(self):
        self._stack.close()


def contents(client):
    return sorted(x for batch in client.scan("t") for x in batch.data["x"].tolist())


def test_a_client_and_its_writers_follow_resharding(tmp_path):
    shards = Shards([tmp_path / "0", tmp_path / "1"], 1)
    written = 0
    with ShardedClient(shards.addresses, reconnect_timeout=20.0) as client:
        pattern = Pattern("t", lambda step: {"x": step["x"][-1]})
        writers = [client.pattern_writer([pattern]) for _ in range(4)]
        for count, first_id in [(2, 1), (3, 3), (1, 6), (2, 7)]:
            if first_id > 1:
                shards = shards.resharded(count, tmp_path / f"from-{first_id}", first_id)
                client.set_addresses(shards.addresses)
            assert client.addresses == shards.addresses
            for writer in writers:
                for _ in range(10):
                    writer.append({"x": written})
                    written += 1
                writer.flush()
            assert contents(client) == list(range(written))
            assert client.info()["t"].size == written
            batch = client.sample("t", 64)
            assert client.update_priorities("t", batch.info.key, batch.info.priority + 1) == 64
        for writer in writers:
            writer.close()
    shards.close()


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("count", [1, 3])
def test_updates_and_deletions_that_wait_reach_moved_items(tmp_path, count):
    shards = Shards([tmp_path / "0", tmp_path / "1"], 1)
    with ShardedClient(shards.addresses, reconnect_timeout=20.0, items_per_request=1) as client:
        for address in shards.addresses:
            with Client(address) as one:
                one.insert_batch("t", {"x": np.arange(20)}, np.ones(20))
        keys = np.concatenate([batch.info.key for batch in client.scan("t")])
        shards.close()
        calls = [
            BackgroundCall(lambda: client.update_priorities("t", keys, np.full(40, 7.0))),
            BackgroundCall(lambda: client.delete("t", keys[[0, 1, 38, 39]])),
        ]
        time.sleep(0.3)
        shards = shards.resharded(count, tmp_path / "new", 3)
        client.set_addresses(shards.addresses)
        updated, deleted = [call.result() for call in calls]
        assert deleted == 4
        assert updated in range(36, 41)  # some may have been deleted before
        left = [batch.info for batch in client.scan("t")]
        assert {*np.concatenate([info.key for info in left]).tolist()} == {*keys[2:38].tolist()}
        assert {*np.concatenate([info.priority for info in left]).tolist()} == {7.0}
    shards.close()


def test_a_moved_shard_has_its_new_address_in_errors():
    with Server([Table("t")]) as first, Server([Table("t")]) as second:
        client = ShardedClient([first.address, "127.0.0.1:1"], reconnect_timeout=0.2)
        client.set_addresses([first.address, second.address])
        client.insert({"x": 1}, {"t": 1.0})
        assert contents(client) == [1]
        assert repr(client) == f"ShardedClient([{first.address}, {second.address}])"


@pytest.mark.parametrize("addresses", [[], ["127.0.0.1:2", "127.0.0.1:2"]])
def test_invalid_addresses_change_nothing(addresses):
    client = ShardedClient(["127.0.0.1:1"])
    with pytest.raises(InvalidArgumentError, match="`addresses` must"):
        client.set_addresses(addresses)
    with raises(InvalidArgumentError, "address is `x`: it has no port; give `host:port` or `unix:PATH`"):
        client.set_addresses(["x"])
    assert client.addresses == ["127.0.0.1:1"]
