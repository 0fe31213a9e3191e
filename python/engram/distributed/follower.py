"""A thread that points a client to the shards' current addresses, and logs why calls wait."""

import atexit
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import engram
from engram.distributed._ray import ray

if TYPE_CHECKING:
    from concurrent.futures import Future

    from engram.distributed.status import ClusterView

__all__ = ["follow"]

LONG_POLL = 10.0
"""Seconds after which an unchanged registry answers."""
RETRY_INTERVAL = 0.2

logger = logging.getLogger("engram.distributed")


def follow(client: "engram.ShardedClient", registry: "ray.actor.ActorHandle", name: str, view: "ClusterView") -> None:
    """Starts the thread. It ends after the client was closed or garbage-collected, or Ray was shut down."""
    follower = _Follower(registry, name, view)
    client.call_when_closed(follower.stop)
    weakref.finalize(client, follower.stop)
    atexit.register(follower.stop)
    thread = threading.Thread(target=follower.run, args=(weakref.ref(client),), daemon=True, name="engram-follower")
    thread.start()


class _Follower:
    def __init__(self, registry: "ray.actor.ActorHandle", name: str, view: "ClusterView") -> None:
        self._registry, self._name = registry, name
        self._version, self._addresses = view.version, view.addresses
        self._last_addresses = {shard.shard_id: shard.address for shard in view.shards}
        self._problem, self._problem_since = "", 0.0
        self._stopped = threading.Event()
        self._waiting = threading.Event()  # set when the call in progress has ended, or by `stop`

    def stop(self) -> None:
        self._stopped.set()
        self._waiting.set()

    def run(self, client: "weakref.ref[engram.ShardedClient]") -> None:
        try:
            self._follow(client)
        finally:
            atexit.unregister(self.stop)

    def _follow(self, client: "weakref.ref[engram.ShardedClient]") -> None:
        while not self._stopped.is_set():
            view = self._next_view()
            target = client()
            if target is None or self._stopped.is_set():
                return
            if view is not None and not self._apply(target, view):
                return
            del target

    def _next_view(self) -> "ClusterView | None":
        """Returns the next change; None if there was none, or the registry is restarting."""
        self._waiting = threading.Event()
        try:
            future: Future[Any] = self._registry.wait.remote(self._version, LONG_POLL).future()
        except Exception:  # noqa: BLE001, Ray was shut down
            self._stopped.set()
            return None
        future.add_done_callback(lambda _: self._waiting.set())
        if self._stopped.is_set():
            return None
        self._waiting.wait(2 * LONG_POLL)
        if not future.done():
            return None
        try:
            view: ClusterView = future.result()
        except Exception:  # noqa: BLE001, the registry is restarting, has ended, or Ray was shut down
            self._stopped.wait(RETRY_INTERVAL)
            if not ray.is_initialized():
                self._stopped.set()
            return None
        return view

    def _apply(self, client: "engram.ShardedClient", view: "ClusterView") -> bool:
        """Passes the addresses on; returns False if the client is closed."""
        self._version = view.version
        addresses = view.addresses
        if addresses is not None and addresses != self._addresses:
            try:
                client.set_addresses(addresses)
            except engram.errors.ClosedError:
                return False
            except Exception:
                logger.exception("cluster `%s`: a client cannot use the addresses %s", self._name, addresses)
            else:
                self._log_restarts(view)
            self._addresses = addresses
        if view.problem and view.problem != self._problem:
            if not self._problem:
                self._problem_since = time.monotonic()
            logger.warning("cluster `%s`: %s; calls that need it wait", self._name, view.problem)
        elif self._problem and not view.problem:
            waited = time.monotonic() - self._problem_since
            logger.warning(
                "cluster `%s`: all %d shards serve again, after %.1f s", self._name, len(view.shards), waited
            )
        self._problem = view.problem
        return True

    def _log_restarts(self, view: "ClusterView") -> None:
        for shard in view.shards:
            before, now = self._last_addresses.get(shard.shard_id), shard.address
            if now is None or now == before:
                continue
            self._last_addresses[shard.shard_id] = now
            if before is not None:
                logger.warning(
                    "cluster `%s`: shard %d (id %d) was restarted at %s, and was at %s; calls that waited for it go on",
                    self._name,
                    shard.index,
                    shard.shard_id,
                    now,
                    before,
                )
