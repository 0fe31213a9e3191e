"""The actor of one shard: a durable store and its server."""

import os
import threading
import time
import traceback
from contextlib import suppress

import engram
from engram.distributed._ray import ray
from engram.distributed.manifest import Manifest
from engram.distributed.spec import ShardSpec, registry_name
from engram.errors import ClosedError, StorageError

__all__ = ["Shard"]

ANNOUNCE_INTERVAL = 0.5
OPEN_TIMEOUT = 30.0
"""Seconds to wait for the directory: its previous process may still have it open, for example on a lost node."""
OPEN_INTERVAL = 0.2


class Shard:
    """Serves one shard's directory until it is stopped. Ray restarts it with the same arguments after a failure."""

    def __init__(self, spec: ShardSpec, manifest: Manifest) -> None:
        self._spec, self._manifest = spec, manifest
        # By name: Ray warns of handles in the arguments of an actor that it restarts.
        self._registry = ray.get_actor(registry_name(spec.cluster.name), namespace=spec.cluster.namespace)
        self._stopped = threading.Event()
        self._address: str | None = None
        self._reason = "is opening its directory"  # why it has no address yet, for the registry
        self._announcer = threading.Thread(target=self._announce, daemon=True, name="engram-announce")
        self._announcer.start()
        try:
            self._store = self._open()
            self._server = engram.Server(
                self._store, host=ray.util.get_node_ip_address(), token=spec.cluster.token, shard_id=spec.shard_id
            )
        except Exception:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                traceback.print_exc()
                os._exit(1)  # Ray starts it again; an exception would end it for good
            raise
        self._address, self._reason = self._server.address, ""
        self._announce_once()

    def _open(self) -> engram.Store:
        deadline = time.monotonic() + OPEN_TIMEOUT
        while True:
            try:
                return engram.Store.open(
                    self._spec.directory, self._spec.tables, durability=self._spec.cluster.durability
                )
            except StorageError as error:
                self._reason = f"cannot open {self._spec.directory}: {error}"
                if time.monotonic() > deadline:
                    raise
            time.sleep(OPEN_INTERVAL)

    def _announce(self) -> None:
        while not self._stopped.wait(ANNOUNCE_INTERVAL):
            self._announce_once()

    def _announce_once(self) -> None:
        # With all shards: the first announcement of a newer generation replaces the list of the registry. No reply is
        # needed, since the next announcement follows soon.
        self._registry.announce.remote(self._manifest, self._spec.shard_id, self._address, self._reason)

    def address(self) -> str:
        """Returns the server's address; waits until the shard has started."""
        assert self._address is not None  # noqa: S101, set by the constructor
        return self._address

    def pid(self) -> int:
        """Returns the process id, for tests that kill it."""
        return os.getpid()

    def stop(self, *, close: bool) -> None:
        """Prepares the end of the process, which the caller then kills. Can be called again.

        Args:
            close: Close the server and the store, which ends waiting calls with errors. Otherwise the clients notice
                only the killed server, and wait for the next one; the log has everything that was acknowledged. With
                durability `"none"` there is no log: the server is closed in any case, and the store writes a
                checkpoint.
        """
        self._stopped.set()
        if close or self._spec.cluster.durability == "none":
            self._server.close()
            if self._spec.cluster.durability == "none":
                with suppress(ClosedError):
                    self._store.checkpoint()
            self._store.close()
