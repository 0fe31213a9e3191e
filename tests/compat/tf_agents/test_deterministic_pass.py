"""Datasets of a single deterministic pass agree with a naive model: shapes, windows, remainders, rings that wrapped."""

import itertools

import numpy as np
import pytest
from helpers.support import raises, runs_all_tests, slow_except
from helpers.tf_agents_buffers import BufferModel, data_spec, fill, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.frameworks


def elements(dataset):
    """Columns `b` and ids of all elements."""
    return [(values(data).tolist(), info.ids.numpy().tolist()) for data, info in dataset]


def expected(model, n, num_steps, **options):
    """What `elements` should return."""

    def without_axes(rows):
        rows = rows if num_steps is not None else [row[0] for row in rows]
        return rows if n is not None else rows[0]

    return [
        (
            without_axes([[model.value(segment, frame) for frame in frames] for segment in segments]),
            without_axes([[segment * model.max_length + frame for frame in frames] for segment in segments]),
        )
        for segments, frames in model.sequences(n, num_steps, **options)
    ]


def static_sizes(model, n, num_steps, *, drop_remainder):
    """Sizes of the axes of an element; None for those that vary."""
    sizes = []
    if n is not None:
        sizes.append(n if drop_remainder or model.batch_size % n == 0 else None)
    if num_steps is not None:
        sizes.append(num_steps if drop_remainder or n is not None else None)
    return sizes


@pytest.mark.parametrize("count", slow_except(5, of=[1, 3, 5]))
@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("shift", slow_except(None, 3, of=[None, 1, 3]))
@pytest.mark.parametrize("create", ["ring", "tables"], indirect=True)
def test_all_shapes_agree_with_a_model(tf, create, count, drop_remainder, shift):
    """A ring of 4 items for each of 3 segments: partly full, full, and after wrapping."""
    model = BufferModel(3, 4)
    buffer = create(data_spec(tf), 3, 4, dataset_drop_remainder=drop_remainder, dataset_window_shift=shift)
    fill(buffer, model, count)
    for n, num_steps in itertools.product([None, 2], [None, 2] if shift is None else [2]):
        dataset = buffer.as_dataset(n, num_steps, single_deterministic_pass=True)
        options = {"drop_remainder": drop_remainder}
        assert elements(dataset) == expected(model, n, num_steps, shift=shift, **options), (n, num_steps)
        data_spec_of_element, info_spec = dataset.element_spec
        sizes = static_sizes(model, n, num_steps, **options)
        assert data_spec_of_element["a"].shape.as_list() == [*sizes, 2]
        assert info_spec.ids == tf.TensorSpec(sizes, tf.int64)
        assert info_spec.probabilities == ()


@settings(max_examples=20 if runs_all_tests() else 8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_buffers_agree_with_a_model(tf, replay_buffers, data):
    batch_size, max_length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    drop = data.draw(st.booleans())
    shift = data.draw(st.none() | st.integers(1, 4))
    n = data.draw(st.none() | st.integers(1, batch_size))
    num_steps = data.draw(st.none() | st.integers(1, max_length))
    model = BufferModel(batch_size, max_length)
    buffer = replay_buffers.TFUniformReplayBuffer(
        data_spec(tf), batch_size, max_length, dataset_drop_remainder=drop, dataset_window_shift=shift
    )
    fill(buffer, model, data.draw(st.integers(0, 8)))
    if data.draw(st.booleans()):
        buffer.clear()
        model.clear()
    fill(buffer, model, data.draw(st.integers(1, 14)))
    dataset = buffer.as_dataset(n, num_steps, single_deterministic_pass=True)
    assert elements(dataset) == expected(model, n, num_steps, shift=shift, drop_remainder=drop)


@pytest.mark.parametrize(
    ("shift", "drop_remainder", "windows"),
    [
        (None, False, [[0, 1], [2, 3], [4]]),
        (1, False, [[0, 1], [1, 2], [2, 3], [3, 4], [4]]),
        (1, True, [[0, 1], [1, 2], [2, 3], [3, 4]]),
        (3, False, [[0, 1], [3, 4]]),
    ],
)
def test_windows_of_one_segment(tf, create, shift, drop_remainder, windows):
    """The examples of TF-Agents' documentation, whose last window, `[4, 5]`, does not exist."""
    model = BufferModel(1, 5)
    buffer = create(data_spec(tf), 1, 5, dataset_drop_remainder=drop_remainder, dataset_window_shift=shift)
    fill(buffer, model, 5)
    assert [ids for _, ids in elements(buffer.as_dataset(None, 2, single_deterministic_pass=True))] == windows


def test_groups_of_segments_and_windows(tf, create):
    model, buffer = BufferModel(6, 4), create(data_spec(tf), 6, 4)
    fill(buffer, model, 4)
    result = elements(buffer.as_dataset(3, 2, single_deterministic_pass=True))
    assert [data for data, _ in result] == [
        [[0, 1], [1000, 1001], [2000, 2001]],
        [[2, 3], [1002, 1003], [2002, 2003]],
        [[3000, 3001], [4000, 4001], [5000, 5001]],
        [[3002, 3003], [4002, 4003], [5002, 5003]],
    ]


def test_a_pass_stays_inside_its_segment_after_the_ring_wrapped(tf, create):
    model, buffer = BufferModel(2, 3), create(data_spec(tf), 2, 3)
    fill(buffer, model, 4)
    result = elements(buffer.as_dataset(single_deterministic_pass=True))
    assert result == [(1, 1), (2, 2), (3, 3), (1001, 4), (1002, 5), (1003, 6)]


def test_windows_stay_inside_their_group_of_segments(tf, create):
    model, buffer = BufferModel(3, 3), create(data_spec(tf), 3, 3)
    fill(buffer, model, 3)
    windows = elements(buffer.as_dataset(1, 2, single_deterministic_pass=True))
    assert [data for data, _ in windows] == [[[0, 1]], [[1000, 1001]], [[2000, 2001]]]
    smaller_last_group = elements(buffer.as_dataset(2, 2, single_deterministic_pass=True))
    assert [data for data, _ in smaller_last_group] == [[[0, 1], [1000, 1001]], [[2000, 2001]]]


def test_only_what_exists_when_an_iteration_begins_is_read(tf, create):
    """Each iteration begins again; rows that are overwritten meanwhile have newer content."""
    model, buffer = BufferModel(1, 4), create(data_spec(tf), 1, 4)
    dataset = buffer.as_dataset(single_deterministic_pass=True)
    fill(buffer, model, 3)
    iterator = iter(dataset)
    assert next(iterator)[1].ids == 0
    fill(buffer, model, 3)  # overwrites items 0 and 1
    assert [(int(values(data)), int(info.ids)) for data, info in iterator] == [(5, 1), (2, 2)]
    assert elements(dataset) == [(2, 2), (3, 3), (4, 4), (5, 5)]


def test_an_iteration_continues_after_clear(tf, create):
    model, buffer = BufferModel(1, 4), create(data_spec(tf), 1, 4)
    fill(buffer, model, 6)
    iterator = iter(buffer.as_dataset(None, 2, single_deterministic_pass=True))
    assert values(next(iterator)[0]).tolist() == [2, 3]
    buffer.clear()
    assert values(next(iterator)[0]).tolist() == [4, 5]


def test_an_empty_buffer_raises_an_error_on_iteration(tf, create):
    for n, num_steps in itertools.product([None, 1], [None, 2]):
        dataset = create(data_spec(tf), 2, 4).as_dataset(n, num_steps, single_deterministic_pass=True)
        text = "TFUniformReplayBuffer is empty. Make sure to add items before sampling the buffer."
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            next(iter(dataset))


def test_longer_sequences_than_the_buffer_has(tf, create):
    model, buffer = BufferModel(2, 3), create(data_spec(tf), 2, 3)
    fill(buffer, model, 3)
    assert elements(buffer.as_dataset(None, 5, single_deterministic_pass=True)) == expected(model, None, 5)
    assert elements(buffer.as_dataset(2, 5, single_deterministic_pass=True)) == []
    assert elements(buffer.as_dataset(5, None, single_deterministic_pass=True)) == expected(model, 5, None)


def test_arguments_are_checked(tf, create):
    buffer = create(data_spec(tf), 2, 3, dataset_drop_remainder=True)
    for arguments, text in [
        (
            (3, 2),
            (
                "as_dataset: ALL data will be dropped, because `dataset_drop_remainder` is True and "
                "`sample_batch_size` (3) is above `batch_size` (2)"
            ),
        ),
        (
            (None, 4),
            (
                "as_dataset: ALL data will be dropped, because `dataset_drop_remainder` is True and `num_steps` (4) is "
                "above `max_length` (3)"
            ),
        ),
        ((0,), "`sample_batch_size` must be at least 1; got 0"),
    ]:
        with raises(ValueError, text):
            buffer.as_dataset(*arguments, single_deterministic_pass=True)
    buffer.as_dataset(3, 4)  # random elements do not depend on `dataset_drop_remainder`


def test_a_pass_is_finite_and_can_be_transformed(tf, create):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    fill(buffer, model, 4)
    dataset = buffer.as_dataset(2, single_deterministic_pass=True, num_parallel_calls=2)
    sums = dataset.map(lambda data, _: tf.reduce_sum(data["b"][0])).batch(10)
    np.testing.assert_array_equal(next(iter(sums)), [1000, 1002, 1004, 1006])
