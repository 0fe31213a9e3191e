"""Reverb's Python API on the engine of Engram, for code that was written for Reverb.

    import engram.compat.reverb as reverb

Writers and datasets are imported when they are first used. TensorFlow is needed by what returns its tensors, and by
nothing else.
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

_LATER = {
    "PatternDataset": "pattern_dataset",
    "ReplayDataset": "replay_dataset",
    "TFClient": "tf_client",
    "TimestepDataset": "timestep_dataset",
    "TrajectoryColumn": "trajectory_writer",
    "TrajectoryDataset": "trajectory_dataset",
    "TrajectoryWriter": "trajectory_writer",
    "Writer": "writer",
}
"""Classes that are imported when they are first used, and the modules they are in."""

_MODULES = {"structured": "structured_writer", **{module: module for module in (*_LATER.values(), "structured_writer")}}


def __getattr__(name: str) -> Any:  # noqa: ANN401, a class or a module
    if name in _LATER:
        found = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    elif name in _MODULES:
        found = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
