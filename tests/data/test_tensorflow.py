"""A table as a `tf.data.Dataset`."""

import gc
import re
from collections import namedtuple

import numpy as np
import pytest
from helpers.data_tables import fill, insert, queue
from helpers.support import raises, slow_except, wait_until

from engram import ArraySpec, Store, Table
from engram.data import Element, Info
from engram.errors import DeadlineExceededError, InvalidArgumentError, UnknownTableError

pytestmark = pytest.mark.frameworks


@pytest.fixture
def dataset():
    from engram.data import tensorflow  # noqa: PLC0415, the extra

    return tensorflow.dataset


def xs(elements):
    return [element.data["x"].numpy().tolist() for element in elements]


def specs(elements):
    """Dtype, shape, and whether ragged, of each column by name."""
    nest = elements.element_spec.data
    return {
        name: (spec.dtype.name, spec.shape.as_list(), type(spec).__name__ == "RaggedTensorSpec")
        for name, spec in nest.items()
    }


# --- elements ------------------------------------------------------------------------------------


def test_batches_contain_the_items_in_order(open_store, dataset, tf):
    store = open_store(queue())
    fill(store, [2] * 4)
    elements = dataset(store, "t", batch_size=2, max_batches=2)
    assert isinstance(elements, tf.data.Dataset)
    sampled = list(elements)
    assert xs(sampled) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert (type(sampled[0]), type(sampled[0].info), sampled[0].mask) == (Element, Info, ())
    dtypes = ["uint64", "float64", "int64", "float64", "int32", "float64", "float64"]
    assert [array.dtype.name for array in sampled[0].info] == dtypes
    assert [array.shape.as_list() for array in sampled[0].info] == [[2]] * 7
    assert sampled[0].info.priority.numpy().tolist() == [2, 2]
    assert isinstance(sampled[0].data["y"], tuple), "tf.data treats lists as tensors"
    assert sampled[0].data["y"][0].shape == (2, 2, 1)


@pytest.mark.parametrize("options", [{"batch_size": 2}, {}, {"steps": True}, {"steps": True, "batch_size": 3}])
@pytest.mark.parametrize("has_signature", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_elements_match_the_element_spec(dataset, tf, options, has_signature):
    signature = {"x": ArraySpec((None,), "int64"), "y": [ArraySpec((None, 1), "float32")]} if has_signature else None
    with Store([queue(signature=signature)]) as store:
        fill(store, [2] * 4)
        elements = dataset(store, "t", timeout=0.05, **options)
        sampled = list(elements)
    for element in sampled:
        for spec, value in zip(tf.nest.flatten(elements.element_spec), tf.nest.flatten(element), strict=True):
            assert spec.is_compatible_with(value)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({"batch_size": 2}, ([2, None], [2, None, 3], [2, None])),
        ({}, ([None], [None, 3], [None])),
        ({"steps": True}, ([], [3], [])),
        ({"steps": True, "batch_size": 2}, ([None], [None, 3], [None])),
        ({"steps": True, "batch_size": 2, "drop_remainder": True}, ([2], [2, 3], [2])),
        ({"batch_size": 2, "pad": True}, ([2, None], [2, None, 3], [2, None])),
    ],
)
def test_specs_are_derived_from_the_first_element(open_store, dataset, options, shapes):
    x, cell, word = shapes
    store = open_store(queue())
    item = {"x": np.arange(2), "cell": np.zeros((2, 3), np.float16), "word": np.array(["a", "b"])}
    insert(store, item, item)
    column_specs = specs(dataset(store, "t", **options))
    assert column_specs == {"x": ("int64", x, False), "cell": ("float16", cell, False), "word": ("string", word, False)}
    assert (store.info()["t"].samples, store.info()["t"].size) == (0, 2), "the inspected items were returned"


SIGNATURE = {
    "x": ArraySpec((None,), "int64"),
    "cell": ArraySpec((2, None, 3), "bfloat16"),
    "w": ArraySpec((), "string"),
}


@pytest.mark.parametrize(
    ("options", "x", "cell", "w"),
    [
        ({"batch_size": 4}, ([4, None], True), [4, 2, None, 3], [4]),
        ({"batch_size": 4, "pad": True}, ([4, None], False), [4, 2, None, 3], [4]),
        ({}, ([None], False), [2, None, 3], []),
        ({"steps": True, "batch_size": 4}, ([None], False), [None, None, 3], [None]),
    ],
)
def test_specs_are_derived_from_a_signature(dataset, options, x, cell, w):
    with Store([queue(signature=SIGNATURE)]) as store:
        column_specs = specs(dataset(store, "t", **options))
    assert column_specs == {"x": ("int64", *x), "cell": ("bfloat16", cell, False), "w": ("string", w, False)}


@pytest.mark.parametrize(
    "options",
    slow_except(
        {},
        {"steps": True, "batch_size": 3},
        of=[{}, {"steps": True}, {"batch_size": 2}, {"steps": True, "batch_size": 3}],
    ),
)
def test_cells_may_be_empty(open_store, dataset, options):
    store = open_store(Table("t"))
    insert(store, {"x": np.zeros([2, 0], np.float32)}, {"x": np.zeros([2, 0], np.float32)})
    for element in dataset(store, "t", **options).take(5):
        assert element.data["x"].shape[-1] == 0
        assert element.data["x"].shape == (
            *([options["batch_size"]] if "batch_size" in options else []),
            *([] if "steps" in options else [2]),
            0,
        )


def test_empty_cells_need_a_spec_with_their_size(dataset, tf):
    with Store([Table("t")]) as store:
        insert(store, {"x": np.zeros([2, 0], np.float32)})
        elements = dataset(store, "t", element_spec={"x": tf.TensorSpec([None, None], tf.float32)})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"`x` has values of shape \[2, 0\]"):
            next(iter(elements))


def test_columns_without_a_time_axis_have_fixed_shapes(dataset):
    with Store([queue()]) as store:
        insert(store, {"x": 1, "y": np.zeros(3)}, {"x": 2, "y": np.ones(3)}, time_axis=False)
        elements = dataset(store, "t", batch_size=2)
        assert specs(elements) == {"x": ("int64", [2], False), "y": ("float64", [2, 3], False)}
        assert specs(dataset(store, "t")) == {"x": ("int64", [], False), "y": ("float64", [3], False)}
        assert xs(elements.take(1)) == [[1, 2]]


def test_columns_of_variable_length_are_ragged_in_every_batch(open_store, dataset, tf):
    store = open_store(queue(signature={"x": ArraySpec((None,), "int64"), "y": [ArraySpec((None, 1), "float32")]}))
    fill(store, [2, 3, 2, 2])
    elements = dataset(store, "t", batch_size=2, max_batches=2)
    [uneven, even] = elements
    assert isinstance(uneven.data["x"], tf.RaggedTensor)
    assert uneven.data["x"].to_list() == [[0, 1], [2, 3, 4]]
    assert even.data["x"].to_list() == [[5, 6], [7, 8]], "ragged in every batch"
    assert even.data["y"][0].shape.as_list() == [2, None, 1]
    assert elements.element_spec.data["x"].is_compatible_with(even.data["x"])


def test_columns_are_ragged_if_the_first_batch_is(dataset):
    with Store([queue()]) as store:
        fill(store, [2, 3, 1, 1])
        [first, second] = dataset(store, "t", batch_size=2, max_batches=2)
    assert (first.data["x"].to_list(), second.data["x"].to_list()) == ([[0, 1], [2, 3, 4]], [[5], [6]])


def test_pad_fills_items_up_to_the_longest(open_store, dataset):
    store = open_store(queue())
    fill(store, [2, 3, 2, 2])
    elements = dataset(store, "t", batch_size=2, max_batches=2, pad=True)
    uneven, even = elements
    assert xs([uneven, even]) == [[[0, 1, 0], [2, 3, 4]], [[5, 6], [7, 8]]]
    assert uneven.mask["x"].numpy().tolist() == [[True, True, False], [True] * 3]
    assert even.mask["y"][0].numpy().tolist() == [[True, True]] * 2
    assert elements.element_spec.mask["x"].shape.as_list() == [2, None]


def test_columns_of_fixed_length_have_no_mask(dataset):
    signature = {"x": ArraySpec((None,), "int64"), "y": ArraySpec((2,), "int64")}
    with Store([queue(signature=signature)]) as store:
        writer = store.writer(history=3)
        for t in range(3):
            writer.append({"x": t, "y": t})
        for length in (1, 3):
            writer.create_item("t", 1.0, {"x": writer.history["x"][-length:], "y": writer.history["y"][-2:]})
        writer.flush()
        [element] = dataset(store, "t", batch_size=2, max_batches=1, pad=True)
    assert element.mask["x"].numpy().tolist() == [[True, False, False], [True] * 3]
    assert element.mask["y"] is None


@pytest.mark.parametrize("batch_size", slow_except(3, of=[None, 2, 3]))
def test_steps_are_yielded_in_order(open_store, dataset, batch_size):
    store = open_store(queue())
    fill(store, [2, 3])
    steps = xs(dataset(store, "t", steps=True, batch_size=batch_size, timeout=0.2))
    assert steps == {None: [0, 1, 2, 3, 4], 2: [[0, 1], [2, 3], [4]], 3: [[0, 1, 2], [3, 4]]}[batch_size]
    fill(store, [2, 3])
    steps = xs(dataset(store, "t", steps=True, batch_size=3, drop_remainder=True, timeout=0.2))
    assert steps == [[0, 1, 2]]


Pair = namedtuple("Pair", "left right")  # noqa: PYI024, not typed


def test_nests_keep_their_structure(dataset):
    with Store([queue()]) as store:
        insert(store, Pair([np.arange(2), {"b": np.arange(2)}], (np.array(["a", "b"]),)))
        [element] = dataset(store, "t", max_batches=1)
    assert isinstance(element.data, Pair)
    assert element.data.left[1]["b"].numpy().tolist() == [0, 1]
    assert element.data.right[0].numpy().tolist() == [b"a", b"b"]


@pytest.mark.parametrize("name", ["bool", "uint16", "float16", "complex64", "bfloat16"])
def test_dtypes_are_kept(dataset, name):
    import ml_dtypes  # noqa: PLC0415, NumPy's bfloat16

    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    with Store([queue()]) as store:
        insert(store, np.array([0, 1]).astype(dtype))
        [element] = dataset(store, "t", batch_size=1, max_batches=1)
    assert element.data.dtype.name == name
    assert element.data.numpy().astype(np.complex64).tolist() == [[0, 1]]


def test_float8_is_rejected(dataset):
    signature = {"x": ArraySpec((None,), "float8_e5m2")}
    text = (
        "column `x` has dtype float8_e5m2, which `engram.data.tensorflow` does not support; read this table with "
        "`engram.data.numpy`, or store another dtype"
    )
    with Store([queue(signature=signature)]) as store, raises(InvalidArgumentError, text):
        dataset(store, "t")


# --- element_spec --------------------------------------------------------------------------------


def test_an_element_spec_may_be_given(dataset, tf):
    with Store([queue()]) as store:
        element_spec = {
            "x": tf.TensorSpec([None, 2], tf.int64),
            "y": [tf.RaggedTensorSpec([2, None, 1], tf.float32, 1)],
        }
        elements = dataset(store, "t", batch_size=2, element_spec=element_spec)
        assert elements.element_spec.data["x"].shape.as_list() == [2, 2]
        same = dataset(store, "t", batch_size=2, element_spec=elements.element_spec)
        assert same.element_spec == elements.element_spec
        fill(store, [2, 2])
        [element] = same.take(1)
    assert xs([element]) == [[[0, 1], [2, 3]]]
    assert element.data["y"][0].to_list() == [[[0], [1]], [[2], [3]]]


def test_a_spec_must_state_that_an_axis_has_size_0(dataset, tf):
    with Store([queue()]) as store:
        insert(store, np.zeros((2, 0, 3)))
        elements = dataset(store, "t", element_spec=tf.TensorSpec([None, None, 3], tf.float64))
        text = (
            "the data has values of shape [2, 0, 3], but its spec does not state that an axis has size 0; state all "
            "sizes except that of the time axis in `element_spec` or the table's signature"
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
            next(iter(elements))


def test_row_splits_may_have_32_bits(dataset, tf):
    with Store([queue()]) as store:
        insert(store, np.arange(2), np.arange(1))
        element_spec = tf.RaggedTensorSpec([2, None], tf.int64, row_splits_dtype=tf.int32)
        elements = dataset(store, "t", batch_size=2, element_spec=element_spec, max_batches=1)
        assert elements.element_spec.data == element_spec
        [element] = elements
    assert element.data.row_splits.dtype == tf.int32


def bad_specs():
    import tensorflow as tf  # noqa: PLC0415, the extra

    ragged = tf.RaggedTensorSpec([None, None], tf.int64)
    only = "must not be ragged: only batches of whole items without `pad` are"
    return [
        ({"x": 3}, {}, "`x` must be a tf.TensorSpec or a tf.RaggedTensorSpec; got 3"),
        (
            {"x": tf.TensorSpec(None, tf.int64)},
            {},
            "`x` must have a known number of axes; got TensorSpec(shape=<unknown>, dtype=tf.int64, name=None)",
        ),
        ({"x": tf.TensorSpec([3, 2], tf.int64)}, {}, "`x` has a batch axis of 3; expected 2, the `batch_size`"),
        ({"x": ragged}, {"steps": True}, f"`x` {only}"),
        ({"x": ragged}, {"batch_size": None}, f"`x` {only}"),
        ({"x": ragged}, {"pad": True}, f"`x` {only}"),
        (
            {"x": tf.RaggedTensorSpec([2, None, None], tf.int64, ragged_rank=2)},
            {},
            "`x` must have a ragged_rank of 1, the time axis; got 2",
        ),
        (3, {}, "the data must be a tf.TensorSpec or a tf.RaggedTensorSpec; got 3"),
    ]


def test_bad_specs_are_rejected(dataset):
    with Store([queue()]) as store:
        for element_spec, options, text in bad_specs():
            with raises(InvalidArgumentError, f"`element_spec`: {text}"):
                dataset(store, "t", **{"batch_size": 2, "element_spec": element_spec, **options})


def mismatches():
    import tensorflow as tf  # noqa: PLC0415, the extra

    pair = [2, None]
    return [
        (
            {"z": tf.TensorSpec(pair, tf.int64)},
            "the columns do not match `element_spec`: got the columns `x`, expected the columns `z`",
        ),
        (
            tf.TensorSpec(pair, tf.int64),
            "the columns do not match `element_spec`: got the columns `x`, expected a single array",
        ),
        (
            {"x": tf.TensorSpec(pair, tf.int32)},
            (
                "column `x` does not match `element_spec`: got int64 [2, None], ragged, expected int32 [2, None]; "
                "items of a batch differ"
            ),
        ),
        (
            {"x": tf.RaggedTensorSpec(pair, tf.int32)},
            ("column `x` does not match `element_spec`: got int64 [2, None], ragged, expected int32 [2, None], ragged"),
        ),
        (
            {"x": tf.TensorSpec(pair, tf.int64)},
            (
                "column `x` does not match `element_spec`: got int64 [2, None], ragged, expected int64 [2, None]; "
                "items of a batch differ in length: give `pad=True`, a table with a signature, or an `element_spec` "
                "with a tf.RaggedTensorSpec"
            ),
        ),
        (
            {"x": tf.RaggedTensorSpec([2, None, 3], tf.int64, 1)},
            (
                "column `x` does not match `element_spec`: got int64 [2, None], ragged, "
                "expected int64 [2, None, 3], ragged"
            ),
        ),
    ]


def test_items_that_do_not_match_the_element_spec_raise(dataset, tf):
    with Store([queue()]) as store:
        insert(store, {"x": np.arange(2)}, {"x": np.arange(3)})
        for element_spec, text in mismatches():
            elements = dataset(store, "t", batch_size=2, element_spec=element_spec)
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                next(iter(elements))
            assert f"SignatureError: {text}" in str(caught.value)
            gc.collect()
            wait_until(lambda: store.info()["t"].samples == 0)
        insert(store, {"x": np.zeros((2, 2))}, {"x": np.array(["a", "b"])})
        store.sample("t", 2)
        single = dataset(store, "t", element_spec={"x": tf.TensorSpec([None], tf.string)})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r": got float64 \[2, 2\], expected string"):
            next(iter(single))


def test_a_spec_cannot_be_derived_without_an_element(dataset):
    with Store([queue()]) as store:
        text = (
            "table `t` returned no element within 0.05 s to derive the `element_spec` from; give an `element_spec`, or "
            "a signature to the table"
        )
        with raises(DeadlineExceededError, text):
            dataset(store, "t", timeout=0.05)
        with raises(UnknownTableError, "no table `q`; known tables: `t`"):
            dataset(store, "q")
        with raises(InvalidArgumentError, "`batch_size` must be at least 1; got 0"):
            dataset(store, "t", batch_size=0)


# --- pipelines -----------------------------------------------------------------------------------


def test_a_dataset_works_with_batch_map_and_reduce(dataset, tf):
    with Store([queue()]) as store:
        fill(store, [2] * 12)
        elements = dataset(store, "t", max_batches=4)
        assert xs(elements.batch(2)) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        assert xs(elements.map(lambda e: e._replace(data={"x": e.data["x"] + 1}))) == [
            [9, 10],
            [11, 12],
            [13, 14],
            [15, 16],
        ]
        total = elements.reduce(np.int64(0), lambda total, element: total + tf.reduce_sum(element.data["x"]))
        assert total.numpy() == sum(range(16, 24))


def test_interleaved_datasets_yield_each_item_once(dataset, tf):
    with Store([queue()]) as store:
        fill(store, [1] * 8)
        elements = tf.data.Dataset.range(2).interleave(
            lambda _: dataset(store, "t", batch_size=2, max_batches=2, prefetch=1),
            num_parallel_calls=2,
            deterministic=False,
        )
        assert sorted(np.concatenate(xs(elements)).ravel().tolist()) == list(range(8))
        fill(store, [1] * 8)
        elements = tf.data.Dataset.range(2).interleave(
            lambda _: dataset(store, "t", max_batches=4, prefetch=1), cycle_length=2
        )
        assert sorted(np.concatenate(xs(elements)).tolist()) == list(range(8))


def test_a_tf_function_can_iterate(dataset, tf):
    with Store([queue()]) as store:
        fill(store, [2] * 4)
        elements = dataset(store, "t", batch_size=2, max_batches=2)

        @tf.function
        def total():
            result = np.int64(0)
            for element in elements:
                result += tf.reduce_sum(element.data["x"])
            return result

        assert total().numpy() == sum(range(8))


def test_elements_keep_the_order_of_the_table(dataset):
    with Store([queue()]) as store:
        fill(store, [1] * 64)
        elements = dataset(store, "t", batch_size=2, max_batches=32).prefetch(4)
        assert np.concatenate(xs(elements)).ravel().tolist() == list(range(64))
