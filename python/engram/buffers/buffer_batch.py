"""Batches that a replay buffer samples."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram._display import aligned, array_text, column_rows, html_table
from engram._text import counted

if TYPE_CHECKING:
    from engram.buffers._device_buffer import DeviceBatch

__all__ = ["BufferBatch", "BufferBatchInfo", "BufferDivisor"]

BufferDivisor: TypeAlias = Literal["batch", "buffer"] | None
"""The divisor of weights: the largest in the batch, the largest that any item of the buffer could have, or none."""


class BufferBatchInfo:
    """Keys, probabilities and other metadata of a batch's items; each array is created on first access.

    Args:
        native: The batch, as the native engine returned it.

    Attributes:
        key: u64 `[B]`: keys of the items, as `ReplayBuffer.update_priorities` takes them. The buffer never uses a key
            again for another item, not even after `clear`.
        env_id: i64 `[B]`: environment of each item.
        position: u64 `[B]`: position of each item's chosen step, which for `Sequences` follows the burn-in: the number
            of steps that its environment had before it.
        probability: f64 `[B]`: probability with which a single draw chooses the item.
        priority: f64 `[B]`: priority of each item when it was drawn; None if the sampler is not Prioritized.
        relabeled: bool `[B]`: True for the items that got another goal; None without `HER`, and in a scan.
    """

    __slots__ = ("_arrays", "_native")

    def __init__(self, native: "_engram.BufferBatch | DeviceBatch") -> None:
        self._native = native
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def _array(self, name: str) -> npt.NDArray[Any]:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = getattr(self._native, name)()
        return array

    def _optional_array(self, name: str) -> npt.NDArray[Any] | None:
        if name not in self._arrays and (array := getattr(self._native, name)()) is not None:
            self._arrays[name] = array
        return self._arrays.get(name)

    @property
    def key(self) -> npt.NDArray[np.uint64]:
        """u64 `[B]`: keys of the items."""
        return self._array("key")

    @property
    def env_id(self) -> npt.NDArray[np.int64]:
        """i64 `[B]`: environment of each item."""
        return self._array("env_id")

    @property
    def position(self) -> npt.NDArray[np.uint64]:
        """u64 `[B]`: number of steps that the item's environment had before the chosen step."""
        return self._array("position")

    @property
    def probability(self) -> npt.NDArray[np.float64]:
        """f64 `[B]`: probability with which a single draw chooses the item."""
        return self._array("probability")

    @property
    def priority(self) -> npt.NDArray[np.float64] | None:
        """f64 `[B]`: priority of each item when it was drawn; None if the sampler is not Prioritized."""
        return self._optional_array("priority")

    @property
    def relabeled(self) -> npt.NDArray[np.bool_] | None:
        """Whether each item got another goal, bool `[B]`; None without `HER`, and in a scan."""
        return self._optional_array("relabeled")

    def __repr__(self) -> str:
        names = ("key", "env_id", "position", "probability", "priority", "relabeled")
        arrays = {name: getattr(self, name) for name in names}
        rows = [(name, str(each.dtype), array_text(each)) for name, each in arrays.items() if each is not None]
        return f"BufferBatchInfo({counted(len(self._native), 'item')})" + aligned(rows)


class BufferBatch:
    """Items that a `ReplayBuffer` returned, stacked along a leading batch axis.

    Args:
        native: The batch, as the native engine returned it.

    Attributes:
        data: Nest of the items' data, with NumPy arrays `[B, ...]`, or `[B, T, ...]` for sequences and episodes. The
            arrays own their memory. Nothing changes them later, unless they are given as `out` of another call. With
            `storage` on a device, they are PyTorch tensors or JAX arrays there.
        info: Keys, probabilities and other metadata, one per item.
    """

    __slots__ = ("_native", "data", "info")

    def __init__(self, native: "_engram.BufferBatch | DeviceBatch") -> None:
        self._native = native
        self.data: Any = native.data
        self.info = BufferBatchInfo(native)

    def __len__(self) -> int:
        return len(self._native)

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

    def __repr__(self) -> str:
        return self._title + aligned(self._rows)

    def _repr_html_(self) -> str:
        return html_table(self._title, ("column", "dtype", "shape", ""), self._rows)

    @property
    def _title(self) -> str:
        return f"BufferBatch({counted(len(self), 'item')})"

    @property
    def _rows(self) -> list[tuple[str, str, str, str]]:
        return column_rows(self.data, None, None)
