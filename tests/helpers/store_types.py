"""The ways to a store: in this process, through a client with its own server, and through one with three servers."""

import pytest

import engram


class RemoteStore(engram.Client):
    """A client with its own server."""

    def __init__(self, tables, *, seed) -> None:
        self.server = engram.Server(engram.Store(tables, seed=seed))
        super().__init__(self.server.address)

    def close(self) -> None:
        """Closes the server's store, not the client, so that tests of a closed store also apply to a remote one."""
        self.server.store.close()

    def close_servers(self) -> None:
        self.server.close()


class ShardedStore(engram.ShardedClient):
    """A client with three servers of its own."""

    def __init__(self, tables, *, seed) -> None:
        stores = [engram.Store(tables, seed=seed + shard) for shard in range(3)]
        self.servers = [engram.Server(store, shard_id=shard + 1) for shard, store in enumerate(stores)]
        # So that batches are merged from several shards.
        super().__init__([server.address for server in self.servers], seed=seed, items_per_request=2)

    def close(self) -> None:
        """Closes the servers' stores, as for a `RemoteStore`."""
        for server in self.servers:
            server.store.close()

    def close_servers(self) -> None:
        for server in self.servers:
            server.close()


# Tests with `open_store` run with each of these types.
STORE_TYPES = {"in_process": engram.Store, "remote": RemoteStore, "sharded": ShardedStore}


def doors(*, slow):
    """The parameters of `open_store` for a test whose stores of these types are only in `make test-all`."""
    return [pytest.param(door, marks=pytest.mark.slow if door in slow else []) for door in sorted(STORE_TYPES)]
