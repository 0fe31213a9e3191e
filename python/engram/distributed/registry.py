"""The actor that knows where the shards are. Shards announce themselves; clients wait for changes."""

import asyncio
import time
from contextlib import suppress
from typing import Literal

from engram.distributed._ray import ray
from engram.distributed.manifest import Manifest
from engram.distributed.spec import ClusterSpec, shard_name
from engram.distributed.status import ClusterView, ShardStatus

__all__ = ["Registry"]

SILENCE = 2.0
"""Seconds without an announcement after which a shard counts as unreachable."""
CHECK_INTERVAL = 0.25


class Registry:
    """Holds no state that the shards do not announce again: Ray may restart it anywhere."""

    def __init__(self, spec: ClusterSpec, manifest: Manifest) -> None:
        self._spec = spec
        self._version = 0
        self._changed = asyncio.Event()
        self._scaling_to: int | None = None
        self._set_shards(manifest)
        self._watcher = asyncio.get_event_loop().create_task(self._watch())

    def _set_shards(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._states = [
            ShardStatus(index, shard_id, "starting", None, "is starting")
            for index, shard_id in enumerate(manifest.shard_ids)
        ]
        self._announced = [time.monotonic()] * len(self._states)

    async def spec(self) -> ClusterSpec:
        """Returns what the cluster was started with."""
        return self._spec

    async def manifest(self) -> Manifest:
        """Returns the shards of the newest generation."""
        return self._manifest

    async def begin_scaling(self, shards: int) -> str:
        """Marks the cluster as being resharded; returns why that is impossible, or an empty text."""
        if self._scaling_to is not None:
            return (
                f"cluster `{self._spec.name}` is being resharded to {self._scaling_to} shards; wait until it has ended"
            )
        self._scaling_to = shards
        self._publish()
        return ""

    async def end_scaling(self) -> None:
        """Marks the resharding as ended."""
        self._scaling_to = None
        self._publish()

    async def announce(self, manifest: Manifest, shard_id: int, address: str | None, reason: str) -> None:
        """Records that a shard is alive; an address of None means that it cannot serve yet, for this reason.

        The first shard of a new generation replaces all shards of the previous one. Announcements of older ones have
        no effect.
        """
        if manifest.generation > self._manifest.generation:
            self._set_shards(manifest)
            self._publish()
        if manifest.generation != self._manifest.generation:
            return
        index = manifest.shard_ids.index(shard_id)
        self._announced[index] = time.monotonic()
        state: Literal["serving", "starting"] = "starting" if address is None else "serving"
        self._update(index, ShardStatus(index, shard_id, state, address or self._states[index].address, reason))

    async def wait(self, version: int, at_most: float) -> ClusterView:
        """Returns the shards as soon as the version differs from the given one, or after `at_most` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                while self._version == version:
                    await self._changed.wait()
        return ClusterView(self._version, self._manifest.generation, tuple(self._states), self._scaling_to)

    def _update(self, index: int, state: ShardStatus) -> None:
        if state != self._states[index]:
            self._states[index] = state
            self._publish()

    def _publish(self) -> None:
        # Versions of a restarted registry must differ from those that clients have.
        self._version = max(self._version + 1, time.time_ns())
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            now = time.monotonic()
            for index, state in enumerate(self._states):
                # While it scales, the old shards are stopped.
                if now - self._announced[index] > SILENCE and state.state != "unreachable" and self._scaling_to is None:
                    reason = "does not respond; Ray restarts it if its process or node has died"
                    unreachable = ShardStatus(index, state.shard_id, "unreachable", state.address, reason)
                    self._update(index, unreachable)


def create_registry(spec: ClusterSpec, manifest: Manifest, name: str) -> "ray.actor.ActorHandle":
    """Creates the registry's actor on the node of the caller, as long as that node lives."""
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        node_id=ray.get_runtime_context().get_node_id(), soft=True
    )
    actor = ray.remote(Registry).options(
        **spec.actor_options(), name=name, num_cpus=0, max_concurrency=100_000, scheduling_strategy=here
    )
    return actor.remote(spec, manifest)


def shard_names(spec: ClusterSpec, manifest: Manifest) -> list[str]:
    """Names of the shards' actors."""
    return [shard_name(spec.name, shard_id) for shard_id in manifest.shard_ids]
