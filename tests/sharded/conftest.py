"""Servers of sharded tables."""

import pytest

import engram


@pytest.fixture
def start_servers():
    """Returns `start_servers(tables, shards=3)`, which starts servers with shard ids from 1 and the same tables."""
    servers = []

    def start(tables, shards=3, first_id=1):
        started = [engram.Server(tables, shard_id=first_id + shard) for shard in range(shards)]
        servers.extend(started)
        return started

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect(start_servers):
    """Returns `connect(tables, shards=3)`, which returns a client of new servers, and a client of each.

    By default, each draw of a batch chooses a shard.
    """
    clients = []

    def connect_to(tables, shards=3, items_per_request=1):
        servers = start_servers(tables, shards)
        addresses = [server.address for server in servers]
        sharded = engram.ShardedClient(addresses, reconnect_timeout=1.0, seed=5, items_per_request=items_per_request)
        single = [engram.Client(server.address) for server in servers]
        clients.extend([sharded, *single])
        return sharded, single

    yield connect_to
    for client in clients:
        client.close()
