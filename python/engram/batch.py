"""Batches: what sampling returns."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from engram import _engram

__all__ = ["Batch", "BatchInfo", "Sample"]


class BatchInfo:
    """What is known about the items of a batch; each array is made when first asked for.

    Attributes:
        key: u64 `[B]`, the items' keys, to update their priorities with.
        probability: f64 `[B]`, with which each was drawn; 1 for the deterministic selectors.
        priority: f64 `[B]`, when drawn.
        times_sampled: i32 `[B]`, this time included.
        table_size: i64 `[B]`, items in the table when each was drawn.
    """

    __slots__ = ("_made", "_native")

    def __init__(self, native: _engram.Batch) -> None:
        self._native = native
        self._made: dict[str, npt.NDArray[Any]] = {}

    def _get(self, name: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        array = self._made.get(name)
        if array is None:
            array = self._made[name] = make()
        return array

    @property
    def key(self) -> npt.NDArray[np.uint64]:
        """u64 `[B]`: the items' keys."""
        return self._get("key", self._native.key)

    @property
    def probability(self) -> npt.NDArray[np.float64]:
        """f64 `[B]`: with which each was drawn."""
        return self._get("probability", self._native.probability)

    @property
    def priority(self) -> npt.NDArray[np.float64]:
        """f64 `[B]`: when drawn."""
        return self._get("priority", self._native.priority)

    @property
    def times_sampled(self) -> npt.NDArray[np.int32]:
        """i32 `[B]`: this time included."""
        return self._get("times_sampled", self._native.times_sampled)

    @property
    def table_size(self) -> npt.NDArray[np.int64]:
        """i64 `[B]`: items in the table at each draw."""
        return self._get("table_size", self._native.table_size)


class Batch:
    """Items side by side.

    Attributes:
        data: The nest that was written, its leaves NumPy arrays `[B, T, ...]` (`[B, ...]` for
            squeezed columns). They own their memory: nothing changes them later.
        info: Keys, probabilities, priorities and the like, one per item.
        row_splits: None, unless items differ in length: then the nest of `data` with i64 `[B + 1]`
            leaves, and row `i` of a ragged column `x` is `x[splits[i]:splits[i + 1]]`. A column
            that is even all the same has None there.
        lengths: None, unless `pad` was asked for and items differ in length: then likewise, with
            i64 `[B]` leaves.
    """

    __slots__ = ("_native", "data", "info", "lengths", "row_splits")

    def __init__(self, native: _engram.Batch) -> None:
        self._native = native
        self.data: Any = native.data
        self.info = BatchInfo(native)
        self.row_splits: Any = native.row_splits
        self.lengths: Any = native.lengths

    def __len__(self) -> int:
        return len(self._native)

    @property
    def squeezed(self) -> Any:  # noqa: ANN401, a nest like `data`
        """The nest of `data` with a bool for each column: True where it has no time axis."""
        structure = _engram.flatten(self.data)[2]
        return _engram.unflatten(structure, self._native.squeezed)

    @property
    def mask(self) -> Any:  # noqa: ANN401, a nest like `data`
        """The nest of `data` with bool `[B, T]` leaves: True where a padded column holds a step.

        None where nothing was padded.
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

    def importance_weights(
        self, beta: float = 1.0, *, normalize: Literal["batch", "table"] | None = "batch"
    ) -> npt.NDArray[np.float32]:
        """Corrections for drawing some items more often than others.

        `(1 / (N * p)) ** beta` with `p` an item's probability and `N` the number of items that could
        have been drawn, those of priority 0 not counted (Schaul et al. 2016, section 3.4).

        Args:
            beta: How much of the bias to correct: 0 none, 1 all.
            normalize: What to divide by, so that weights only ever scale down: the largest weight in
                this `"batch"`, the largest that any item of the `"table"` could have, or nothing.

        Returns:
            f32 `[B]`.
        """
        return self._native.importance_weights(beta, normalize)

    def __repr__(self) -> str:
        return f"Batch({len(self)} items)"


class Sample(NamedTuple):
    """A single item: what iterating without a batch size yields.

    Attributes:
        info: As in a batch, with arrays `[1]`.
        data: The nest that was written, its leaves `[T, ...]` (`[...]` for squeezed columns).
    """

    info: BatchInfo
    data: Any
