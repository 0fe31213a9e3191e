"""Replay buffers of one process, in memory, in a mapped file or on a device.

They sample steps, transitions, sequences or episodes.

See docs/buffers.md. For tables that several processes share, or that survive a crash, see `engram.Store`.
"""

from engram.buffers.buffer_batch import BufferBatch, BufferBatchInfo
from engram.buffers.frame_stack import FrameStack
from engram.buffers.hindsight import HER
from engram.buffers.items import Episodes, Sequences, Steps, Transitions
from engram.buffers.recent_mix import RecentMix
from engram.buffers.replay_buffer import ReplayBuffer
from engram.buffers.storage import JaxArrays, MappedFile, TorchTensors

__all__ = [
    "HER",
    "BufferBatch",
    "BufferBatchInfo",
    "Episodes",
    "FrameStack",
    "JaxArrays",
    "MappedFile",
    "RecentMix",
    "ReplayBuffer",
    "Sequences",
    "Steps",
    "TorchTensors",
    "Transitions",
]
