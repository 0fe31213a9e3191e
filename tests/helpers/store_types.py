"""The two ways to a store: in this process, and through a client with its own server."""

import engram


class RemoteStore(engram.Client):
    """A client with its own server."""

    def __init__(self, tables, *, seed) -> None:
        self.server = engram.Server(engram.Store(tables, seed=seed))
        super().__init__(self.server.address)

    def close(self) -> None:
        """Closes the server's store, not the client, so that tests of a closed store also apply to a remote one."""
        self.server.store.close()


# Tests with `open_store` run with each of these types.
STORE_TYPES = {"in_process": engram.Store, "remote": RemoteStore}
