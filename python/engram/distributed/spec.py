"""What a cluster was started with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engram import _checks
from engram.errors import InvalidArgumentError
from engram.table import Table

__all__ = [
    "ClusterSpec",
    "Durability",
    "Placement",
    "ShardSpec",
    "checked_resources",
    "registry_name",
    "shard_name",
]

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
    shard_id: int
    directory: str
    tables: tuple[Table, ...]


def checked_resources(num_cpus: float, resources: Mapping[str, float] | None) -> tuple[float, dict[str, float]]:
    """Returns the arguments `num_cpus` and `resources` of shards or workers as Ray's options.

    Raises:
        InvalidArgumentError: They are no numbers of at least 0.
    """
    if resources is not None and not isinstance(resources, Mapping):
        raise InvalidArgumentError(
            "`resources` must map names of Ray's resources to numbers, such as {'storage_node': 1}; "
            f"got {_checks.short_repr(resources)}"
        )
    for name, value in (resources or {}).items():
        _checks.text("each key of `resources`", name)
        _at_least_0(f"`resources[{name!r}]`", value)
    return _at_least_0("`num_cpus`", num_cpus), dict(resources or {})


def _at_least_0(what: str, value: float) -> float:
    number = _checks.finite(what, value)
    if number < 0:
        raise InvalidArgumentError(f"{what} must be at least 0; got {number:g}")
    return number


def registry_name(cluster: str) -> str:
    """Name of the actor that knows where the shards are."""
    return f"{cluster}/registry"


def shard_name(cluster: str, shard_id: int) -> str:
    """Name of a shard's actor."""
    return f"{cluster}/shard-{shard_id}"
