"""One dataset of FTW's, described."""

from dataclasses import dataclass
from typing import Any

from engram.compat.reverb._dataset_face import Source

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a dataset reads, and what it makes of it.

    Attributes:
        table: Its name.
        source: How items are fetched, and what elements they make.
        is_items: Elements are whole items.
        nest: Of an element's data, of `TensorSpec`.
        batch_size: Elements per batch, exactly; None: single elements.
        prefetch_size: Batches made ahead.
        may_differ: Elements of a batch may differ in shape.
        num_parallel_calls: Threads that read from several servers.
        deterministic: Servers take turns, and one that has nothing is waited for.
    """

    table: str
    source: Source
    is_items: bool
    nest: Any
    batch_size: int | None
    prefetch_size: int
    may_differ: bool
    num_parallel_calls: int
    deterministic: bool
