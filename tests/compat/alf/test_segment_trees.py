"""Segment trees, compared with searches through all values."""

import copy

import numpy as np
import pytest
from helpers import alf_buffers
from helpers.alf_buffers import ints
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

KINDS = {"SumSegmentTree": sum, "MinSegmentTree": min, "MaxSegmentTree": max}


@pytest.fixture
def alf():
    return alf_buffers.alf


@pytest.fixture
def torch():
    return alf_buffers.torch


def tree_of(kind, values):
    """A tree with these values, set in reverse order."""
    tree = getattr(alf_buffers.alf, kind)(len(values))
    indices = ints([*reversed(range(len(values)))])
    tree[indices] = alf_buffers.torch.tensor(values, dtype=alf_buffers.torch.float32)[indices]
    return tree


@given(
    kind=st.sampled_from(sorted(KINDS)),
    capacity=st.integers(1, 17),
    sets=st.lists(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 9)), max_size=8), max_size=6),
)
def test_a_tree_agrees_with_a_list(kind, capacity, sets):
    tree, model = getattr(alf_buffers.alf, kind)(capacity), [0] * capacity
    for drawn in sets:
        pairs = [(index % capacity, value) for index, value in drawn]
        indices, values = ints([index for index, _ in pairs]), [float(value) for _, value in pairs]
        tree[indices] = alf_buffers.torch.tensor(values)
        for index, value in pairs:  # the last of a repeated index remains
            model[index] = value
        assert tree[ints([*range(capacity)])].tolist() == model
        assert tree.summary().tolist() == KINDS[kind](model)
        if kind == "SumSegmentTree":
            assert tree.nnz == sum(value > 0 for value in model)
    nodes = tree.values.tolist()
    assert len(nodes) == 2 * capacity
    assert sorted(nodes[capacity:]) == sorted(model)
    for node in range(1, capacity):
        assert nodes[node] == KINDS[kind]([nodes[2 * node], nodes[2 * node + 1]])
    assert in_order(nodes, 1, capacity) == model


def in_order(nodes, node, capacity):
    """The leaves below a node, from left to right."""
    if node >= capacity:
        return [nodes[node]]
    return in_order(nodes, 2 * node, capacity) + in_order(nodes, 2 * node + 1, capacity)


@given(values=st.lists(st.integers(0, 3), min_size=1, max_size=17))
def test_bounds_agree_with_cumulative_sums(values):
    """Capacities 1 to 17, zeros anywhere, thresholds up to the total."""
    tree, total = tree_of("SumSegmentTree", values), sum(values)
    thresholds = [number / 4 for number in range(4 * total + 1)]
    found = tree.find_sum_bound(alf_buffers.torch.tensor(thresholds))
    ends = np.cumsum(values)
    last = max((index for index, value in enumerate(values) if value), default=0)
    expected = [int(np.argmax(ends > threshold)) for threshold in thresholds[:-1]] + [last]
    assert found.tolist() == expected
    assert found.dtype == alf_buffers.torch.int64


@pytest.mark.parametrize("capacity", range(1, 18))
def test_a_threshold_at_the_sum_finds_the_last_value_that_is_not_0(capacity):
    for last in range(capacity):
        tree = tree_of("SumSegmentTree", [0.1] * (last + 1) + [0.0] * (capacity - last - 1))
        assert tree.find_sum_bound(tree.summary()[None]).tolist() == [last]


def test_a_tiny_value_at_the_end_is_found_at_the_sum(torch):
    """Although the sum, in float32, is the one without this value."""
    tree = tree_of("SumSegmentTree", [1.0, 1e-9, 1e-12])
    assert tree.summary() == 1.0
    assert tree.find_sum_bound(torch.ones(1)).tolist() == [2]


def test_sums_do_not_drift(alf, torch):
    torch.manual_seed(0)
    tree, values = alf.SumSegmentTree(1000, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64)
    for _ in range(200):
        indices, new = torch.randint(0, 1000, (50,)).unique(), torch.rand(50, dtype=torch.float64)
        tree[indices] = values[indices] = new[: len(indices)] * 10.0 ** torch.randint(-9, 9, (1,))
    assert tree.summary().tolist() == pytest.approx(values.sum().item(), rel=1e-14)


def test_zeros_only(alf, torch):
    tree = alf.SumSegmentTree(3)
    assert tree.find_sum_bound(torch.zeros(2)).tolist() == [0, 0]
    assert (tree.nnz, tree.summary().tolist()) == (0, 0.0)
    with raises(ValueError, "each threshold must be from 0 to 0.0, the sum; got 0.5"):
        tree.find_sum_bound(torch.tensor([0.5]))


@pytest.mark.parametrize("threshold", [-0.5, 2.5, float("nan")])
def test_thresholds_beyond_the_values_are_rejected(torch, threshold):
    tree = tree_of("SumSegmentTree", [1.0, 1.0])
    with raises(ValueError, f"each threshold must be from 0 to 2.0, the sum; got {threshold}"):
        tree.find_sum_bound(torch.tensor([0.0, threshold]))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_empty_assignment_changes_nothing(torch, kind):
    tree = tree_of(kind, [1.0, 2.0])
    tree[ints([])] = torch.zeros(0)
    assert tree.values.tolist() == tree_of(kind, [1.0, 2.0]).values.tolist()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    ("indices", "values", "error", "text"),
    [
        ([2], [1.0], AssertionError, "each index must be from 0 to 1; got 2"),
        ([-1], [1.0], AssertionError, "each index must be from 0 to 1; got -1"),
        (
            [0, 1],
            [1.0],
            AssertionError,
            "the indices and values must have one axis of the same size; got shapes [2] and [1]",
        ),
        (
            [[0]],
            [[1.0]],
            AssertionError,
            "the indices and values must have one axis of the same size; got shapes [1, 1] and [1, 1]",
        ),
        ([0.5], [1.0], TypeError, "the indices must be integers; got dtype float32"),
    ],
)
def test_invalid_assignments_are_rejected(kind, indices, values, error, text):
    tree, torch = tree_of(kind, [1.0, 2.0]), alf_buffers.torch
    with raises(error, text):
        tree[torch.tensor(indices)] = torch.tensor(values)
    assert tree[ints([0, 1])].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_sum_tree_rejects_values_that_are_no_weights(torch, value):
    tree = tree_of("SumSegmentTree", [1.0, 2.0])
    with raises(AssertionError, f"each value must be from 0 to 1e+290; got {value}"):
        tree[ints([0, 1])] = torch.tensor([5.0, value])
    assert (tree.values.tolist(), tree.summary().tolist()) == ([0.0, 3.0, 1.0, 2.0], 3.0)


def test_other_trees_accept_negative_values():
    assert tree_of("MinSegmentTree", [-1.0, -3.0]).summary() == -3.0
    assert tree_of("MaxSegmentTree", [-1.0, -3.0]).summary() == -1.0


def test_reading_outside_is_rejected(alf):
    tree = tree_of("SumSegmentTree", [1.0, 2.0])
    assert tree[ints([[1], [0]])].tolist() == [[2.0], [1.0]]
    with raises(AssertionError, "each index must be from 0 to 1; got 2"):
        tree[ints([2])]
    with raises(InvalidArgumentError, "`capacity` must be at least 1; got 0"):
        alf.SumSegmentTree(0)


def test_the_base_class_combines_with_any_function(alf, torch):
    tree = alf.SegmentTree(5, torch.mul, dtype=torch.float64, name="product")
    tree[ints([0, 1, 2, 3, 4])] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    assert (tree.summary().tolist(), tree.summary().dtype, tree.name) == (120.0, torch.float64, "product")


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("assign", [False, True])
def test_the_state_is_one_tensor(torch, kind, assign):
    values = [3.0, 0.0, 2.0, 5.0, 1.0]
    tree, loaded = tree_of(kind, values), tree_of(kind, [9.0] * 5)
    state = tree.state_dict()
    assert [*state] == ["values"]
    assert state["values"][1] == KINDS[kind](values)
    assert loaded.summary() > 0
    loaded.load_state_dict(state, assign=assign)
    assert loaded.summary() == tree.summary()
    loaded[ints([3])] = torch.tensor([7.0])
    assert tree[ints([3])] == 5.0
    if kind == "SumSegmentTree":
        assert (loaded.nnz, loaded.summary().tolist()) == (4, 13.0)


def test_a_state_with_values_that_are_no_weights_is_rejected():
    tree, state = tree_of("SumSegmentTree", [1.0, 2.0]), tree_of("MinSegmentTree", [-1.0, 2.0]).state_dict()
    with pytest.raises(RuntimeError, match="values must be from 0 to 1e\\+290"):
        tree.load_state_dict(state)
    assert tree.summary() == 3.0


def test_trees_are_modules_that_can_be_copied_and_converted(torch):
    tree = tree_of("SumSegmentTree", [0.1, 0.2])
    clone = copy.deepcopy(tree)
    clone[ints([0])] = torch.tensor([1.0])
    assert (tree.summary().tolist(), clone.nnz) == (pytest.approx(0.3), 2)
    tree.double()
    assert tree.summary().dtype == torch.float64
    assert tree.find_sum_bound(torch.tensor([0.1])).tolist() == [1]
    tree[ints([0])] = torch.tensor([1e-9])
    assert tree.nnz == 2
    assert tree.half().nnz == 1
