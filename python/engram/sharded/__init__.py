"""Tables that are sharded over several servers: see `docs/sharding.md`."""

from engram.sharded.client import ShardedClient
from engram.sharded.dividing import divide

__all__ = ["ShardedClient", "divide"]
