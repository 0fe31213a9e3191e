"""What a table tells about itself: records that are asked what protobuf messages are asked."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from engram.compat.reverb._message import Message
from engram.compat.reverb.item_selectors import Fifo, Lifo, Prioritized, Uniform
from engram.compat.reverb.item_selectors import HeapSelector as Heap

__all__ = [
    "Fifo",
    "Heap",
    "KeyDistributionOptions",
    "Lifo",
    "Prioritized",
    "RateLimiterCallStats",
    "RateLimiterInfo",
    "SelectorType",
    "SpecNest",
    "TableInfo",
    "TableWorkerTime",
    "Uniform",
]

SelectorType: TypeAlias = Fifo | Heap | Lifo | Prioritized | Uniform
"""What a table's items are chosen by."""

SpecNest: TypeAlias = Any
"""A nest of specs, such as a signature."""


class PrioritizedOptions(Message):
    """A choice by priority.

    Attributes:
        priority_exponent: float: an item is chosen with a probability proportional to `priority ** priority_exponent`.
    """

    _fields: ClassVar = {"priority_exponent": 0.0}


class HeapOptions(Message):
    """A choice of the item with the least or the greatest priority.

    Attributes:
        min_heap: bool: the least.
    """

    _fields: ClassVar = {"min_heap": False}


class KeyDistributionOptions(Message):
    """A selector: at most one of its fields but the last is set, and `WhichOneof("distribution")` says which.

    Attributes:
        fifo: bool: the item that was inserted first.
        uniform: bool: each with the same probability.
        prioritized: A message whose `priority_exponent` is a float.
        heap: A message whose `min_heap` is a bool: the item with the least priority; otherwise with the greatest.
        lifo: bool: the item that was inserted last.
        is_deterministic: bool: chance has no part in it.
    """

    _fields: ClassVar = {
        "fifo": False,
        "uniform": False,
        "prioritized": PrioritizedOptions,
        "heap": HeapOptions,
        "lifo": False,
        "is_deterministic": False,
    }
    _oneofs: ClassVar = {"distribution": ("fifo", "uniform", "prioritized", "heap", "lifo")}


class RateLimiterCallStats(Message):
    """Calls of one kind.

    Attributes:
        completed: int: how many were let through since the table was made or reset.
    """

    _fields: ClassVar = {"completed": 0}


class RateLimiterInfo(Message):
    """A rate limiter's four numbers, see `RateLimiter`, and how many inserts and samples it has let through.

    Attributes:
        samples_per_insert: float: how many samples each insert pays for.
        min_diff: float: lowest allowed `inserts * samples_per_insert - samples`.
        max_diff: float: highest allowed value of the same.
        min_size_to_sample: int: items that the table must hold before it is sampled.
        insert_stats: A `RateLimiterCallStats`: the inserts.
        sample_stats: A `RateLimiterCallStats`: the samples.
    """

    _fields: ClassVar = {
        "samples_per_insert": 0.0,
        "min_diff": 0.0,
        "max_diff": 0.0,
        "min_size_to_sample": 0,
        "insert_stats": RateLimiterCallStats,
        "sample_stats": RateLimiterCallStats,
    }


class TableWorkerTime(Message):
    """Milliseconds that a table's thread spent; all are 0, for no table has a thread.

    Attributes:
        running_ms: int: in all.
        sampling_ms: int: with samples.
        inserting_ms: int: with inserts.
        sleeping_ms: int: with nothing to do.
        waiting_for_sampling_ms: int: with waiting for samples.
        waiting_for_inserts_ms: int: with waiting for inserts.
    """

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
        sampler_options: How it chooses items to sample.
        remover_options: How it chooses items to remove when it is full.
        max_size: Most items it holds.
        max_times_sampled: As it was given: an item is removed after so many samples; below 1: never for that.
        rate_limiter_info: Its rate limiter, and how many inserts and samples there were.
        signature: A nest of tensor specs, TensorFlow's where that has been imported; None: any data.
        current_size: Items it holds.
        num_episodes: Distinct episodes it holds steps of.
        num_deleted_episodes: Episodes whose last step left, since creation or reset.
        num_unique_samples: Items sampled at least once, since creation or reset.
        table_worker_time: Milliseconds, all 0.
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
