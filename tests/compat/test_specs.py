"""Specs, `Table.note`, nests and their leaves, and classes with the interface of protobuf messages."""

import collections
import pickle
from typing import NamedTuple

import numpy as np
import pytest
from helpers.compat_tables import table
from helpers.support import raises

from engram.compat.reverb import SampleInfo, _nest, _signatures, _table_note
from engram.compat.reverb.reverb_types import HeapOptions, KeyDistributionOptions, RateLimiterInfo
from engram.compat.reverb.tensor_spec import (
    BoundedTensorSpec,
    TensorSpec,
    as_spec,
    dtype_name,
    is_compatible,
    is_spec,
)


class Point(NamedTuple):
    y: object
    x: object


NEST = {"b": [1, (2, None)], "a": Point(y=3, x={"k": 4}), "c": []}


def test_bounds_of_a_single_value_need_no_space():
    """Bounds are decoded unchanged; bounds that need too much space are rejected."""
    low = np.full((210, 160, 3), -0.0, np.float32)
    spec = BoundedTensorSpec((210, 160, 3), np.float32, low, np.float32(np.nan), "n")
    note = _table_note.encode(0, {"x": spec})
    assert len(note) < 300
    decoded = _table_note.decode(note).signature["x"]
    assert decoded.minimum.shape == low.shape
    assert decoded.minimum.tobytes() == low.tobytes()
    assert (decoded.maximum.shape, np.isnan(decoded.maximum)) == ((), True)
    for bound in (np.zeros((0, 3)), np.zeros((1, 1)), np.arange(3.0)):
        spec = BoundedTensorSpec(bound.shape, np.float64, bound, bound + 1)
        assert _table_note.decode(_table_note.encode(0, spec)).signature == spec
    large = BoundedTensorSpec([20_000], np.int32, np.arange(20_000), 30_000)
    with pytest.raises(ValueError, match=r"^Unsupported signature: its encoding has \d+ bytes, the maximum is 65536"):
        table(signature=large)


def test_nests_are_flattened_by_sorted_key():
    assert _nest.flatten(NEST) == [3, 4, 1, 2, None]
    assert _nest.flatten(7) == [7]
    assert _nest.flatten(None) == [None]
    assert _nest.flatten_with_path(NEST) == [
        (("a", "y"), 3),
        (("a", "x", "k"), 4),
        (("b", 0), 1),
        (("b", 1, 0), 2),
        (("b", 1, 1), None),
    ]


def test_unflattened_nests_keep_their_containers():
    assert _nest.unflatten_as(NEST, _nest.flatten(NEST)) == NEST
    ordered = _nest.unflatten_as(collections.OrderedDict(b=0, a=0), [1, 2])
    assert list(ordered.items()) == [("b", 2), ("a", 1)]
    counted = _nest.unflatten_as(collections.defaultdict(list, a=0), [1])
    assert (counted.default_factory, counted["a"]) == (list, 1)
    with raises(ValueError, "the structure has 5 leaves; got 1"):
        _nest.unflatten_as(NEST, [1])


def test_map_structure_returns_the_first_structure():
    assert _nest.map_structure(lambda a, b: a + b, {"x": (1, 2)}, [10, 20]) == {"x": (11, 22)}
    with raises(ValueError, "the nests differ: they have 1, 2 leaves"):
        _nest.map_structure(lambda a, b: a + b, [1], [1, 2])


def test_attrs_classes_are_nests():
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Pair:
        b: object
        a: object

    assert _nest.flatten(Pair(1, (2, 3))) == [1, 2, 3]
    assert _nest.unflatten_as(Pair(1, (2, 3)), [4, 5, 6]) == Pair(4, (5, 6))
    assert _nest.flatten_with_path(Pair(1, 2)) == [(("b",), 1), (("a",), 2)]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1, np.int64, 1),
        (2**63, np.uint64, 2**63),
        (1.5, np.float64, 1.5),
        (True, np.bool_, True),
        (np.float16(2), np.float16, 2.0),
        (1j, np.complex128, 1j),
        ("é", object, "é".encode()),
        (b"a\0", object, b"a\0"),
        (np.array(["a", "bb"]), object, [b"a", b"bb"]),
        (np.array(["a", b"b"], object), object, [b"a", b"b"]),
        (np.array([1, 256], ">i2"), np.dtype("<i2"), [1, 256]),
        (np.array([1.5], ">f8"), np.dtype("<f8"), [1.5]),
        (np.zeros((0, 2), np.uint8), np.uint8, []),
        (np.asfortranarray([[1, 2], [3, 4]]), np.int64, [[1, 2], [3, 4]]),
    ],
)
def test_leaves_are_converted_to_arrays(value, dtype, expected):
    array = _nest.as_array(value)
    assert array.dtype == dtype
    assert array.dtype.isnative
    assert array.tolist() == expected


def test_bfloat16_is_not_converted():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert _nest.as_array(np.ones(2, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "cannot convert None to a tensor; a value must be an array, a number or text"),
        (2**64, "cannot convert 18446744073709551616 (int) to a tensor: it contains an object of type int"),
        (
            np.array([None, 1]),
            (
                "cannot convert array([None, 1], dtype=object) (ndarray) to a tensor: it contains an object of type "
                "NoneType"
            ),
        ),
        (
            np.longdouble(1),
            "cannot convert np.longdouble('1.0') (longdouble) to a tensor: the dtype float128 is not supported",
        ),
    ],
)
def test_leaves_that_cannot_be_converted_are_rejected(value, text):
    with raises(TypeError, text):
        _nest.as_array(value)


def test_specs_are_values():
    spec = TensorSpec([2, None], "float32", "x")
    assert spec == TensorSpec((2, None), np.float32, "x")
    assert len({spec, TensorSpec((2, None), np.float32, "x")}) == 1
    assert spec not in (TensorSpec([2], "float32", "x"), TensorSpec([2, None], "int8", "x"), "x")
    assert repr(spec) == "TensorSpec(shape=(2, None), dtype=float, name='x')"
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301, our own
    bounded = BoundedTensorSpec([2], np.int8, 0, 3)
    assert bounded != TensorSpec([2], np.int8)
    assert bounded != BoundedTensorSpec([2], np.int8, 0, 4)
    assert pickle.loads(pickle.dumps(bounded)) == bounded  # noqa: S301, our own
    assert repr(bounded) == (
        "BoundedTensorSpec(shape=(2,), dtype=int8, name=None, minimum=array(0, dtype=int8), "
        "maximum=array(3, dtype=int8))"
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TensorSpec("ab"), "`shape` must be a sequence of sizes, or None for any rank; got 'ab'"),
        (lambda: TensorSpec(1.5), "`shape` must be a sequence of sizes, or None for any rank; got 1.5"),
        (lambda: TensorSpec([-1]), "each axis of `shape` must be a size, or None for any; got -1"),
        (lambda: TensorSpec([1.5]), "each axis of `shape` must be a size, or None for any; got 1.5"),
        (lambda: TensorSpec([], "datetime64[s]"), "the dtype datetime64[s] is not supported"),
        (lambda: TensorSpec([], "V8"), "the dtype |V8 is not supported"),
        (lambda: TensorSpec([], [("a", "i1")]), "the dtype [('a', 'i1')] is not supported"),
        (lambda: TensorSpec([], None), "`dtype` must be a dtype; got None"),
        (lambda: BoundedTensorSpec([], "string", "a", "b"), "text has no bounds; use a TensorSpec"),
        (lambda: BoundedTensorSpec([], "f4", 0, None), "`maximum` must be a number, or an array of them; got None"),
    ],
)
def test_invalid_specs_are_rejected(make, text):
    with raises(TypeError, text):
        make()


@pytest.mark.parametrize(
    ("shape", "bound", "text"),
    [
        ([2], [1, 2, 3], "`minimum` has the shape (3,), which does not broadcast with (2,)"),
        ([2, None, 3], [[1], [2]], None),
        ([None], [1, 2, 3], None),
        (None, [1, 2, 3], None),
        ([2], [[1, 2], [3, 4]], None),
        ([2], -1, "`minimum` must be of the dtype uint8; got -1"),
        ([2], "a", "`minimum` must be of the dtype uint8; got 'a'"),
    ],
)
def test_bounds_broadcast_and_are_of_the_dtype(shape, bound, text):
    if text is None:
        assert BoundedTensorSpec(shape, np.uint8, bound, 9).minimum.tolist() == bound
    else:
        with raises(ValueError, text):
            BoundedTensorSpec(shape, np.uint8, bound, 9)


def test_as_spec_rejects_other_objects():
    with raises(TypeError, "a tensor spec must have a shape, a dtype and a name; got 5 (int)"):
        as_spec(5)


def test_is_spec_accepts_only_specs():
    assert is_spec(TensorSpec([]))
    assert not is_spec(np.zeros(3))
    assert not is_spec(np.float32)
    assert as_spec(TensorSpec([])) == TensorSpec([])


def test_dtype_names_and_compatible_shapes():
    assert [dtype_name(each) for each in ("f2", "f4", "f8", "i8", "?", "O", "U3", "c8")] == [
        "half",
        "float",
        "double",
        "int64",
        "bool",
        "string",
        "string",
        "complex64",
    ]
    assert is_compatible((None, 2), (5, 2))
    assert is_compatible(None, (1, 2, 3))
    assert not is_compatible((2,), (2, 1))
    assert not is_compatible((2,), (3,))
    columns = _signatures.column_types({"b": TensorSpec([None], "f4"), "a": (TensorSpec([], "i8", "n"),)})
    assert _signatures.columns_text(columns) == (
        "0: Tensor<name: 'a/0/n', dtype: int64, shape: []>, 1: Tensor<name: 'b', dtype: float, shape: [?]>"
    )
    assert _signatures.shape_text(None) == "<unknown>"


def test_notes_that_this_package_did_not_write_are_ignored():
    for note in (None, "", "mine", "[1]", "{}", '{"reverb": 3}'):
        assert _table_note.decode(note) == (None, None, None)


def test_notes_are_decoded_as_encoded():
    assert _table_note.decode(_table_note.encode(-3, (TensorSpec([2], "f4", "x"),), "/here")) == (
        -3,
        (TensorSpec([2], "f4", "x"),),
        "/here",
    )
    assert _table_note.encode(1, {}) == '{"reverb": {"max_times_sampled": 1, "signature": null}}'


def test_messages_know_which_fields_are_set():
    options = KeyDistributionOptions(heap=HeapOptions(min_heap=True), is_deterministic=True)
    assert str(options) == "heap {\n  min_heap: true\n}\nis_deterministic: true\n"
    assert options.WhichOneof("distribution") == "heap"
    assert (options.HasField("heap"), options.HasField("fifo"), options.HasField("distribution")) == (True, False, True)
    options.fifo = True
    assert (options.WhichOneof("distribution"), options.HasField("heap"), options.heap.min_heap) == (
        "fifo",
        False,
        False,
    )
    assert KeyDistributionOptions().WhichOneof("distribution") is None
    assert RateLimiterInfo() == RateLimiterInfo(min_diff=0.0)
    assert RateLimiterInfo() != RateLimiterInfo(min_diff=1)
    assert str(RateLimiterInfo(min_diff=1, max_diff=2.5)) == "min_diff: 1\nmax_diff: 2.5\n"
    info = table().info
    assert pickle.loads(pickle.dumps(info)) == info  # noqa: S301, our own


def test_messages_reject_unknown_fields():
    options = KeyDistributionOptions()
    fields = "fifo, uniform, prioritized, heap, lifo, is_deterministic"
    with raises(AttributeError, f"KeyDistributionOptions has no field `size`; it has {fields}"):
        options.size  # noqa: B018, the access is the point
    with raises(AttributeError, f"KeyDistributionOptions has no field `size`; it has {fields}"):
        options.size = 3
    with raises(ValueError, f"KeyDistributionOptions has no field `size`; it has {fields}"):
        KeyDistributionOptions(size=3)
    with raises(ValueError, f"KeyDistributionOptions has no field `size`; it has {fields}"):
        options.HasField("size")
    with raises(ValueError, "Field KeyDistributionOptions.is_deterministic does not have presence."):
        options.HasField("is_deterministic")
    with raises(ValueError, "KeyDistributionOptions has no group `kind`; it has distribution"):
        options.WhichOneof("kind")
    with raises(TypeError, "KeyDistributionOptions.fifo must be of type bool; got 3"):
        options.fifo = 3


def test_sample_info_has_the_fields_of_reverb():
    assert SampleInfo.zeros() == (0, 0.0, 0, 0.0, 0)
    assert SampleInfo._fields == ("key", "probability", "table_size", "priority", "times_sampled")


@pytest.mark.frameworks
def test_tensorflow_types_are_accepted():
    import tensorflow as tf  # noqa: PLC0415
    from tensorflow.python.framework import tensor_spec  # noqa: PLC0415

    assert SampleInfo.tf_dtypes() == (tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)
    assert [shape.rank for shape in SampleInfo.tf_shapes()] == [0] * 5
    signature = {
        "a": tf.TensorSpec([2, None], tf.float32, "n"),
        "b": (tf.TensorSpec([], tf.string), tf.TensorSpec(None, tf.bfloat16)),
        "c": [tensor_spec.BoundedTensorSpec([2], tf.int32, 0, [3, 4], "c")],
    }
    assert table(signature=signature).info.signature == signature
    assert as_spec(signature["b"][1]).shape is None
    with raises(TypeError, "the dtype tf.resource is not supported"):
        as_spec(tf.TensorSpec([], tf.resource))
    text = _nest.as_array(tf.constant(["a", "é"]))
    assert (text.dtype, text.tolist()) == (object, [b"a", "é".encode()])
    assert _nest.as_array(tf.constant("a")).tolist() == b"a"
    assert _nest.as_array(tf.constant(1.5)).dtype == np.float32
    assert _nest.as_array(tf.ones([2], tf.bfloat16)).dtype.name == "bfloat16"
