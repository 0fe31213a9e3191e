"""Replay buffers of one process, in memory or in a mapped file, which sample steps, transitions or sequences.

See docs/buffers.md. For tables that several processes share, or that survive a crash, see `engram.Store`.
"""

from engram.buffers.buffer_batch import BufferBatch, BufferBatchInfo
from engram.buffers.items import Sequences, Steps, Transitions
from engram.buffers.replay_buffer import ReplayBuffer
from engram.buffers.storage import MappedFile
from engram.buffers.transforms import FrameStack

__all__ = [
    "BufferBatch",
    "BufferBatchInfo",
    "FrameStack",
    "MappedFile",
    "ReplayBuffer",
    "Sequences",
    "Steps",
    "Transitions",
]
