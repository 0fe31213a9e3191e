"""Batches by value: what replaces the native object of a batch that is pickled or copied."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engram._importance_weights import Divisor, importance_weights

if TYPE_CHECKING:
    from engram import _engram

__all__ = ["BatchValues"]


@dataclass(frozen=True, slots=True)
class BatchValues:
    """The methods of `_engram.Batch` that a copied batch needs.

    Attributes:
        squeezed: For each column, True if it has no time axis.
        probability: f64 `[B]`: probability with which each item was drawn.
        min_probability: f64 `[B]`: smallest probability above 0 of an item of the table when each item was drawn.
        candidates: f64 `[B]`: number of items with a probability above 0 when each item was drawn.
    """

    squeezed: list[bool]
    probability: npt.NDArray[np.float64]
    min_probability: npt.NDArray[np.float64]
    candidates: npt.NDArray[np.float64]

    @classmethod
    def of(cls, batch: "_engram.Batch | BatchValues") -> "BatchValues":
        """Returns the values of a batch."""
        if isinstance(batch, BatchValues):
            return batch
        return cls(batch.squeezed, batch.probability(), batch.min_probability(), batch.candidates())

    def __len__(self) -> int:
        return len(self.probability)

    def importance_weights(self, beta: float, normalize: Divisor) -> npt.NDArray[np.float32]:
        """Returns f32 `[B]`; see `Batch.importance_weights`."""
        weights = importance_weights(
            self.probability, self.min_probability, self.candidates, beta=beta, normalize=normalize
        )
        return np.asarray(weights, np.float32)
