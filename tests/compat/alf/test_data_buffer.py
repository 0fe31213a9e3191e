"""Items of one stream."""

from collections import deque

import numpy as np
import pytest
from helpers import alf_buffers
from helpers.alf_buffers import assert_frequencies, ints
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]


def number_buffer(capacity):
    """A buffer of single numbers."""
    alf = alf_buffers.alf
    return alf.DataBuffer({"x": alf.TensorSpec((), "int64")}, capacity)


@given(capacity=st.integers(1, 5), counts=st.lists(st.integers(0, 12), max_size=8))
def test_a_buffer_holds_the_newest_items(capacity, counts):
    """0 to more than twice the capacity at once. The position advances by the items that are kept of each batch."""
    buffer, model, position, value = number_buffer(capacity), deque(maxlen=capacity), 0, 0
    size, pos = buffer.current_size, buffer.current_pos  # they change with the buffer
    for count in counts:
        batch = range(value, value + count)
        assert buffer.add_batch({"x": ints([*batch])}) is None
        model.extend(batch)
        value += count
        position += min(count, capacity)
        assert buffer.get_all()["x"].tolist() == [*model]
        assert buffer.get_batch_by_indices(ints([*range(len(model))]))["x"].tolist() == [*model]
        assert (size.shape, size.tolist(), pos.tolist()) == ((), len(model), position)
        assert buffer.is_full() == (len(model) == capacity)
        assert isinstance(buffer.is_full(), np.bool_)
    buffer.clear()
    assert (size.tolist(), pos.tolist(), buffer.get_all()["x"].tolist()) == (0, 0, [])


def test_draws_are_uniform_with_replacement():
    alf_buffers.torch.manual_seed(0)
    buffer = number_buffer(4)
    buffer.add_batch({"x": ints([*range(6)])})
    counts = buffer.get_batch(4000)["x"].bincount(minlength=6).tolist()
    assert counts[:2] == [0, 0]
    assert_frequencies(counts[2:], [1000.0] * 4)


def test_a_seed_draws_what_it_draws_with_alf():
    torch, buffer = alf_buffers.torch, number_buffer(1000)
    buffer.add_batch({"x": ints([*range(700)])})
    torch.manual_seed(0)
    drawn = buffer.get_batch(50)["x"]
    torch.manual_seed(0)
    assert drawn.tolist() == torch.randint(700, (50,)).tolist()


def test_values_of_size_1_are_repeated_along_the_axes_of_an_item():
    alf, torch = alf_buffers.alf, alf_buffers.torch
    buffer = alf.DataBuffer(alf.TensorSpec((2, 3)), 2)
    buffer.add_batch(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]]))
    assert buffer.get_all().tolist() == [[[3.0] * 3, [4.0] * 3], [[5.0] * 3, [6.0] * 3]]


def test_indices_may_have_any_shape_and_must_exist():
    buffer = number_buffer(4)
    buffer.add_batch({"x": ints([*range(6)])})
    assert buffer.get_batch_by_indices(ints([[3], [0]]))["x"].tolist() == [[5], [2]]
    assert buffer.get_batch_by_indices(1)["x"].tolist() == 3
    for bad in (-1, 4):
        with raises(IndexError, f"each of `indices` must be from 0 to 3, of the 4 items; got {bad}"):
            buffer.get_batch_by_indices(ints([0, bad]))
    with raises(TypeError, "`indices` must be integers; got dtype float32"):
        buffer.get_batch_by_indices(alf_buffers.torch.zeros(1))


def test_an_empty_buffer_has_nothing_to_draw():
    buffer = number_buffer(4)
    with raises(AssertionError, "the buffer is empty; add items before sampling"):
        buffer.get_batch(1)
    with raises(InvalidArgumentError, "`capacity` must be at least 1; got 0"):
        number_buffer(0)


def test_results_are_copies():
    buffer = number_buffer(2)
    buffer.add_batch({"x": ints([1, 2])})
    results = [buffer.get_all(), buffer.get_batch_by_indices(ints([0, 1]))]
    buffer.add_batch({"x": ints([3, 4])})
    assert [result["x"].tolist() for result in results] == [[1, 2], [1, 2]]


def test_a_rejected_batch_changes_nothing():
    alf, torch = alf_buffers.alf, alf_buffers.torch
    buffer = alf.DataBuffer((alf.TensorSpec(()), alf.TensorSpec(())), 3)
    with raises(AssertionError, "`1` of `batch` must have 2 steps; got 1"):
        buffer.add_batch(([1.0, 2.0], [1.0]))
    with raises(InvalidArgumentError, "`batch` must have the structure of `data_spec`, (*, *); got [*, *]"):
        buffer.add_batch([torch.zeros(1), torch.zeros(1)])
    assert buffer.current_pos == 0


def test_values_that_a_tensor_would_change_are_refused():
    alf = alf_buffers.alf
    buffer = alf.DataBuffer({"x": alf.TensorSpec(())}, 3)
    masked = np.ma.masked_equal([1.0, 99.0], 99)
    for batch in (masked, list(masked), Converts(masked)):
        with raises(
            InvalidArgumentError,
            "`x` of `batch` must not be a masked array, because its masked elements would be stored as if they were "
            "valid; pass `array.filled(value)`",
        ):
            buffer.add_batch({"x": batch})
    text = "`x` of `batch` has -1e+39, which torch.float32 cannot hold; its largest value is 3.4028235e+38"
    with raises(InvalidArgumentError, text):
        buffer.add_batch({"x": np.array([1.0, -1e39])})
    buffer.add_batch({"x": np.array([0.5, np.inf])})
    assert buffer.get_all()["x"].tolist() == [0.5, np.inf]


class Converts:
    """An object that NumPy converts to an array."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9])
def test_the_state_can_be_loaded(count):
    buffer, loaded = number_buffer(4), number_buffer(4)
    loaded.add_batch({"x": ints([7, 8])})
    buffer.add_batch({"x": ints([*range(count)])})
    loaded.load_state_dict(buffer.state_dict())
    for each in (buffer, loaded):
        each.add_batch({"x": ints([50])})
    assert loaded.get_all()["x"].tolist() == buffer.get_all()["x"].tolist()
    assert loaded.current_pos == buffer.current_pos
