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
    """Returns `connect(tables, shards=3)`, which returns a client of new servers, and a client of each."""
    clients = []

    def connect_to(tables, shards=3):
        servers = start_servers(tables, shards)
        sharded = engram.ShardedClient([server.address for server in servers], reconnect_timeout=1.0, seed=5)
        single = [engram.Client(server.address) for server in servers]
        clients.extend([sharded, *single])
        return sharded, single

    yield connect_to
    for client in clients:
        client.close()
