"""What a cluster was started with."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engram.table import Table

__all__ = ["ClusterSpec", "Durability", "Placement", "ShardSpec", "registry_name", "shard_name"]

Durability: TypeAlias = Literal["none", "process", "disk"]
Placement: TypeAlias = Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The arguments of `engram.distributed.start`, checked."""

    name: str
    namespace: str
    path: str
    tables: tuple[Table, ...]
    durability: Durability
    num_cpus: float
    resources: dict[str, float]
    placement: Placement
    nodes: tuple[str, ...]
    token: str
    detached: bool

    def actor_options(self) -> dict[str, Any]:
        """Options of all actors of the cluster: Ray restarts them as often as they die."""
        lifetime = "detached" if self.detached else "non_detached"
        return {"namespace": self.namespace, "lifetime": lifetime, "max_restarts": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """What a shard's actor needs to start, also after it has died."""

    cluster: ClusterSpec
    generation: int
    index: int
    shard_id: int
    directory: str
    tables: tuple[Table, ...]


def registry_name(cluster: str) -> str:
    """Name of the actor that knows where the shards are."""
    return f"{cluster}/registry"


def shard_name(cluster: str, shard_id: int) -> str:
    """Name of a shard's actor."""
    return f"{cluster}/shard-{shard_id}"
