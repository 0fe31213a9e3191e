"""The priorities of steps that sequences can begin with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram import _checks, _engram
from engram.compat.alf._host import HostModule, Ints, float_dtype, random_units
from engram.compat.alf.experience_replayers._float32_sums import Float32Sums
from engram.errors import InvalidArgumentError

__all__ = ["StartPriorities"]

_LOG_LENGTH = 2**16
"""Number of changes after which another process copies all priorities instead of those that changed."""

_MAX_FLOAT32_PRIORITY = 1e30
"""The sum of a million of them is a float32, too."""


class StartPriorities(HostModule):
    """A priority for each row; above 0 only if a sequence of `sequence_length` steps can begin with the row's step.

    A step in slot j of environment e is in row e * L + j, with L slots per environment. A new start has at least the
    priority `minimum`. The buffer `values` is the state; the tree is derived from it. With `shared`, each process has a
    tree of its own, which follows the changes that others log.

    Priorities, sums and draws are in float32, and rounded as in ALF, so that a seed draws the same rows; but with more
    rows than a random float32 distinguishes, they are in float64.
    """

    def __init__(self, num_envs: int, length: int, minimum: float, *, shared: bool) -> None:
        super().__init__(shared=shared)
        self._float = float_dtype(num_envs * length)
        self._is_float32 = self._float is np.float32
        self._max = _MAX_FLOAT32_PRIORITY if self._is_float32 else _engram.MAX_PRIORITY
        if not 0 <= _checks.finite("`initial_priority`", minimum) <= self._max:
            raise InvalidArgumentError(f"`initial_priority` must be from 0 to {self._max}; got {minimum}")
        self._length = length
        self._minimum = float(self._float(minimum))
        self._add("values", (num_envs * length,), torch.float32 if self._is_float32 else torch.float64)
        self._add("sequence_length", (), torch.int64, 1)
        self._tree: _engram.PriorityTree | None = None
        self._float32_sums: Float32Sums | None = None
        if shared:
            self._add("log", (_LOG_LENGTH,), torch.int64, persistent=False)
            self._add("log_end", (), torch.int64, persistent=False)  # number of changes ever logged
        self._applied = 0  # number of logged changes that the tree has

    @property
    def values(self) -> npt.NDArray[Any]:
        """The priorities by row: the memory of the buffer."""
        return self._array("values")

    @property
    def sequence_length(self) -> int:
        """Number of steps of the sequences that the priorities are for."""
        return int(self._array("sequence_length"))

    def change_sequence_length(self, length: int, gone: Ints, added: Ints) -> None:
        """Sets the priorities of rows that are no starts any more to 0, and those of new starts to the initial one."""
        initial = self.initial()
        self.set(gone, 0.0)
        self._array("sequence_length")[()] = length
        self.set(added, initial)

    def initial(self) -> float:
        """The priority that a new start would get now."""
        return max(self._minimum, self._updated_tree().largest())

    def non_zero(self) -> int:
        """Number of priorities above 0."""
        return self._updated_tree().non_zero()

    def set(self, rows: Ints, priorities: npt.NDArray[np.float64] | float) -> None:
        """Sets priorities. If a row is repeated, the last of its priorities remains."""
        if len(rows) == 0:
            return
        values = np.broadcast_to(np.asarray(priorities, self._float), rows.shape)
        if self._shared:
            # Before the values, because this process may die in between.
            self._log(rows)
        self.values[rows] = values
        if self._tree is not None and not self._shared:
            self._change(self._tree, rows)

    def check(self, priorities: npt.NDArray[np.float64]) -> None:
        """Checks that priorities that a program gives are finite, not negative and not too large."""
        allowed = (priorities >= 0) & (priorities <= self._max)
        if not allowed.all():
            bad = priorities[~allowed].flat[0]
            raise AssertionError(f"each of `priorities` must be from 0 to {self._max}; got {bad}")

    def draw(self, n: int, *, with_replacement: bool) -> Ints:
        """Draws `n` rows in proportion to their priorities, of which one must be above 0.

        Without replacement, it draws one row from each of `n` equal shares of the sum of all priorities.
        """
        fractions = random_units(n, self._float)
        if not with_replacement:
            fractions = (fractions + np.arange(n, dtype=self._float)) / self._float(n)
        sums = self._sums()
        masses: npt.NDArray[Any] = fractions * sums.total()
        return sums.find(masses)

    def weights(self, rows: Ints) -> npt.NDArray[Any]:
        """The priority of each row, divided by the mean of all priorities above 0."""
        inverse_mean = self._float(1) / self._sums().total() * self._float(self.non_zero())
        weights: npt.NDArray[Any] = self.values[rows] * inverse_mean
        return weights

    def rebuild(self) -> None:
        """Makes the trees of all processes follow `values`, which was changed elsewhere."""
        self._tree = None
        if self._shared:
            self._array("log_end")[()] += _LOG_LENGTH + 1

    def _log(self, rows: Ints) -> None:
        end = int(self._array("log_end")) + len(rows)
        rows = rows[-_LOG_LENGTH:]
        self._array("log")[np.arange(end - len(rows), end) % _LOG_LENGTH] = rows
        self._array("log_end")[()] = end

    def _sums(self) -> "Float32Sums | _engram.PriorityTree":
        tree = self._updated_tree()
        return tree if self._float32_sums is None else self._float32_sums

    def _change(self, tree: _engram.PriorityTree, rows: Ints) -> None:
        """Makes the tree and the sums follow the priorities of rows."""
        tree.set(rows, self.values[rows].astype(np.float64))
        if self._float32_sums is not None:
            self._float32_sums.change(rows)

    def _updated_tree(self) -> _engram.PriorityTree:
        tree, end = self._tree, int(self._array("log_end")) if self._shared else 0
        if tree is not None and end == self._applied:
            return tree
        if tree is None or end - self._applied > _LOG_LENGTH:
            tree = _engram.PriorityTree(len(self.values))
            self._float32_sums = Float32Sums(self.values) if self._is_float32 else None
            rows = np.flatnonzero(self.values)
        else:
            rows = self._array("log")[np.arange(self._applied, end) % _LOG_LENGTH]
        self._change(tree, rows)
        self._tree, self._applied = tree, end
        return tree

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401, PyTorch's
        values = state_dict.get(f"{prefix}values", torch.zeros(()))
        length = state_dict.get(f"{prefix}sequence_length", torch.ones(()))
        if not bool(((values >= 0) & (values <= self._max)).all() & (length >= 1).all()):
            args[-1].append(f"{prefix}values must be from 0 to {self._max}, and {prefix}sequence_length above 0")
            return
        if f"{prefix}values" not in state_dict:
            self.values[:] = self._minimum
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tree": None, "_float32_sums": None}  # derived, and native
