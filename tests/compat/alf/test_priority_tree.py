"""The native tree of `engram.compat.alf`; it does not need PyTorch."""

import numpy as np
from helpers.support import raises

from engram import _engram
from engram.errors import InvalidArgumentError


def test_the_native_tree_checks_its_arguments():
    tree = _engram.PriorityTree(3)
    rows, priorities = np.array([0, 2]), np.array([1.0, 2.0])
    with raises(InvalidArgumentError, "all priorities are 0"):
        tree.find(np.zeros(1))
    tree.set(rows, priorities)
    with raises(InvalidArgumentError, "each of `rows` must be from 0 to 2; got 3"):
        tree.set(rows + 1, priorities)
    with raises(InvalidArgumentError, "each of `rows` must be from 0 to 2; got -1"):
        tree.set(rows - 1, priorities)
    with raises(InvalidArgumentError, "`rows` and `priorities` must have the same length; got 2 and 1"):
        tree.set(rows, priorities[:1])
    with raises(InvalidArgumentError, "each of `priorities` must be from 0 to 1e290; got -1"):
        tree.set(rows, priorities - 2)
    with raises(InvalidArgumentError, "each of `priorities` must be from 0 to 1e290; got NaN"):
        tree.set(rows, priorities * np.nan)
    with raises(InvalidArgumentError, "`rows` must be at least 1; got 0"):
        _engram.PriorityTree(0)
    assert (tree.total(), tree.largest(), tree.non_zero()) == (3.0, 2.0, 2)
    assert tree.find(np.array([0.0, 1.0, 3.0])).tolist() == [0, 2, 2]
