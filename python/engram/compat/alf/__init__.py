"""ALF's replay buffers on Engram's engine, under ALF's module paths. They need PyTorch.

    from engram.compat.alf import ReplayBuffer, TensorSpec

    buffer = ReplayBuffer({"observation": TensorSpec((4,))}, num_environments=8, max_length=100_000)

Everything is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.compat.alf import experience_replayers, tensor_specs, utils
    from engram.compat.alf.experience_replayers.replay_buffer import BatchInfo, ReplayBuffer
    from engram.compat.alf.experience_replayers.segment_tree import (
        MaxSegmentTree,
        MinSegmentTree,
        SegmentTree,
        SumSegmentTree,
    )
    from engram.compat.alf.tensor_specs import TensorSpec
    from engram.compat.alf.utils.data_buffer import DataBuffer, RingBuffer

__all__ = [
    "BatchInfo",
    "DataBuffer",
    "MaxSegmentTree",
    "MinSegmentTree",
    "ReplayBuffer",
    "RingBuffer",
    "SegmentTree",
    "SumSegmentTree",
    "TensorSpec",
    "experience_replayers",
    "tensor_specs",
    "utils",
]

_CLASSES = {
    "BatchInfo": "experience_replayers.replay_buffer",
    "DataBuffer": "utils.data_buffer",
    "MaxSegmentTree": "experience_replayers.segment_tree",
    "MinSegmentTree": "experience_replayers.segment_tree",
    "ReplayBuffer": "experience_replayers.replay_buffer",
    "RingBuffer": "utils.data_buffer",
    "SegmentTree": "experience_replayers.segment_tree",
    "SumSegmentTree": "experience_replayers.segment_tree",
    "TensorSpec": "tensor_specs",
}
"""Classes, each with its module."""

_MODULES = frozenset({"experience_replayers", "tensor_specs", "utils"})


def __getattr__(name: str) -> Any:  # noqa: ANN401, a class or a module
    if name in _CLASSES:
        return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
