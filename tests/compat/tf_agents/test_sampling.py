"""`get_next` and random datasets: which sequences are drawn, with which ids, probabilities, shapes and dtypes."""

import re

import numpy as np
import pytest
from helpers.support import raises, slow_except
from helpers.tf_agents_buffers import BufferModel, data_spec, fill, values

pytestmark = pytest.mark.frameworks

EMPTY = "TFUniformReplayBuffer is empty. Make sure to add items before sampling the buffer."
LENGTH = 4
COUNTS = [0, 1, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH, 2 * LENGTH + 1]


def assert_sequences(model, data, ids, num_steps):
    """Checks data `[N, T]`: each sequence is one that can be drawn. Returns how often each was drawn."""
    drawn = {}
    for row, numbers in zip(values(data).tolist(), np.asarray(ids).tolist(), strict=True):
        segment, start = row[0] // 1000, numbers[0]
        assert start in model.starts(num_steps)
        assert numbers == list(range(start, start + num_steps))
        assert row == [model.value(segment, frame) for frame in numbers]
        drawn[segment, start] = drawn.get((segment, start), 0) + 1
    return drawn


@pytest.mark.parametrize("count", slow_except(0, LENGTH + 1, of=COUNTS))
@pytest.mark.parametrize("after_clear", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("create", ["ring", "tables"], indirect=True)
def test_all_sequences_in_the_buffer_are_drawn(tf, create, count, after_clear):
    buffer, model = create(data_spec(tf), 3, LENGTH), BufferModel(3, LENGTH)
    if after_clear:
        fill(buffer, model, 6)
        buffer.clear()
        model.clear()
    fill(buffer, model, count)
    assert buffer.num_frames() == 3 * len(model.frames)
    for num_steps in (1, 2, LENGTH):
        starts = model.starts(num_steps)
        if not starts:
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\A{EMPTY} "):
                buffer.get_next(2, num_steps)
            continue
        data, info = buffer.get_next(500, num_steps)
        drawn = assert_sequences(model, data, info.ids, num_steps)
        assert drawn.keys() == {(segment, start) for segment in range(3) for start in starts}
        np.testing.assert_array_equal(info.probabilities, np.full(500, np.float32(1) / np.float32(3 * len(starts))))


@pytest.mark.parametrize(
    ("count", "num_steps", "reason"),
    [
        (0, None, "It has no items."),
        (0, 2, "It has no items."),
        (3, 4, "It has 3 consecutive items; `num_steps` is 4."),
        (9, 5, "`num_steps` must be at most `max_length`, 4; got 5."),
    ],
)
def test_an_empty_buffer_raises_an_error_with_its_reason(tf, create, count, num_steps, reason):
    buffer, model = create(data_spec(tf), 2, LENGTH), BufferModel(2, LENGTH)
    fill(buffer, model, count)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        buffer.get_next(2, num_steps)
    assert str(error.value) == f"{EMPTY} {reason}"
    dataset = buffer.as_dataset(2, num_steps)  # no error before it is iterated
    with pytest.raises(tf.errors.InvalidArgumentError, match=EMPTY):
        next(iter(dataset))
    with pytest.raises(tf.errors.InvalidArgumentError, match=EMPTY):
        tf.function(lambda: buffer.get_next(2, num_steps))()


def test_sequences_are_equally_likely_in_all_segments(tf, create):
    tf.random.set_seed(0)
    buffer, model = create(data_spec(tf), 2, 5), BufferModel(2, 5)
    fill(buffer, model, 7)
    n = 20_000
    data, info = buffer.get_next(n, 3)
    counts = list(assert_sequences(model, data, info.ids, 3).values())
    assert len(counts) == 6
    assert sum((count - n / 6) ** 2 / (n / 6) for count in counts) < 25.7  # chi-square, 5 degrees: 1e-4


def shapes(tf, nest):
    return tf.nest.map_structure(lambda tensor: tuple(tensor.shape), nest)


def with_both_axes(tf, nest, n, num_steps, *, time_stacked=True):
    """Data or ids as `[N, T]`, whatever axes they were returned with."""
    axis = 0 if n is None else 1
    if num_steps is None:
        nest = tf.nest.map_structure(lambda tensor: tf.expand_dims(tensor, axis), nest)
    elif not time_stacked:
        nest = tf.nest.map_structure(lambda *steps: tf.stack(steps, axis), *nest)
    return tf.nest.map_structure(lambda tensor: tensor if n is not None else tensor[tf.newaxis], nest)


@pytest.mark.parametrize("in_graph", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("n", slow_except(None, 3, of=[None, 1, 3]))
@pytest.mark.parametrize("num_steps", slow_except(None, 2, of=[None, 1, 2]))
@pytest.mark.parametrize("time_stacked", [True, False])
def test_shapes_and_dtypes(tf, create, in_graph, n, num_steps, time_stacked):  # noqa: PLR0917, pytest's parameters
    buffer, model = create(data_spec(tf), 2, LENGTH), BufferModel(2, LENGTH)
    fill(buffer, model, 6)

    def call():
        return buffer.get_next(n, num_steps, time_stacked)

    data, info = (tf.function(call) if in_graph else call)()
    in_tuple = num_steps is not None and not time_stacked
    batch_axis = () if n is None else (n,)
    axes = batch_axis if num_steps is None or in_tuple else (*batch_axis, num_steps)
    expected = {"a": (*axes, 2), "b": (axes, ())}, axes
    if in_tuple:
        expected = tuple((each,) * num_steps for each in expected)
    assert shapes(tf, (data, info.ids)) == expected
    assert {each.dtype for each in tf.nest.flatten(info.ids)} == {tf.int64}
    data = with_both_axes(tf, data, n, num_steps, time_stacked=time_stacked)
    ids = with_both_axes(tf, info.ids, n, num_steps, time_stacked=time_stacked)
    assert_sequences(model, data, ids, num_steps or 1)
    num_starts = 2 * len(model.starts(num_steps or 1))
    np.testing.assert_array_equal(info.probabilities, np.full(batch_axis, 1 / num_starts, np.float32))


@pytest.mark.parametrize("n", slow_except(None, 3, of=[None, 0, 3]))
@pytest.mark.parametrize("num_steps", slow_except(2, of=[None, 2]))
@pytest.mark.parametrize("parallel", slow_except(3, of=[None, 3]))
def test_a_random_dataset_has_the_results_of_get_next(tf, create, n, num_steps, parallel):
    buffer, model = create(data_spec(tf), 2, LENGTH), BufferModel(2, LENGTH)
    dataset = buffer.as_dataset(n, num_steps, parallel)
    fill(buffer, model, 3)
    axes = [] if n is None else [n]
    axes_of_steps = axes if num_steps is None else [*axes, num_steps]
    data_spec_of_element, info_spec = dataset.element_spec
    assert data_spec_of_element["a"] == tf.TensorSpec([*axes_of_steps, 2], tf.float32)
    assert tuple(info_spec) == (tf.TensorSpec(axes_of_steps, tf.int64), tf.TensorSpec(axes, tf.float32))
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    for data, info in dataset.take(20):
        ids = with_both_axes(tf, info.ids, n, num_steps)
        assert_sequences(model, with_both_axes(tf, data, n, num_steps), ids, num_steps or 1)


def test_elements_of_a_random_dataset_see_the_buffer_as_it_is_when_they_are_produced(tf, create):
    buffer, model = create(data_spec(tf), 1, 1), BufferModel(1, 1)
    fill(buffer, model, 1)
    iterator = iter(buffer.as_dataset())
    for _ in range(3):
        data, info = next(iterator)
        assert (values(data), info.ids) == (model.value(0, model.frames[0]), model.frames[0])
        fill(buffer, model, 1)
    buffer.clear()
    with pytest.raises(tf.errors.InvalidArgumentError, match=EMPTY):
        next(iterator)


@pytest.mark.parametrize("num_steps", [None, 2])
def test_no_sequence_can_be_requested(tf, create, num_steps):
    buffer, model = create(data_spec(tf), 2, LENGTH), BufferModel(2, LENGTH)
    fill(buffer, model, 3)
    data, info = buffer.get_next(0, num_steps)
    axes = (0,) if num_steps is None else (0, num_steps)
    assert shapes(tf, (data, info)) == ({"a": (*axes, 2), "b": (axes, ())}, (axes, (0,)))


def test_sampling_does_not_change_earlier_results(tf, create):
    buffer, model = create(data_spec(tf), 1, 2), BufferModel(1, 2)
    fill(buffer, model, 2)
    data, _ = buffer.get_next(5)
    before = values(data).tolist()
    fill(buffer, model, 2)
    buffer.get_next(5)
    assert values(data).tolist() == before


@pytest.mark.parametrize("method", ["get_next", "as_dataset"])
def test_numbers_of_sequences_and_steps_are_checked(tf, create, method):
    call = getattr(create(data_spec(tf), 1, 2), method)
    for arguments, text in [
        ((-1,), "`sample_batch_size` must be at least 0; got -1"),
        ((1.5,), "`sample_batch_size` must be an integer; got 1.5 (float)"),
        ((1, 0), "`num_steps` must be at least 1; got 0"),
    ]:
        with raises(ValueError, text):
            call(*arguments)
        with pytest.raises(ValueError, match=re.escape(text)):
            tf.function(lambda arguments=arguments: call(*arguments))()


@pytest.mark.parametrize(
    "how", slow_except("eager", "parallel dataset", of=["eager", "graph", "dataset", "parallel dataset"])
)
def test_the_seed_of_tensorflow_determines_what_is_sampled(tf, create, how):
    buffer, model = create(data_spec(tf), 2, 50), BufferModel(2, 50)
    fill(buffer, model, 50)

    def draw(seed):
        tf.random.set_seed(seed)
        if "dataset" in how:
            dataset = buffer.as_dataset(4, num_parallel_calls=3 if how == "parallel dataset" else None)
            return [values(data).tolist() for data, _ in dataset.take(5)]
        call = buffer.get_next if how == "eager" else tf.function(buffer.get_next)
        return [values(call(4)[0]).tolist() for _ in range(5)]

    first = draw(1)
    assert len({str(each) for each in first}) == 5
    assert draw(1) == first
    assert draw(2) != first


def test_each_iteration_of_a_dataset_draws_other_sequences(tf, create):
    buffer, model = create(data_spec(tf), 2, 50), BufferModel(2, 50)
    fill(buffer, model, 50)
    dataset = buffer.as_dataset(8)
    first, second = ([values(data).tolist() for data, _ in dataset.take(2)] for _ in range(2))
    assert first != second
