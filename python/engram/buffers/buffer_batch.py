"""Batches that a replay buffer samples."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram._batch_base import BatchBase, BatchInfoBase

if TYPE_CHECKING:
    from engram.buffers._device_buffer import DeviceBatch

__all__ = ["BufferBatch", "BufferBatchInfo", "BufferDivisor"]

BufferDivisor: TypeAlias = Literal["batch", "buffer"] | None
"""The divisor of weights: the largest in the batch, the largest that any item of the buffer could have, or none."""


class BufferBatchInfo(BatchInfoBase):
    """Keys, probabilities and other metadata of a batch's items; each array is created on first access.

    Args:
        native: The batch, as the native engine returned it.
    """

    __slots__ = ()

    _native: "_engram.BufferBatch | DeviceBatch"
    _names = ("key", "env_id", "position", "probability", "priority", "relabeled")

    @property
    def key(self) -> npt.NDArray[np.uint64]:
        """u64 `[B]`: keys of the items, as `ReplayBuffer.update_priorities` takes them.

        The buffer never uses a key again for another item, not even after `clear`.
        """
        return self._array("key")

    @property
    def env_id(self) -> npt.NDArray[np.int64]:
        """i64 `[B]`: environment of each item."""
        return self._array("env_id")

    @property
    def position(self) -> npt.NDArray[np.uint64]:
        """u64 `[B]`: position of each item's chosen step: the number of steps that its environment had before it.

        For `Sequences`, the chosen step follows the burn-in.
        """
        return self._array("position")

    @property
    def probability(self) -> npt.NDArray[np.float64]:
        """f64 `[B]`: probability with which a single draw chooses the item."""
        return self._array("probability")

    @property
    def priority(self) -> npt.NDArray[np.float64] | None:
        """f64 `[B]`: priority of each item when it was drawn; None if the sampler is not Prioritized."""
        return self._array("priority")

    @property
    def relabeled(self) -> npt.NDArray[np.bool_] | None:
        """True for the items that got another goal, bool `[B]`; None without `HER`, and in a scan."""
        return self._array("relabeled")


class BufferBatch(BatchBase):
    """Items that a `ReplayBuffer` returned, stacked along a leading batch axis.

    Args:
        native: The batch, as the native engine returned it.

    Attributes:
        data: Nest of the items' data, with NumPy arrays `[B, ...]`, or `[B, T, ...]` for sequences and episodes. The
            arrays own their memory. Nothing changes them later, unless they are given as `out` of another call. With
            `storage` on a device, they are PyTorch tensors or JAX arrays there.
        info: Keys, probabilities and other metadata, one per item.
    """

    __slots__ = ()

    _native: "_engram.BufferBatch | DeviceBatch"

    def __init__(self, native: "_engram.BufferBatch | DeviceBatch") -> None:
        self._native = native
        self.data = native.data
        self.info = BufferBatchInfo(native)

    def importance_weights(self, beta: float = 1.0, *, normalize: BufferDivisor = "batch") -> npt.NDArray[np.float32]:
        """Computes importance-sampling weights, which correct for drawing some items more often than others.

        The weight of an item is `(1 / (N * p)) ** beta`. Here `p` is the probability of the item, and `N` is the number
        of items that could have been drawn, with a probability above 0 (Schaul et al. 2016, section 3.4).

        Args:
            beta: How much of the bias to correct, from 0 (nothing) to 1 (all of it).
            normalize: Divisor of the weights: `"batch"`, the largest weight in this batch; `"buffer"`, the largest that
                any item of the buffer could have. Both keep weights at most 1. None: the weights are not divided.

        Returns:
            f32 `[B]`: the weights.

        Raises:
            InvalidArgumentError: `beta` is not finite, or `normalize` is none of these values.
        """
        _checks.choice("`normalize`", normalize, ("batch", "buffer", None))
        return self._native.importance_weights(_checks.finite("`beta`", beta), normalize)
