"""The options of an FTW dataset."""

from dataclasses import dataclass
from typing import Any

from engram.compat.reverb._dataset_common import ElementSource

__all__ = ["DatasetOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """What a dataset reads, and how it builds batches.

    Attributes:
        nest: A nest of `TensorSpec`: the data of an element.
        batch_size: Number of elements per batch; None for single elements.
        num_parallel_calls: Number of threads that read from several stores. Used with TensorFlow only.
        deterministic: If True, stores are read in strict rotation. If False, a store without items is skipped.
    """

    table: str
    source: ElementSource
    whole_items: bool
    nest: Any
    batch_size: int | None
    prefetch_size: int
    allows_ragged: bool
    num_parallel_calls: int
    deterministic: bool
