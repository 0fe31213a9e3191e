"""Sums of float32 numbers, added in the order of ALF's segment trees."""

from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.alf._host import Ints

__all__ = ["Float32Sums"]

_Floats = npt.NDArray[np.float32]


class Float32Sums:
    """A binary tree of sums of numbered values. The order of operations decides what a random number finds.

    Node 1 is the root, and the children of node i are 2i and 2i + 1. The last nodes are the leaves: the value of row 0
    is the first node of the lowest level, and values that do not fit there are at the end of the level above.

    The values are stored elsewhere. Sums are computed when they are used next.
    """

    def __init__(self, values: _Floats) -> None:
        self._values = values
        self._rows = len(values)
        self._first_leaf = 1 << (self._rows - 1).bit_length()
        self._nodes: _Floats | None = None  # None: to be computed from all values
        self._changed: list[Ints] = []  # rows whose values have changed since
        self._num_changed = 0

    def change(self, rows: Ints) -> None:
        """Records that the values of rows have changed."""
        self._changed.append(rows)
        self._num_changed += len(rows)
        if self._num_changed > self._rows // 4:  # then computing all sums is faster
            self._nodes, self._changed, self._num_changed = None, [], 0

    def total(self) -> np.float32:
        """The sum of all values."""
        return np.float32(self._current_nodes()[1])

    def find(self, masses: _Floats) -> Ints:
        """For each of `masses`, the first row for which the sum of all values up to it is above the mass.

        Values of 0 are never found, unless all are 0; for the total, it is the last row with another value.
        """
        nodes, at, rest = self._current_nodes(), np.ones(len(masses), np.int64), masses
        for _ in range(self._rows.bit_length() - 1):
            at, rest = _descend(nodes, at, rest)
        inner = at < self._rows
        at[inner], _ = _descend(nodes, at[inner], rest[inner])
        return np.where(at >= self._first_leaf, at, at + self._rows) - self._first_leaf

    def _current_nodes(self) -> _Floats:
        if self._nodes is None:
            self._nodes = self._all_nodes()
        elif self._changed:
            self._update(self._nodes, np.unique(np.concatenate(self._changed)))
        self._changed, self._num_changed = [], 0
        return self._nodes

    def _all_nodes(self) -> _Floats:
        nodes = np.zeros(2 * self._rows, np.float32)
        nodes[self._leaves(np.arange(self._rows))] = self._values
        end = self._rows
        while end > 1:
            begin = (end + 1) // 2  # the children of these nodes are leaves, or were computed before
            nodes[begin:end] = nodes[2 * begin : 2 * end : 2] + nodes[2 * begin + 1 : 2 * end : 2]
            end = begin
        return nodes

    def _update(self, nodes: _Floats, rows: Ints) -> None:
        leaves = self._leaves(rows)
        nodes[leaves] = self._values[rows]
        level, above = leaves[leaves >= self._first_leaf], leaves[leaves < self._first_leaf]
        while self._rows > 1 and (len(above) > 0 or level[0] > 1):
            level = np.unique(level >> 1)
            nodes[level] = nodes[2 * level] + nodes[2 * level + 1]
            level, above = np.concatenate([level, above]), above[:0]

    def _leaves(self, rows: Ints) -> Ints:
        nodes = rows + self._first_leaf
        return np.where(nodes < 2 * self._rows, nodes, nodes - self._rows)


def _descend(nodes: _Floats, at: Ints, rest: _Floats) -> tuple[Ints, Any]:
    """Returns the children in which masses end, and what remains of the masses there."""
    left = nodes[2 * at]
    passes = (rest >= left) & (nodes[2 * at + 1] > 0)
    return 2 * at + passes, np.where(passes, rest - left, rest)
