"""ALF's ring buffers: the newest steps of several environments, and the newest items of one stream."""

import numpy as np
import torch

from engram import Nest, _checks
from engram.compat.alf._host import Ints, TensorLike, host_ints
from engram.compat.alf.utils._ring_buffer import POS, SIZE, RingBuffer

__all__ = ["DataBuffer", "RingBuffer"]


class DataBuffer(RingBuffer):
    """The newest items of one stream, as ALF's. The axes of environments of its tensors have size 1.

    Args:
        data_spec: Nest of the specs of an item; a spec has `shape` and `dtype`, see `TensorSpec`.
        capacity: Maximum number of items; then the oldest ones are overwritten.
        device: Where the items are stored.
        name: The name of the buffer.

    Raises:
        InvalidArgumentError: An argument is invalid.
    """

    def __init__(self, data_spec: Nest, capacity: int, device: str = "cpu", name: str = "DataBuffer") -> None:
        capacity = _checks.integer("`capacity`", capacity)
        super().__init__(data_spec, num_environments=1, max_length=capacity, device=device, name=name)

    @property
    def current_size(self) -> torch.Tensor:
        """Number of stored items: int64, without axes; changes with the buffer."""
        return self._buffers[SIZE][0]

    @property
    def current_pos(self) -> torch.Tensor:
        """Position of the next item: int64, without axes; changes with the buffer."""
        return self._buffers[POS][0]

    def is_full(self) -> np.bool_:
        """Returns True if the next item overwrites the oldest one."""
        return np.bool_(self._size[0] == self._max_length)

    def add_batch(self, batch: Nest) -> None:
        """Adds items. If there are more than the buffer can store, only the last ones are added.

        Args:
            batch: Nest of tensors `[B, ...]`. A value is converted to the dtype of its spec if that is of the same
                kind, and repeated along the axes of an item on which its size is 1.

        Raises:
            AssertionError: The leaves differ in size.
            InvalidArgumentError: The batch does not fit `data_spec`.
        """
        leaves = self._converted([leaf[-self._max_length :] for leaf in self._spec.leaves(batch)])
        count = len(leaves[0]) if leaves else 0
        stream = np.zeros(1, np.int64)
        with self._lock:
            self._store(stream, self._pos[0] + np.arange(count), leaves)
            self._advance(stream, count)

    def get_batch(self, batch_size: int) -> Nest:
        """Returns items that are drawn uniformly, with replacement.

        Args:
            batch_size: Number of items, B.

        Returns:
            Nest of tensors `[B, ...]`.

        Raises:
            AssertionError: The buffer is empty.
        """
        with self._lock:
            size = int(self._size[0])
            if size == 0:
                raise AssertionError("the buffer is empty; add items before sampling")
            return self._items(torch.randint(size, (batch_size,), device="cpu").numpy())

    def get_batch_by_indices(self, indices: TensorLike) -> Nest:
        """Returns the items with these indices.

        Args:
            indices: Integers of any shape: 0 is the oldest item, `current_size - 1` the newest one.

        Returns:
            Nest of tensors with the shape of `indices` and that of an item.

        Raises:
            TypeError: `indices` are not integers.
            IndexError: There is no item with one of the indices.
        """
        indices = host_ints("`indices`", indices)
        with self._lock:
            size = int(self._size[0])
            if indices.size and not 0 <= indices.min() <= indices.max() < size:
                bad = indices[(indices < 0) | (indices >= size)][0]
                raise IndexError(f"each of `indices` must be from 0 to {size - 1}, of the {size} items; got {bad}")
            return self._items(indices)

    def get_all(self) -> Nest:
        """Returns all items, `[current_size, ...]`, the oldest first: a copy."""
        with self._lock:
            return self._items(np.arange(self._size[0]))

    def _items(self, indices: Ints) -> Nest:
        return self._read(np.zeros((), np.int64), self._pos[0] - self._size[0] + indices)
