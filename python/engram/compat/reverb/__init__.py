"""Reverb's Python API on Engram's engine, for code that was written for Reverb.

    import engram.compat.reverb as reverb

Writers and datasets are imported on first use. Only datasets and `TFClient`, which return tensors, need TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from engram.compat.reverb import errors, item_selectors, rate_limiters, replay_sample, reverb_types, tensor_spec
from engram.compat.reverb import item_selectors as selectors
from engram.compat.reverb._install import install_as_reverb
from engram.compat.reverb.client import Client
from engram.compat.reverb.errors import DeadlineExceededError, ReverbError
from engram.compat.reverb.platform.default import checkpointers
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.server import Server, Table

if TYPE_CHECKING:
    from engram.compat.reverb import structured_writer as structured
    from engram.compat.reverb.pattern_dataset import PatternDataset
    from engram.compat.reverb.replay_dataset import ReplayDataset
    from engram.compat.reverb.tf_client import TFClient
    from engram.compat.reverb.timestep_dataset import TimestepDataset
    from engram.compat.reverb.trajectory_dataset import TrajectoryDataset
    from engram.compat.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter
    from engram.compat.reverb.writer import Writer

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

_LAZY_CLASSES = {
    "PatternDataset": "pattern_dataset",
    "ReplayDataset": "replay_dataset",
    "TFClient": "tf_client",
    "TimestepDataset": "timestep_dataset",
    "TrajectoryColumn": "trajectory_writer",
    "TrajectoryDataset": "trajectory_dataset",
    "TrajectoryWriter": "trajectory_writer",
    "Writer": "writer",
}
"""Classes that are imported on first use, each with its module."""

_LAZY_MODULES = {
    "structured": "structured_writer",
    **{module: module for module in (*_LAZY_CLASSES.values(), "structured_writer")},
}


def __getattr__(name: str) -> Any:  # noqa: ANN401, a class or a module
    if name in _LAZY_CLASSES:
        imported = getattr(importlib.import_module(f"{__name__}.{_LAZY_CLASSES[name]}"), name)
    elif name in _LAZY_MODULES:
        imported = importlib.import_module(f"{__name__}.{_LAZY_MODULES[name]}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = imported
    return imported


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY_MODULES})
