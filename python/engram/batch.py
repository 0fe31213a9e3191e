"""Batches, as sampling returns them."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import Nest, _engram
from engram._batch_base import BatchBase, BatchInfoBase
from engram._batch_values import BatchValues
from engram._importance_weights import Divisor, check_arguments

__all__ = ["Batch", "BatchInfo", "Sample"]

_Flattened: TypeAlias = tuple[list[Any], str]
"""Leaves and structure of a nest. They are pickled instead of the nest, whose named tuples may have classes that pickle
does not find."""


class BatchInfo(BatchInfoBase):
    """Keys, probabilities and other metadata of a batch's items; each array is created on first access.

    Can be pickled, like a `Batch`.
    """

    __slots__ = ()

    _native: "_engram.Batch | BatchValues"
    _names = ("key", "probability", "priority", "times_sampled", "table_size")

    @property
    def key(self) -> npt.NDArray[np.uint64]:
        """u64 `[B]`: keys of the items, as `update_priorities` and `delete` take them."""
        return self._array("key")

    @property
    def probability(self) -> npt.NDArray[np.float64]:
        """f64 `[B]`: probability with which each item was drawn; 1 for deterministic selectors."""
        return self._array("probability")

    @property
    def priority(self) -> npt.NDArray[np.float64]:
        """f64 `[B]`: priority of each item when it was drawn."""
        return self._array("priority")

    @property
    def times_sampled(self) -> npt.NDArray[np.int32]:
        """i32 `[B]`: number of times each item has been sampled, including this time."""
        return self._array("times_sampled")

    @property
    def table_size(self) -> npt.NDArray[np.int64]:
        """i64 `[B]`: number of items in the table when each item was drawn."""
        return self._array("table_size")

    def __getstate__(self) -> tuple[BatchValues, dict[str, npt.NDArray[Any]]]:
        return BatchValues.of(self._native), {name: self._array(name) for name in self._names}

    def __setstate__(self, state: tuple[BatchValues, dict[str, npt.NDArray[Any]]]) -> None:
        self._native, self._arrays = state


class Batch(BatchBase):
    """Sampled items, stacked along a leading batch axis.

    Can be pickled, also for another process. The copy's arrays are equal bit for bit; its named tuples have the same
    classes as those in a batch that a `Client` samples in that process.

    Attributes:
        data: Nest of the items' data. Its leaves are NumPy arrays `[B, T, ...]`, or `[B, ...]` for columns without a
            time axis. The arrays own their memory; nothing changes them later.
        info: Keys, probabilities, priorities and other metadata, one per item.
        row_splits: None if no column is ragged: all items have the same length, or `pad` was set. Otherwise the nest of
            `data` with i64 `[B + 1]` leaves: item `i` of a ragged column `x` is `x[splits[i]:splits[i + 1]]`. A column
            that is not ragged has None.
        lengths: None unless `pad` was set and items differ in length. Otherwise the nest of `data` with i64 `[B]`
            leaves: the lengths before padding. A column that is not padded has None.
    """

    __slots__ = ("lengths", "row_splits")

    _native: "_engram.Batch | BatchValues"

    def __init__(self, native: _engram.Batch) -> None:
        self._native = native
        self.data = native.data
        self.info = BatchInfo(native)
        self.row_splits: Any = native.row_splits
        self.lengths: Any = native.lengths

    @property
    def squeezed(self) -> Nest:
        """The nest of `data` with one bool per column: True if the column has no time axis."""
        structure = _engram.flatten(self.data)[2]
        return _engram.unflatten(structure, self._native.squeezed)

    @property
    def mask(self) -> Nest:
        """The nest of `data` with bool `[B, T]` leaves: True for steps, False for padding.

        A column that was not padded has None. The property is None if no column was padded.
        """
        if self.lengths is None:
            return None
        lengths, _, structure = _engram.flatten(self.lengths)
        columns = _engram.flatten(self.data)[0]
        masks = [
            None if length is None else np.arange(column.shape[1]) < length[:, None]
            for column, length in zip(columns, lengths, strict=True)
        ]
        return _engram.unflatten(structure, masks)

    def importance_weights(self, beta: float = 1.0, *, normalize: Divisor = "batch") -> npt.NDArray[np.float32]:
        """Computes importance-sampling weights, which correct for drawing some items more often than others.

        The weight of an item is `(1 / (N * p)) ** beta`. Here `p` is the probability of the item, and `N` is the number
        of items that could have been drawn, with a probability above 0 (Schaul et al. 2016, section 3.4).

        Args:
            beta: How much of the bias to correct, from 0 (nothing) to 1 (all of it).
            normalize: Divisor of the weights: `"batch"`, the largest weight in this batch; `"table"`, the largest that
                any item of the table could have. Both keep weights at most 1. None: the weights are not divided.

        Returns:
            f32 `[B]`: the weights.

        Raises:
            InvalidArgumentError: `beta` is not finite, or `normalize` is none of these values.
        """
        return self._native.importance_weights(check_arguments(beta, normalize), normalize)

    def __getstate__(self) -> tuple[BatchInfo, list[_Flattened]]:
        return self.info, [_flattened(nest) for nest in (self.data, self.row_splits, self.lengths)]

    def __setstate__(self, state: tuple[BatchInfo, list[_Flattened]]) -> None:
        self.info, nests = state
        self._native = self.info._native  # noqa: SLF001, which the two share
        self.data, self.row_splits, self.lengths = (_unflattened(*nest) for nest in nests)


class Sample(NamedTuple):
    """A single item, as a `Dataset` without a batch size yields it.

    Attributes:
        info: Metadata of the item; its arrays have the shape `[1]`.
        data: Nest of the item's data, with leaves `[T, ...]`, or `[...]` for columns without a time axis.
    """

    info: BatchInfo
    data: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _sample, (self.info, *_flattened(self.data))


def _sample(info: BatchInfo, leaves: list[Any], structure: str) -> Sample:
    """Creates a `Sample` from the parts that were pickled."""
    return Sample(info, _unflattened(leaves, structure))


def _flattened(nest: Nest) -> _Flattened:
    leaves, _, structure = _engram.flatten(nest)
    return leaves, structure


def _unflattened(leaves: list[Any], structure: str) -> Nest:
    return _engram.unflatten(structure, leaves)
