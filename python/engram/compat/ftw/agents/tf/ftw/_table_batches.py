"""Batches of a table, sampled one at a time: nothing is fetched ahead, so the queue holds what is not trained yet."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from engram.compat.reverb import _nest
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.errors import InvalidArgumentError
from engram.table_store import TableStore

__all__ = ["TableBatches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBatches:
    """An endless iterator of batches, `ReplaySample`s of NumPy arrays `[B, T, ...]`. `nest`: specs of an item."""

    store: TableStore
    table: str
    batch_size: int
    nest: Any

    def __iter__(self) -> Self:
        """Returns this object: it keeps no position, and after an error of `next`, the next call samples again."""
        return self

    def __next__(self) -> ReplaySample:
        """Returns a batch, once the table can supply it."""
        batch = self.store.sample(self.table, self.batch_size)
        leaves, specs = _nest.flatten(batch.data), _nest.flatten(self.nest)
        found, expected = [np.shape(leaf)[1:] for leaf in leaves], [tuple(spec.shape) for spec in specs]
        if found != expected:
            raise InvalidArgumentError(
                f"items of table `{self.table}` do not fit the specs; got columns of the shapes {found}, expected"
                f" {expected}"
            )
        info = batch.info
        fields = SampleInfo(*(getattr(info, field) for field in SampleInfo._fields))
        return ReplaySample(fields, _nest.unflatten_as(self.nest, leaves))
