"""ALF's replay buffers on Engram's engine, under ALF's module paths. They need PyTorch.

    from engram.compat.alf import ReplayBuffer, TensorSpec

    buffer = ReplayBuffer({"observation": TensorSpec((4,))}, num_environments=8, max_length=100_000)

Everything is imported on first use.
"""

from typing import TYPE_CHECKING

from engram._lazy_modules import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "experience_replayers.replay_buffer": ("BatchInfo", "ReplayBuffer"),
        "experience_replayers.segment_tree": ("MaxSegmentTree", "MinSegmentTree", "SegmentTree", "SumSegmentTree"),
        "tensor_specs": ("TensorSpec",),
        "utils.data_buffer": ("DataBuffer", "RingBuffer"),
    },
)
