"""`add_batch`: what it accepts, and that a rejected call leaves the buffer unchanged."""

import re

import numpy as np
import pytest
from helpers.support import raises, slow_except
from helpers.tf_agents_buffers import BufferModel, batch, data_spec, fill, values

pytestmark = pytest.mark.frameworks

DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]


def all_values(buffer):
    return values(buffer.gather_all()).tolist()


def as_tensors(tf, items):
    return tf.nest.map_structure(tf.constant, items)


@pytest.mark.parametrize("kind", ["arrays", "tensors", "variables", "wider arrays", "lists"])
def test_values_that_convert_to_tensors_are_accepted(tf, create, kind):
    buffer, items = create(data_spec(tf), 2, 3), batch(2, 5)
    items["a"], column = (
        {
            "arrays": lambda each: each,
            "tensors": tf.constant,
            "variables": tf.Variable,
            "wider arrays": lambda each: each.astype(np.float64) if each.ndim == 2 else each.astype(np.int32),
            "lists": lambda each: tf.constant(each.tolist(), each.dtype),
        }[kind](each)
        for each in (items["a"], items["b"][0])
    )
    items["b"] = (column, ())
    assert buffer.add_batch(items) is None
    assert all_values(buffer) == [[5], [1005]]


@pytest.mark.parametrize("dtype", slow_except(*DTYPES[::4], of=DTYPES))
def test_dtypes(tf, create, dtype):
    spec = tf.TensorSpec([2], dtype)
    buffer = create(spec, 1, 3)
    items = [tf.cast([[number % 2, number]], dtype) for number in range(3)]
    for each in items[:2]:
        buffer.add_batch(each)
    tf.function(lambda: [buffer.add_batch(items[2]), None][1])()
    stored = buffer.gather_all()
    assert stored.dtype == spec.dtype
    np.testing.assert_array_equal(stored, tf.stack(items, 1))
    assert buffer.get_next(4, 2)[0].dtype == spec.dtype
    assert next(iter(buffer.as_dataset(4)))[0].dtype == spec.dtype


def test_single_tensors_and_axes_without_elements(tf, create):
    buffer = create(tf.TensorSpec([0, 3], tf.float32), 2, 3)
    for _ in range(4):
        buffer.add_batch(np.zeros((2, 0, 3), np.float32))
    assert buffer.gather_all().shape == (2, 3, 0, 3)
    assert buffer.get_next(5, 2)[0].shape == (5, 2, 0, 3)


def rejected(tf):
    """Changes of a batch for 2 segments, each with the error and its text; in a graph, errors may differ."""
    valid = batch(2, 0)
    a, b = valid["a"], valid["b"][0]
    shape_error = tf.errors.InvalidArgumentError
    return [
        (
            valid | {"a": a[:1]},
            shape_error,
            "`items`: column `a` must have shape [2, 2], with the batch axis first; got [1, 2]",
        ),
        (batch(3, 0), shape_error, "`items`: column `a` must have shape [2, 2], with the batch axis first; got [3, 2]"),
        (
            {"a": a[0], "b": (b[0], ())},
            shape_error,
            "`items`: column `a` must have shape [2, 2], with the batch axis first; got [2]",
        ),
        (
            valid | {"b": (b[0], ())},
            shape_error,
            "`items`: column `b/0` must have shape [2], with the batch axis first; got []",
        ),
        (
            valid | {"a": np.zeros((2, 3), np.float32)},
            shape_error,
            "`items`: column `a` must have shape [2, 2], with the batch axis first; got [2, 3]",
        ),
        (
            valid | {"a": np.array([["x"] * 2] * 2)},
            ValueError,
            "`items`: column `a` must be float32, or convert to it: ",
        ),
        ({"a": a}, ValueError, "`items` must have the structure of `data_spec`: "),
        (valid | {"b": [b, ()]}, ValueError, "`items` must have the structure of `data_spec`: "),
        (valid | {"c": b}, ValueError, "`items` must have the structure of `data_spec`: "),
    ]


def test_rejected_items_change_nothing(tf, create):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    fill(buffer, model, 2)
    for items, error, text in rejected(tf):
        with pytest.raises(error, match=rf"\A{re.escape(text)}"):
            buffer.add_batch(items)
        with pytest.raises(error, match=re.escape(text)):
            tf.function(lambda items=items: [buffer.add_batch(items), None][1])()
    with pytest.raises(ValueError, match=r"\A`items`: column `a` must be float32, or convert to it: "):
        buffer.add_batch(as_tensors(tf, batch(2, 0)) | {"a": tf.zeros([2, 2], tf.float64)})
    assert buffer.num_frames() == 4
    assert buffer.get_next(1)[1].ids.numpy().max() < 2
    fill(buffer, model, 1)
    assert all_values(buffer) == [[0, 1, 2], [1000, 1001, 1002]]


def test_shapes_that_a_graph_does_not_know_are_checked_when_it_runs(tf, create):
    buffer = create(data_spec(tf), 2, 4)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32), tf.TensorSpec([None], tf.int64)])
    def add(a, b):
        buffer.add_batch({"a": a, "b": (b, ())})

    items = batch(2, 7)
    add(items["a"], items["b"][0])
    for a, b in [(items["a"][:1], items["b"][0]), (items["a"], np.zeros(3, np.int64)), (items["a"][0], items["b"][0])]:
        with pytest.raises(tf.errors.InvalidArgumentError):
            add(a, b)
    assert all_values(buffer) == [[7], [1007]]


def test_specs_and_sizes_are_checked(tf, create):
    number = tf.TensorSpec([], tf.float32)
    for arguments, error, text in [
        (((), 1), ValueError, "`data_spec` must have at least one tf.TensorSpec; got none"),
        (({"x": 3}, 1), TypeError, "`data_spec`: column `x` must be a tf.TensorSpec; got 3"),
        (
            ({"x": tf.TensorSpec([None, 2], tf.float32)}, 1),
            ValueError,
            "`data_spec`: column `x` must have axes of known size; got (None, 2)",
        ),
        ((number, 0), ValueError, "`batch_size` must be at least 1; got 0"),
        ((number, 2, 0), ValueError, "`max_length` must be at least 1; got 0"),
        ((number, 2, 2**40), ValueError, f"`max_length` must be at most {2**39}; got {2**40}"),
        ((number, 1.0), ValueError, "`batch_size` must be an integer; got 1.0 (float)"),
    ]:
        with raises(error, text):
            create(*arguments)
    with raises(ValueError, "`dataset_window_shift` must be at least 1; got 0"):
        create(number, 1, dataset_window_shift=0)


@pytest.mark.parametrize("count", slow_except(0, 5, of=[0, 1, 3, 4, 5, 9]))
@pytest.mark.parametrize("create", ["ring", "tables"], indirect=True)
def test_gather_all_and_num_frames(tf, create, count):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    fill(buffer, model, count)
    expected = [[model.value(segment, frame) for frame in model.frames] for segment in range(2)]
    assert all_values(buffer) == expected
    assert buffer.gather_all()["a"].shape == (2, len(model.frames), 2)
    frames = buffer.num_frames()
    assert (frames, frames.dtype) == (2 * len(model.frames), tf.int64)
    in_graph = tf.function(lambda: (buffer.gather_all(), buffer.num_frames()))()
    assert values(in_graph[0]).tolist() == expected
    assert in_graph[1] == frames


def test_clear_removes_all_items_and_ids_begin_again(tf, create):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    for count in (3, 6):
        fill(buffer, model, count)
        assert buffer.clear() is None
        model.clear()
        assert buffer.num_frames() == 0
        assert all_values(buffer) == [[], []]
        fill(buffer, model, 1)
        data, info = buffer.get_next(5)
        assert info.ids.numpy().tolist() == [0] * 5
        assert set(values(data).tolist()) <= {model.value(0, 0), model.value(1, 0)}


def test_masked_arrays_are_converted_by_tensorflow(tf, create):
    """As TensorFlow does it: their mask is ignored. TF-Agents' buffer does the same."""
    buffer = create(tf.TensorSpec([], tf.int64), 2, 3)
    buffer.add_batch(np.ma.masked_array([1, 2], [True, False]))
    assert buffer.gather_all().numpy().tolist() == [[1], [2]]
