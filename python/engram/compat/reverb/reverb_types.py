"""The types of a table's info: records with the interface of protobuf messages."""

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
"""Any selector."""

SpecNest: TypeAlias = Any
"""A nest of specs, for example a signature."""


class PrioritizedOptions(Message):
    """Options of a prioritized selector.

    Attributes:
        priority_exponent: float: an item is selected with probability proportional to `priority ** priority_exponent`.
    """

    _fields: ClassVar = {"priority_exponent": 0.0}


class HeapOptions(Message):
    """Options of a heap selector.

    Attributes:
        min_heap: bool: True selects the lowest priority, False the highest.
    """

    _fields: ClassVar = {"min_heap": False}


class KeyDistributionOptions(Message):
    """A selector. At most one field except `is_deterministic` is set; `WhichOneof("distribution")` returns its name.

    Attributes:
        fifo: bool: selects the item that was inserted first.
        uniform: bool: selects each item with the same probability.
        prioritized: A message with `priority_exponent`, a float.
        heap: A message with `min_heap`, a bool: True selects the lowest priority, False the highest.
        lifo: bool: selects the item that was inserted last.
        is_deterministic: bool: True if the selection is not random.
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
    """Statistics of the inserts or of the samples of a table, counted in items.

    Attributes:
        completed: int: number of items inserted, or of samples drawn, since the table was created or reset.
    """

    _fields: ClassVar = {"completed": 0}


class RateLimiterInfo(Message):
    """The four numbers of a rate limiter, see `RateLimiter`, and the counts of inserts and samples.

    Attributes:
        samples_per_insert: float: number of samples that each insert allows.
        min_diff: float: minimum of `inserts * samples_per_insert - samples`.
        max_diff: float: maximum of the same difference.
        min_size_to_sample: int: number of items required for sampling.
        insert_stats: A `RateLimiterCallStats` of the inserts.
        sample_stats: A `RateLimiterCallStats` of the samples.
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
    """Milliseconds spent by a table's worker thread. All are 0, because Engram's tables have no threads.

    Attributes:
        running_ms: int: total time.
        sampling_ms: int: time spent on samples.
        inserting_ms: int: time spent on inserts.
        sleeping_ms: int: idle time.
        waiting_for_sampling_ms: int: time spent waiting for samples.
        waiting_for_inserts_ms: int: time spent waiting for inserts.
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
    """Options and counts of a table at one moment.

    Attributes:
        name: Name of the table.
        sampler_options: The selector of items to sample.
        remover_options: The selector of items to remove when the table is full.
        max_size: Maximum number of items.
        max_times_sampled: Number of samples after which an item is removed, as passed to `Table`; below 1 means no
            limit.
        rate_limiter_info: The rate limiter, and the counts of inserts and samples.
        signature: A nest of tensor specs, TensorFlow's if TensorFlow is imported; None allows any data.
        current_size: Number of items, without those whose last allowed sample was drawn but is not acknowledged yet.
        num_episodes: Number of distinct episodes with steps in the table.
        num_deleted_episodes: Number of episodes of which the table had steps and has none any more, since its
            creation or last reset.
        num_unique_samples: Number of items sampled at least once since the table was created or reset.
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
