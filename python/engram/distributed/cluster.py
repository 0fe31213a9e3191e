"""The handle of a running cluster of shards."""

import time
from collections.abc import Callable
from typing import Any, Self

import engram
from engram import _checks
from engram.distributed._ray import ray
from engram.distributed.follower import follow
from engram.distributed.registry import shard_names
from engram.distributed.scaling import scale
from engram.distributed.shards import end_actor, stop_shards
from engram.distributed.spec import ClusterSpec, registry_name, shard_name
from engram.distributed.status import ClusterView, ShardStatus
from engram.errors import UnavailableError
from engram.server import MAX_SHARD_ID

__all__ = ["Cluster"]

POLL_INTERVAL = 0.1

RESTART_TIMEOUT = 60.0
"""Seconds to wait for a registry that Ray restarts."""


class Cluster:
    """A running cluster: one durable server per shard, each a Ray actor. `start` and `connect` return it.

        with distributed.start([engram.Table("replay")], path="/shared/replay", shards=2) as cluster:
            with cluster.client() as client:
                client.insert({"x": 1}, {"replay": 1.0})

    It can be pickled, and passed to Ray tasks and actors. At the end of a `with` block the cluster is stopped; its
    directory has everything that was acknowledged.
    """

    def __init__(self, spec: ClusterSpec, registry: "ray.actor.ActorHandle") -> None:
        """Internal: use `start` or `connect`.

        Args:
            spec: What the cluster was started with.
            registry: The actor that knows where the shards are.
        """
        self._spec, self._registry = spec, registry

    @property
    def name(self) -> str:
        """The cluster's name, by which `connect` finds it."""
        return self._spec.name

    @property
    def path(self) -> str:
        """The directory that contains the shards' directories."""
        return self._spec.path

    @property
    def namespace(self) -> str:
        """Ray's namespace of the cluster's actors."""
        return self._spec.namespace

    def actor_name(self, shard: ShardStatus) -> str:
        """Name of a shard's actor in `namespace`, for `ray.get_actor`.

        Args:
            shard: One of `shards()`.
        """
        return shard_name(self.name, shard.shard_id)

    def client(self, *, reconnect_timeout: float = 60.0) -> "engram.ShardedClient":
        """Returns a client of all shards. It follows shards that move, and the cluster when it is scaled.

        While a shard is not reachable, calls that need it wait, and the logger `engram.distributed` states which shard
        and why.

        Args:
            reconnect_timeout: Seconds to wait for an unreachable shard. After that, calls continue with the others, as
                those of every `ShardedClient` do. Ray needs a few seconds to restart a shard, and longer to notice that
                a node has died.

        Raises:
            InvalidArgumentError: `reconnect_timeout` is not above 0.
            UnavailableError: Not all shards have started within `reconnect_timeout`.
        """
        reconnect_timeout = _checks.positive("`reconnect_timeout`", reconnect_timeout)
        view = self._wait_for(lambda view: view.addresses is not None, reconnect_timeout, "has not started")
        client = engram.ShardedClient(view.addresses or [], token=self._spec.token, reconnect_timeout=reconnect_timeout)
        follow(client, self._registry, self.name, view)
        return client

    def shards(self) -> list[ShardStatus]:
        """Returns where each shard is, and why it does not serve if it does not.

        Waits up to 60 s while Ray restarts the cluster's registry, as the other methods do.

        Raises:
            UnavailableError: The cluster is not running.
        """
        return list(self._view().shards)

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Waits until all shards serve.

        Args:
            timeout: Seconds to wait.

        Raises:
            InvalidArgumentError: `timeout` is not above 0.
            UnavailableError: A shard does not serve; the text names it and the reason.
        """
        timeout = _checks.positive("`timeout`", timeout)
        self._wait_for(lambda view: not view.problem, timeout, "is not ready")

    def scale(self, shards: int) -> None:
        """Changes the number of shards, while clients use the cluster: their calls wait, and continue afterwards.

        The servers stop, their directories are resharded in place, and new servers start: no item is lost or inserted
        twice, and keys stay valid. Calls wait for as long as it takes to read and write all items once; after the
        `reconnect_timeout` of their client, they raise `UnavailableError`.

        If it fails, the cluster continues with as many shards as it had.

        Args:
            shards: The new number, from 1 to 1,023.

        Raises:
            InvalidArgumentError: `shards` is not from 1 to 1,023, a table cannot be divided over this number of
                shards, or another process has started the cluster, without `detached`: the new shards would end with
                this process.
            UnavailableError: A shard does not respond, the nodes have too few resources, the cluster is being scaled
                already, or it is not running.
            StorageError: A directory cannot be read or written.
            EngramError: A new shard cannot open its store. The text names the shard.
        """
        shards = _checks.integer("`shards`", shards, high=MAX_SHARD_ID)
        self._view()
        scale(self._spec, self._registry, shards)

    def stop(self) -> None:
        """Stops all shards. `start` with the same path starts them again, with everything that was acknowledged.

        When it returns, the shards' directories are closed. Waiting calls of clients fail. Can be called again.

        Raises:
            UnavailableError: A shard does not respond.
        """
        try:
            manifest = _call(self.name, self._registry.manifest.remote)
        except UnavailableError as error:
            if isinstance(error.__cause__, ray.exceptions.ActorDiedError):
                return
            raise
        stop_shards(self._spec, shard_names(self._spec, manifest), close=True)
        end_actor(self._spec, registry_name(self.name), self._registry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cluster, (self._spec, self._registry)

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, {self.path!r})"

    def _view(self) -> ClusterView:
        view: ClusterView = _call(self.name, lambda: self._registry.wait.remote(-1, 0.0))
        return view

    def _wait_for(self, condition: Callable[[ClusterView], bool], timeout: float, failure: str) -> ClusterView:
        """Returns the first view that meets the condition; the error states `failure`."""
        deadline = time.monotonic() + timeout
        while not condition(view := self._view()):
            if time.monotonic() > deadline:
                raise UnavailableError(f"cluster `{self.name}` {failure} after {timeout:g} s: {view.problem}")
            time.sleep(POLL_INTERVAL)
        return view


def _call(name: str, read: Callable[[], Any]) -> Any:  # noqa: ANN401, what the registry returns
    """Returns what a registry replies; waits for one that Ray restarts, for example because its node has died."""
    deadline = time.monotonic() + RESTART_TIMEOUT
    while True:
        try:
            return ray.get(read())
        except ray.exceptions.RayActorError as error:
            if isinstance(error, ray.exceptions.ActorUnavailableError) and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL)
                continue
            raise UnavailableError(
                f"cluster `{name}` is not running, or its registry `{registry_name(name)}` is restarting: "
                f"{str(error).splitlines()[0]}"
            ) from error
