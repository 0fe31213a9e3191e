"""What a table tells about itself."""

from dataclasses import dataclass
from typing import Any, ClassVar

from engram.compat.reverb._message import Message

__all__ = [
    "KeyDistributionOptions",
    "RateLimiterCallStats",
    "RateLimiterInfo",
    "TableInfo",
    "TableWorkerTime",
]


class Prioritized(Message):
    """Of `KeyDistributionOptions`: `priority_exponent`."""

    _fields: ClassVar = {"priority_exponent": 0.0}


class Heap(Message):
    """Of `KeyDistributionOptions`: `min_heap`."""

    _fields: ClassVar = {"min_heap": False}


class KeyDistributionOptions(Message):
    """A selector: one of `fifo`, `uniform`, `prioritized`, `heap` and `lifo`; and `is_deterministic`."""

    _fields: ClassVar = {
        "fifo": False,
        "uniform": False,
        "prioritized": Prioritized,
        "heap": Heap,
        "lifo": False,
        "is_deterministic": False,
    }
    _oneofs: ClassVar = {"distribution": ("fifo", "uniform", "prioritized", "heap", "lifo")}


class RateLimiterCallStats(Message):
    """Calls of one kind: how many were `completed` since the table was made or reset."""

    _fields: ClassVar = {"completed": 0}


class RateLimiterInfo(Message):
    """A rate limiter's four numbers, and how many inserts and samples it has let through."""

    _fields: ClassVar = {
        "samples_per_insert": 0.0,
        "min_diff": 0.0,
        "max_diff": 0.0,
        "min_size_to_sample": 0,
        "insert_stats": RateLimiterCallStats,
        "sample_stats": RateLimiterCallStats,
    }


class TableWorkerTime(Message):
    """Milliseconds that a table's thread spent; all are 0, for no table has a thread."""

    _fields: ClassVar = {
        "running_ms": 0,
        "sampling_ms": 0,
        "inserting_ms": 0,
        "sleeping_ms": 0,
        "waiting_for_sampling_ms": 0,
        "waiting_for_inserts_ms": 0,
    }


@dataclass
class TableInfo:
    """What a table is, and what it holds, at one moment.

    Attributes:
        name: Of the table.
        sampler_options: Its sampler.
        remover_options: Its remover.
        max_size: Most items it holds.
        max_times_sampled: As it was given: an item is removed after so many samples; below 1: never for that.
        rate_limiter_info: Its rate limiter, and how many inserts and samples there were.
        signature: A nest of tensor specs, TensorFlow's where that has been imported; None: any data.
        current_size: Items.
        num_episodes: Distinct episodes it holds steps of.
        num_deleted_episodes: Episodes whose last step left, since creation or reset.
        num_unique_samples: Items sampled at least once, since creation or reset.
        table_worker_time: All zeros.
    """

    name: str
    sampler_options: KeyDistributionOptions
    remover_options: KeyDistributionOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    table_worker_time: TableWorkerTime
