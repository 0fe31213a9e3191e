"""What a cluster's registry knows about its shards."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ClusterView", "ShardStatus"]


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard of a cluster, as seen by its registry.

    Attributes:
        index: Position of the shard among the shards, from 0.
        shard_id: Shard id, which is part of the keys of the shard's items. Each resharding gives new ones.
        state: `"unreachable"` after 2 seconds without an announcement of the shard, until Ray has started its actor
            again.
        address: `host:port` of its server, or the last known one; None before the first start.
        reason: Why the shard does not serve; empty if it does.
    """

    index: int
    shard_id: int
    state: Literal["serving", "starting", "unreachable"]
    address: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All shards at one moment. `version` grows with each change, `generation` with each resharding."""

    version: int
    generation: int
    shards: tuple[ShardStatus, ...]
    scaling_to: int | None
    """Number of shards that the cluster is being resharded to; None if it is not."""

    @property
    def addresses(self) -> list[str] | None:
        """Last known addresses of all shards; None until each has had one."""
        addresses = [shard.address for shard in self.shards if shard.address is not None]
        return addresses if self.shards and len(addresses) == len(self.shards) else None

    @property
    def problem(self) -> str:
        """Why calls may wait; empty if all shards serve."""
        # The shards are the new ones as soon as the first of them runs.
        if self.scaling_to not in {None, len(self.shards)}:
            return f"it is being resharded from {len(self.shards)} to {self.scaling_to} shards"
        return "; ".join(
            f"shard {shard.index} (id {shard.shard_id}, {_last_address(shard)}) {shard.reason}"
            for shard in self.shards
            if shard.state != "serving"
        )


def _last_address(shard: ShardStatus) -> str:
    return "address not known" if shard.address is None else f"last at {shard.address}"
