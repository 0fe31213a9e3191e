"""One dataset of FTW's, described."""

from dataclasses import dataclass
from typing import Any

from engram.compat.reverb._dataset_common import ElementSource

__all__ = ["DatasetOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """What a dataset reads, and what it makes of it.

    Attributes:
        table: Its name.
        source: How items are fetched, and what elements they make.
        whole_items: Elements are whole items.
        nest: Of an element's data, of `TensorSpec`.
        batch_size: Elements per batch, exactly; None: single elements.
        prefetch_size: Batches made ahead.
        allows_ragged: Elements of a batch may differ in shape.
        num_parallel_calls: Threads that read from several servers.
        deterministic: Servers take turns, and one that has nothing is waited for.
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
