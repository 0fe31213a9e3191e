"""Tables sharded over the nodes of a Ray cluster, and workers that use them; see docs/distributed.md.

Needs Ray: `pip install 'engram-replay[ray]'`.
"""

from engram.distributed._ray import ray as _ray  # noqa: F401, first: an error for a missing Ray names the extra
from engram.distributed.cluster import Cluster
from engram.distributed.launch import connect, start
from engram.distributed.status import ShardStatus
from engram.distributed.weights import Weights
from engram.distributed.workers import RolloutWorkers, WorkerReport

__all__ = ["Cluster", "RolloutWorkers", "ShardStatus", "Weights", "WorkerReport", "connect", "start"]
