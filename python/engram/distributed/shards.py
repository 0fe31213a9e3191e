"""Starts and stops the actors of one generation of shards."""

import time
from typing import Any

from ray.util.placement_group import PlacementGroup

from engram.distributed._ray import ray
from engram.distributed.manifest import Manifest
from engram.distributed.registry import shard_names
from engram.distributed.shard import Shard
from engram.distributed.spec import ClusterSpec, ShardSpec, shard_name
from engram.errors import EngramError, StorageError, UnavailableError
from engram.sharded import divide
from engram.table import Table

__all__ = [
    "divide_tables",
    "end_actor",
    "hold",
    "is_held",
    "kill_shards",
    "place_shards",
    "start_shards",
    "stop_shards",
]

_held: dict[tuple[str, str], "ray.actor.ActorHandle"] = {}
"""Handles by namespace and name of the actors that this process started: Ray ends actors without handles unless they
are detached."""

START_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0
RETRY_INTERVAL = 0.2


def start_shards(spec: ClusterSpec, manifest: Manifest, strategies: list[dict[str, Any]] | None = None) -> None:
    """Starts a shard for each directory, and waits until all of them serve. If that fails, no shard remains.

    Args:
        spec: What the cluster is started with.
        manifest: The shards.
        strategies: What `place_shards` returned. Default: it is called.

    Raises:
        InvalidArgumentError: A table cannot be divided over this number of shards.
        UnavailableError: The nodes lack the resources.
        EngramError: A store cannot be opened; the text names the shard.
    """
    count = len(manifest.shard_ids)
    tables = divide_tables(spec, count)
    directories = manifest.directories(spec.path)
    if strategies is None:
        strategies = place_shards(spec, count, START_TIMEOUT)
    try:
        actors = []
        for index, shard_id in enumerate(manifest.shard_ids):
            name = shard_name(spec.name, shard_id)
            options = ray.remote(Shard).options(
                **spec.actor_options(),
                name=name,
                num_cpus=spec.num_cpus,
                resources=spec.resources,
                max_concurrency=4,
                **strategies[index],
            )
            actor = options.remote(
                ShardSpec(
                    cluster=spec,
                    shard_id=shard_id,
                    directory=directories[index],
                    tables=tables,
                ),
                manifest,
            )
            hold(spec, name, actor)
            actors.append(actor)
        deadline = time.monotonic() + START_TIMEOUT
        for index, actor in enumerate(actors):
            try:
                ray.get(actor.address.remote(), timeout=max(0.1, deadline - time.monotonic()))
            except (ray.exceptions.RayError, TimeoutError) as error:
                raise _start_error(index, manifest.shard_ids[index], directories[index], error) from error
    except BaseException:
        kill_shards(spec, shard_names(spec, manifest))
        raise


def divide_tables(spec: ClusterSpec, count: int) -> tuple[Table, ...]:
    """Returns the tables of each of `count` shards.

    Raises:
        InvalidArgumentError: A table cannot be divided over this number of shards.
    """
    return tuple(divide(table, count) for table in spec.tables)


def hold(spec: ClusterSpec, name: str, actor: "ray.actor.ActorHandle") -> None:
    """Keeps an actor until this process ends, or `stop_shards` or `end_actor` ends it."""
    _held[spec.namespace, name] = actor


def is_held(spec: ClusterSpec, name: str) -> bool:
    """True if the actor ends with this process."""
    return (spec.namespace, name) in _held


def end_actor(spec: ClusterSpec, name: str, actor: "ray.actor.ActorHandle") -> None:
    """Ends an actor for good."""
    ray.kill(actor, no_restart=True)
    _held.pop((spec.namespace, name), None)


def _start_error(index: int, shard_id: int, directory: str, error: Exception) -> EngramError:
    which = f"shard {index} (id {shard_id}, {directory}) has not started"
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return UnavailableError(
            f"{which} within {START_TIMEOUT:g} s; free the resources that it needs, or give "
            "smaller ones: see `ray status`"
        )
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return StorageError(f"{which}: {lines[-1] if lines else type(cause).__name__}")


def place_shards(spec: ClusterSpec, count: int, timeout: float) -> list[dict[str, Any]]:
    """Returns the scheduling options of each shard: its node, or a bundle of a placement group, which is reserved.

    Raises:
        UnavailableError: The nodes lack the resources.
    """
    strategies = ray.util.scheduling_strategies
    if spec.nodes:
        return [
            {
                "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(
                    node_id=spec.nodes[index % len(spec.nodes)], soft=True
                )
            }
            for index in range(count)
        ]
    bundle = {"CPU": spec.num_cpus, **spec.resources} if spec.num_cpus else {"CPU": 0.001, **spec.resources}
    group = ray.util.placement_group(
        [bundle] * count,
        strategy=spec.placement,
        name=_group_name(spec),
        lifetime="detached" if spec.detached else None,
    )
    try:
        is_reserved = group.wait(timeout)
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    if not is_reserved:
        ray.util.remove_placement_group(group)
        free = ray.available_resources()
        raise UnavailableError(
            f"the nodes of the Ray cluster have no room for {count} shards of {bundle} with placement "
            f"{spec.placement}; free are { ({name: free.get(name, 0.0) for name in bundle}) }; give smaller `num_cpus` "
            "or `resources`, another `placement`, or fewer shards"
        )
    return [
        {
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
        }
        for index in range(count)
    ]


def _group_name(spec: ClusterSpec) -> str:
    return f"{spec.namespace}/{spec.name}"


def stop_shards(spec: ClusterSpec, names: list[str], *, close: bool) -> None:
    """Ends the actors of the shards, and frees their resources; `close` as in `Shard.stop`.

    Raises:
        UnavailableError: A shard that Ray is restarting has not come back in time.
    """
    actors = [(name, _find(spec, name)) for name in names]
    deadline = time.monotonic() + STOP_TIMEOUT
    for name, actor in actors:
        while actor is not None:
            try:
                ray.get(actor.stop.remote(close=close), timeout=max(0.1, deadline - time.monotonic()))
                break
            except ray.exceptions.ActorUnavailableError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"actor `{name}` is still unavailable after {STOP_TIMEOUT:g} s (Ray may be restarting it): "
                        f"{error}"
                    ) from error
                time.sleep(RETRY_INTERVAL)
            except ray.exceptions.GetTimeoutError as error:
                raise UnavailableError(f"actor `{name}` does not stop within {STOP_TIMEOUT:g} s") from error
            except ray.exceptions.RayActorError:
                if _is_dead(actor):
                    break
                time.sleep(RETRY_INTERVAL)
    kill_shards(spec, names)


def kill_shards(spec: ClusterSpec, names: list[str]) -> None:
    """Ends the actors of the shards without closing their stores, and frees their resources."""
    for name in names:
        actor = _find(spec, name)
        if actor is not None:
            end_actor(spec, name, actor)
    # Not `ray.util.get_placement_group`, which finds only those of jobs with the same namespace of Ray.
    for group_id, group in ray.util.placement_group_table().items():
        if group["name"] == _group_name(spec) and group["state"] != "REMOVED":
            ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id))))


def _find(spec: ClusterSpec, name: str) -> "ray.actor.ActorHandle | None":
    try:
        return ray.get_actor(name, namespace=spec.namespace)
    except ValueError:
        return None


def _is_dead(actor: "ray.actor.ActorHandle") -> bool:
    """True if Ray will not restart the actor."""
    try:
        ray.get(actor.pid.remote(), timeout=5)
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return False
    except ray.exceptions.RayActorError:
        return True
    return False
