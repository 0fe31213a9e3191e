"""Reverb's Python API on the engine of Engram: `import engram.compat.reverb as reverb`."""

import importlib
from typing import TYPE_CHECKING, Any

from engram.compat.reverb import errors, item_selectors, rate_limiters, replay_sample, reverb_types
from engram.compat.reverb import item_selectors as selectors
from engram.compat.reverb.client import Client
from engram.compat.reverb.errors import DeadlineExceededError, ReverbError
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.server import Server, Table

_ELSEWHERE = {
    "PatternDataset": "pattern_dataset",
    "ReplayDataset": "replay_dataset",
    "TFClient": "tf_client",
    "TimestepDataset": "timestep_dataset",
    "TrajectoryColumn": "trajectory_writer",
    "TrajectoryDataset": "trajectory_dataset",
    "TrajectoryWriter": "trajectory_writer",
    "Writer": "writer",
}
_MODULES = {"structured": "structured_writer", **{module: module for module in _ELSEWHERE.values()}}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
