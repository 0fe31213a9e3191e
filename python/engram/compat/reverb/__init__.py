"""Reverb's Python API on Engram's engine, for code that was written for Reverb.

    import engram.compat.reverb as reverb

Only datasets and `TFClient`, which return tensors, need TensorFlow; they are imported on first use.
"""

from typing import TYPE_CHECKING

from engram._lazy_modules import lazy_names
from engram.compat.reverb import errors, item_selectors, rate_limiters, replay_sample, reverb_types, tensor_spec
from engram.compat.reverb import item_selectors as selectors
from engram.compat.reverb import structured_writer as structured
from engram.compat.reverb._install import install_as_reverb
from engram.compat.reverb.client import Client
from engram.compat.reverb.errors import DeadlineExceededError, ReverbError
from engram.compat.reverb.platform.default import checkpointers
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.server import Server, Table
from engram.compat.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter
from engram.compat.reverb.writer import Writer

if TYPE_CHECKING:
    from engram.compat.reverb.pattern_dataset import PatternDataset
    from engram.compat.reverb.replay_dataset import ReplayDataset
    from engram.compat.reverb.tf_client import TFClient
    from engram.compat.reverb.timestep_dataset import TimestepDataset
    from engram.compat.reverb.trajectory_dataset import TrajectoryDataset

__all__ = [
    "Client",
    "DeadlineExceededError",
    "PatternDataset",
    "ReplayDataset",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "TFClient",
    "Table",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "Writer",
    "checkpointers",
    "errors",
    "install_as_reverb",
    "item_selectors",
    "rate_limiters",
    "replay_sample",
    "reverb_types",
    "selectors",
    "structured",
    "tensor_spec",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "pattern_dataset": ("PatternDataset",),
        "replay_dataset": ("ReplayDataset",),
        "tf_client": ("TFClient",),
        "timestep_dataset": ("TimestepDataset",),
        "trajectory_dataset": ("TrajectoryDataset",),
    },
)
