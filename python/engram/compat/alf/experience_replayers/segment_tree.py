"""ALF's segment trees: sums, minima and maxima of numbered values."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from engram import _checks, _engram
from engram.compat.alf._host import FixedBuffersModule, Ints, TensorLike, host_ints

__all__ = ["MaxSegmentTree", "MinSegmentTree", "SegmentTree", "SumSegmentTree"]


class SegmentTree(FixedBuffersModule):
    """Values, and the result of an operation on all of them. All values begin as 0.

        tree = MaxSegmentTree(capacity=4)
        tree[torch.tensor([0, 2])] = torch.tensor([5.0, 3.0])
        tree[torch.tensor([2])], tree.summary()

    Args:
        capacity: Number of values.
        op: The operation: a function of two tensors that combines their elements, such as `torch.minimum`.
        dtype: Dtype of the values.
        device: Where the values are stored; also that of results.
        name: The name of the tree.

    Raises:
        InvalidArgumentError: `capacity` is not a number above 0.
    """

    def __init__(
        self,
        capacity: int,
        op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        name: str = "SegmentTree",
    ) -> None:
        super().__init__()
        self._capacity = _checks.integer("`capacity`", capacity)
        self._op = op
        self._name = name
        # The leaves of the lowest level are the first values, those one level above it the others.
        self._lowest_level = 1 << (self._capacity - 1).bit_length()
        self._add("values", (2 * self._capacity,), dtype, device=device)
        self._is_current = True  # whether the inner nodes follow the leaves

    @property
    def name(self) -> str:
        """The name of the tree."""
        return self._name

    @property
    def values(self) -> torch.Tensor:
        """All nodes, `[2 * capacity]`: node 1 is the root, 2i and 2i + 1 are the children of i, leaves are last."""
        values = self._buffers["values"]
        end = self._capacity
        while end > 1 and not self._is_current:
            begin = (end + 1) // 2  # the children of these nodes are leaves, or were computed before
            values[begin:end] = self._op(values[2 * begin : 2 * end : 2], values[2 * begin + 1 : 2 * end : 2])
            end = begin
        self._is_current = True
        return values

    def summary(self) -> torch.Tensor:
        """Returns the result of the operation on all values, without axes."""
        return self.values[1].clone()

    def __getitem__(self, indices: TensorLike) -> torch.Tensor:
        """Returns values.

        Args:
            indices: Integers of any shape, from 0 to below `capacity`.

        Raises:
            AssertionError: There is no value with one of the indices.
            TypeError: `indices` are not integers.
        """
        leaves = self._buffers["values"]
        return leaves[torch.from_numpy(self._nodes(self._indices(indices))).to(leaves.device)]

    def __setitem__(self, indices: TensorLike, values: TensorLike) -> None:
        """Sets values. If an index is repeated, the last of its values remains.

        Args:
            indices: Integers from 0 to below `capacity`, [N].
            values: The values, [N].

        Raises:
            AssertionError: The arguments do not have one axis of the same size, there is no value with one of the
                indices, or the tree rejects a value.
            TypeError: `indices` are not integers.
        """
        at, leaves = self._indices(indices), self._buffers["values"]
        given = torch.as_tensor(values, device=leaves.device).detach().to(leaves.dtype)
        if at.ndim != 1 or at.shape != tuple(given.shape):
            raise AssertionError(
                "the indices and values must have one axis of the same size; got shapes "
                f"{[*at.shape]} and {[*given.shape]}"
            )
        backward, positions = np.unique(at[::-1], return_index=True)
        if len(backward) < len(at):
            at, given = backward, given[torch.from_numpy(len(at) - 1 - positions).to(leaves.device)]
        self._set(at, given)

    def _set(self, indices: Ints, values: torch.Tensor) -> None:
        """Sets the values of different indices."""
        leaves = self._buffers["values"]
        leaves[torch.from_numpy(self._nodes(indices)).to(leaves.device)] = values
        self._is_current = False

    def _indices(self, indices: TensorLike) -> Ints:
        at = host_ints("the indices", indices)
        if at.size and not 0 <= at.min() <= at.max() < self._capacity:
            bad = at[(at < 0) | (at >= self._capacity)][0]
            raise AssertionError(f"each index must be from 0 to {self._capacity - 1}; got {bad}")
        return at

    def _nodes(self, indices: Ints) -> Ints:
        """The nodes of leaves."""
        nodes = indices + self._lowest_level
        return np.where(nodes < 2 * self._capacity, nodes, nodes - self._capacity)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:  # noqa: FBT001, PyTorch's signature
        _ = self.values  # computes the inner nodes
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401, PyTorch's
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._is_current = False


class SumSegmentTree(SegmentTree):
    """Values and their sum, with which indices are found for numbers up to the sum. Sums are computed in float64.

        tree = SumSegmentTree(capacity=4)
        tree[torch.arange(4)] = torch.tensor([1.0, 0.0, 2.0, 1.0])
        tree.find_sum_bound(torch.rand(64) * tree.summary())

    Values must be finite and at least 0. The sums are on the host. Arguments and errors are those of `SegmentTree`.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype = torch.float32, device: str = "cpu", name: str = "SumSegmentTree"
    ) -> None:
        super().__init__(capacity, torch.add, dtype, device, name)
        self._sums: _engram.PriorityTree | None = None  # None: to be built from the values

    @property
    def nnz(self) -> int:
        """Number of values that are not 0."""
        return self._current_sums().non_zero()

    def summary(self) -> torch.Tensor:
        """Returns the sum of all values, without axes."""
        leaves = self._buffers["values"]
        return torch.tensor(self._current_sums().total(), dtype=leaves.dtype, device=leaves.device)

    def find_sum_bound(self, thresholds: TensorLike) -> torch.Tensor:
        """Returns, for each threshold, the first index for which the sum of all values up to it is above the threshold.

        Args:
            thresholds: Numbers from 0 to `summary()`, [N].

        Returns:
            int64, [N]. Their values are above 0, unless all are 0. For a threshold equal to `summary()`, the last index
            with a value above 0.

        Raises:
            ValueError: A threshold is negative, NaN, or above `summary()`.
        """
        sums, device = self._current_sums(), self._buffers["values"].device
        given = torch.as_tensor(thresholds, device="cpu").detach().to(torch.float64).numpy()
        # Rounded to the dtype of the values, the sum may differ from the exact one.
        limit, total = float(self.summary()), sums.total()
        allowed = (given >= 0) & (given <= limit)
        if not allowed.all():
            raise ValueError(f"each threshold must be from 0 to {limit}, the sum; got {given[~allowed].flat[0]}")
        if sums.non_zero() == 0:
            return torch.zeros(given.shape, dtype=torch.int64, device=device)
        masses = np.where(given == limit, total, np.minimum(given, total))
        return torch.from_numpy(sums.find(masses.ravel())).view(given.shape).to(device)

    def _set(self, indices: Ints, values: torch.Tensor) -> None:
        exact = values.cpu().to(torch.float64).numpy()
        allowed = (exact >= 0) & (exact <= _engram.MAX_PRIORITY)
        if not allowed.all():
            raise AssertionError(f"each value must be from 0 to {_engram.MAX_PRIORITY}; got {exact[~allowed].flat[0]}")
        super()._set(indices, values)
        if self._sums is not None:
            self._sums.set(indices, exact)

    def _current_sums(self) -> _engram.PriorityTree:
        if self._sums is None:
            indices = np.arange(self._capacity)
            self._sums = _engram.PriorityTree(self._capacity)
            self._sums.set(indices, self[indices].cpu().to(torch.float64).numpy())
        return self._sums

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "SumSegmentTree":  # noqa: FBT001, FBT002, PyTorch's signature
        super()._apply(fn, recurse)
        self._sums = None  # the dtype of the values may have changed
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401, PyTorch's
        values = state_dict.get(f"{prefix}values", torch.zeros(()))
        if not bool(((values >= 0) & (values <= _engram.MAX_PRIORITY)).all()):
            args[-1].append(f"{prefix}values must be from 0 to {_engram.MAX_PRIORITY}")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._sums = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sums": None}  # derived, and native


class MinSegmentTree(SegmentTree):
    """Values and their minimum. It is 0 until all values have been set, because they begin as 0.

    Arguments and errors are those of `SegmentTree`.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype = torch.float32, device: str = "cpu", name: str = "MinSegmentTree"
    ) -> None:
        super().__init__(capacity, torch.minimum, dtype, device, name)


class MaxSegmentTree(SegmentTree):
    """Values and their maximum.

    Arguments and errors are those of `SegmentTree`.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype = torch.float32, device: str = "cpu", name: str = "MaxSegmentTree"
    ) -> None:
        super().__init__(capacity, torch.maximum, dtype, device, name)
