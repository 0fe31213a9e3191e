"""Converts the engine's table info to Reverb's `TableInfo`."""

import sys
from typing import assert_never

import engram
from engram import Nest, selectors
from engram.compat.reverb import _nest, _table_note
from engram.compat.reverb.reverb_types import (
    HeapOptions,
    KeyDistributionOptions,
    PrioritizedOptions,
    RateLimiterCallStats,
    RateLimiterInfo,
    TableInfo,
    TableWorkerTime,
)
from engram.compat.reverb.tensor_spec import TensorSpec, as_public_spec

__all__ = ["signature_of", "to_reverb_info"]


def to_reverb_info(info: engram.TableInfo) -> TableInfo:
    """Returns Reverb's `TableInfo` of any table, including tables that this package did not create."""
    note = _table_note.decode(info.note)
    times = note.max_times_sampled  # as passed to Reverb's `Table`, where less than 1 means no limit
    signature = signature_of(info)
    limiter = info.rate_limiter
    return TableInfo(
        name=info.name,
        sampler_options=_selector_options(info.sampler),
        remover_options=_selector_options(info.remover),
        max_size=info.max_size,
        max_times_sampled=(info.max_times_sampled or 0) if times is None else times,
        rate_limiter_info=RateLimiterInfo(
            samples_per_insert=limiter.samples_per_insert,
            min_diff=_finite(limiter.min_diff),
            max_diff=_finite(limiter.max_diff),
            min_size_to_sample=limiter.min_size,
            insert_stats=RateLimiterCallStats(completed=info.inserts),
            sample_stats=RateLimiterCallStats(completed=info.samples),
        ),
        signature=None if signature is None else _nest.map_structure(as_public_spec, signature),
        current_size=info.size - info.hidden_items,  # Reverb does not count items that are leased for the last time
        num_episodes=info.num_episodes,
        num_deleted_episodes=info.num_deleted_episodes,
        num_unique_samples=info.num_unique_samples,
        table_worker_time=TableWorkerTime(),
    )


def signature_of(info: engram.TableInfo) -> Nest:
    """Returns the table's signature: a nest of this package's specs, or None.

    For a table that this package did not create, it is the engine's signature.
    """
    signature = _table_note.decode(info.note).signature
    if signature is None and info.signature is not None:
        return _nest.map_structure(lambda spec: TensorSpec(spec.shape, spec.dtype, spec.name), info.signature)
    return signature


def _selector_options(selector: selectors.Selector) -> KeyDistributionOptions:
    match selector:
        case selectors.Prioritized():
            return KeyDistributionOptions(prioritized=PrioritizedOptions(priority_exponent=selector.exponent))
        case selectors.MinHeap() | selectors.MaxHeap():
            heap = HeapOptions(min_heap=isinstance(selector, selectors.MinHeap))
            return KeyDistributionOptions(heap=heap, is_deterministic=True)
        case selectors.Uniform():
            return KeyDistributionOptions(uniform=True)
        case selectors.Fifo():
            return KeyDistributionOptions(fifo=True, is_deterministic=True)
        case selectors.Lifo():
            return KeyDistributionOptions(lifo=True, is_deterministic=True)
        case _:
            assert_never(selector)


def _finite(bound: float) -> float:
    """Replaces an infinity by the largest float, as Reverb does."""
    return max(-sys.float_info.max, min(sys.float_info.max, bound))
