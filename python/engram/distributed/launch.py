"""Starts a cluster of shards on Ray, and finds one that runs."""

import os
import secrets
import typing
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from engram import _checks
from engram.distributed._ray import ray
from engram.distributed.cluster import Cluster
from engram.distributed.manifest import Manifest, read_manifest, write_manifest
from engram.distributed.registry import create_registry, shard_names
from engram.distributed.scaling import remove_old_generations, reshard
from engram.distributed.shards import end_actor, hold, kill_shards, start_shards
from engram.distributed.spec import ClusterSpec, Durability, Placement, checked_resources, registry_name
from engram.errors import InvalidArgumentError, UnavailableError
from engram.server import MAX_SHARD_ID
from engram.table import Table

__all__ = ["connect", "start"]

NAMESPACE = "engram"


def start(
    tables: Iterable[Table],
    *,
    path: str | PathLike[str],
    shards: int | None = None,
    name: str = "engram",
    durability: Durability = "disk",
    num_cpus: float = 1.0,
    resources: Mapping[str, float] | None = None,
    placement: Placement = "SPREAD",
    nodes: Iterable[str] = (),
    detached: bool = False,
    token: str | None = None,
    namespace: str = NAMESPACE,
) -> Cluster:
    """Starts one durable server per shard on the nodes of a Ray cluster, and waits until all of them serve.

        cluster = distributed.start([engram.Table("replay")], path="/shared/replay", shards=4)

    If a shard's process or node dies, Ray restarts the shard on a node with free resources, with the same directory;
    clients of `Cluster.client` follow. If `path` has a cluster with another number of shards, it is resharded first.

    Args:
        tables: Tables of the whole cluster: each shard has a part of `max_size`, `max_bytes` and the bounds of rate
            limiters; see docs/sharding.md. As in `Store.open`, tables that exist in the directory get this
            configuration.
        path: Directory of the cluster. It must be the same directory on all nodes that shards may run on, and on the
            node of the caller: on one machine any directory, otherwise one of a shared file system.
        shards: Number of shards. Default: as many as the directory has, or 1.
        name: Name by which `connect` finds the cluster, and which the directory remembers.
        durability: As in `Store.open`. `"process"` survives the death of a process; the death of a node only if `path`
            is on another machine that had received the writes.
        num_cpus: CPUs that Ray reserves for each shard.
        resources: Other resources of Ray that each shard needs, such as `{"storage_node": 1}`.
        placement: Strategy of the placement group: `"SPREAD"` prefers different nodes, `"STRICT_SPREAD"` requires them,
            `"PACK"` prefers few nodes, `"STRICT_PACK"` requires one.
        nodes: Ids of the nodes for shard 0, 1, ..., repeated if there are fewer nodes than shards. A shard whose node
            has died is started on another one. Replaces `placement`. Default: any nodes.
        detached: True if the cluster outlives the caller's Ray job. Otherwise it ends with it.
        token: Token that the servers require. Default: a random one, which `connect` knows.
        namespace: Ray's namespace of the cluster's actors.

    Returns:
        The cluster, whose shards all serve.

    Raises:
        InvalidArgumentError: An argument is invalid.
        StorageError: `path` belongs to another cluster, or a shard's directory cannot be opened. The text names the
            shard.
        EngramError: A shard has not started for another reason.
        UnavailableError: A cluster of this name runs already, or the nodes have too few resources.
    """
    tables = tuple(_checks.elements("`tables`", tables, "a sequence of tables"))
    for table in tables:
        _checks.instance_of("each element of `tables`", table, Table, "an engram.Table")
    _checks.choice("`durability`", durability, typing.get_args(Durability))
    _checks.choice("`placement`", placement, typing.get_args(Placement))
    _checks.boolean("`detached`", detached)
    if token is not None:
        _checks.secret("`token`", token)
    if shards is not None:
        shards = _checks.integer("`shards`", shards, high=MAX_SHARD_ID)
    num_cpus, checked = checked_resources(num_cpus, resources)
    spec = ClusterSpec(
        name=_name("`name`", name),
        namespace=_name("`namespace`", namespace),
        path=str(Path(_checks.path("`path`", path)).absolute()),
        tables=tables,
        durability=durability,
        num_cpus=num_cpus,
        resources=checked,
        placement=placement,
        nodes=tuple(_checks.elements("`nodes`", nodes, "a sequence of node ids")),
        token=token or secrets.token_hex(16),
        detached=detached,
    )
    if not ray.is_initialized():
        ray.init()
    _check_nodes(spec.nodes)
    return _start(spec, shards)


def _start(spec: ClusterSpec, shards: int | None) -> Cluster:
    manifest = read_manifest(spec.path, spec.name)
    first = manifest or Manifest.first(spec.name, shards or 1)
    try:
        registry = create_registry(spec, first, registry_name(spec.name))
    except ValueError as error:
        raise UnavailableError(
            f"cluster `{spec.name}` runs already in namespace `{spec.namespace}`; use "
            f"`engram.distributed.connect({spec.name!r})`, or give another `name`"
        ) from error
    hold(spec, registry_name(spec.name), registry)
    try:
        if manifest is None:
            write_manifest(spec.path, first)
        elif shards is not None and shards != len(manifest.shard_ids):
            first = reshard(spec.path, manifest, shards)
        start_shards(spec, first)
        cluster = Cluster(spec, registry)
        cluster.wait_until_ready()
        remove_old_generations(spec.path, first)
    except BaseException:
        kill_shards(spec, shard_names(spec, first))
        end_actor(spec, registry_name(spec.name), registry)
        raise
    return cluster


def connect(name: str = "engram", *, namespace: str = NAMESPACE) -> Cluster:
    """Finds a running cluster, from any process of the Ray cluster.

    Calls `ray.init("auto")` if Ray is not initialized; the variable `RAY_ADDRESS` replaces `"auto"`.

    Args:
        name: The `name` that was given to `start`.
        namespace: The `namespace` that was given to `start`.

    Returns:
        The cluster.

    Raises:
        InvalidArgumentError: An argument is invalid.
        UnavailableError: No cluster of this name runs.
    """
    name, namespace = _name("`name`", name), _name("`namespace`", namespace)
    if not ray.is_initialized():
        try:
            # Not `ray.init()`, which starts another Ray cluster if it finds none.
            ray.init(os.environ.get("RAY_ADDRESS") or "auto")
        except ConnectionError as error:
            raise UnavailableError(
                f"no cluster `{name}` can be found, because this process is not connected to a Ray cluster and Ray "
                "finds none on this machine; call `ray.init` with the address of the Ray cluster first"
            ) from error
    try:
        registry = ray.get_actor(registry_name(name), namespace=namespace)
        spec = ray.get(registry.spec.remote())
    except (ValueError, ray.exceptions.RayActorError) as error:
        raise UnavailableError(
            f"no cluster `{name}` runs in namespace `{namespace}` of this Ray cluster; start it with "
            "`engram.distributed.start`"
        ) from error
    return Cluster(spec, registry)


def _name(what: str, value: str) -> str:
    _checks.text(what, value)
    if not value or "/" in value:
        raise InvalidArgumentError(f"{what} must be a text without `/`, and not empty; got {value!r}")
    return value


def _check_nodes(nodes: tuple[str, ...]) -> None:
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for node in nodes:
        if node not in alive:
            raise InvalidArgumentError(
                f"`nodes` must be ids of nodes that are alive, such as {min(alive)!r}; got {node!r}; see `ray.nodes()`"
            )
