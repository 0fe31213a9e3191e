"""Values of columns: every dtype, memory layout and Python type, through every writer."""

import re

import numpy as np
import pytest
from helpers.support import raises

from engram import Pattern, Store, Table
from engram.errors import SignatureError

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def by_insert(store, value):
    store.insert({"x": value}, {"t": 1.0})
    return store.sample("t", 1, timeout=0).data["x"][0]


def by_writer(store, value):
    with store.writer() as writer:
        writer.append({"x": value})
        writer.create_item("t", num_steps=1)
        from_history = writer.history["x"][-1].numpy()
    data = store.sample("t", 1, timeout=0).data["x"][0, 0]
    np.testing.assert_array_equal(np.asarray(from_history, object), np.asarray(data, object))
    return data


def by_patterns(store, value):
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        writer.append({"x": value})
    return store.sample("t", 1, timeout=0).data["x"][0, 0]


def by_batches(store, value):
    value = np.asarray(value)
    with store.batched_writer(2, [Pattern("t", num_steps=1)]) as writer:
        writer.append_batch({"x": np.stack([value, value])})
    return store.sample("t", 1, timeout=0).data["x"][0, 0]


@pytest.fixture(params=[by_insert, by_writer, by_patterns, by_batches])
def through(request, open_store):
    return lambda value: request.param(open_store(Table("t")), value)


def some(dtype, shape):
    """Random numbers from 0 to 99, or booleans."""
    random = np.random.default_rng(0)
    return np.asarray(random.integers(0, 2 if dtype == "?" else 100, shape)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_stored_unchanged(through, dtype):
    for shape in ((), (3,), (2, 3), (0,), (2, 0)):
        value = some(dtype, shape)
        stored = np.asarray(through(value))
        assert (stored.dtype, stored.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(stored, value)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_are_stored_unchanged(through, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = np.arange(-3, 3).astype(getattr(ml_dtypes, name))
    stored = through(value)
    assert stored.dtype == value.dtype
    np.testing.assert_array_equal(stored, value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(6, dtype=">f8"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10)[::-3],
        np.arange(10)[::2],
        np.broadcast_to(np.float32(7), (2, 3)),
        np.array(5, ">u2"),
        np.frombuffer(b"\0" + np.arange(4.0).tobytes(), np.uint8)[1:].view(np.float64),
        np.float32(1.5),
        np.int8(-3),
        np.bool_(1),
    ],
    ids=lambda value: f"{value.dtype.str}{value.shape}",
)
def test_arrays_of_every_memory_layout_are_stored(through, value):
    stored = np.asarray(through(value))
    assert stored.dtype == value.dtype.newbyteorder("=")
    np.testing.assert_array_equal(stored, value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array("text"), "text"),
        (np.array(["a", "", "ü"]), ["a", "", "ü"]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array([["a"], ["b"]], ">U3"), [["a"], ["b"]]),
        (np.zeros((0,), "S3"), []),
        (np.zeros((2, 0), "U3"), [[], []]),
    ],
)
def test_arrays_of_text_and_bytes_are_returned_as_objects(through, value, expected):
    stored = np.asarray(through(value), object)
    assert (stored.dtype, stored.tolist()) == (np.dtype(object), expected)


@pytest.mark.parametrize("value", ["", "text", "nul\0", "\0", b"bytes\0\0", "ü€😀", np.str_("n")])
@pytest.mark.parametrize("way", [by_insert, by_writer, by_patterns])
def test_python_text_keeps_every_character(open_store, way, value):
    assert way(open_store(Table("t")), value) == value


@pytest.mark.jax
def test_jax_arrays_are_stored_unchanged(open_store):
    import jax.numpy as jnp  # noqa: PLC0415, an optional package

    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_):
        value = jnp.arange(6).reshape(2, 3).astype(dtype)
        for way in (by_insert, by_writer, by_patterns):
            stored = way(open_store(Table("t")), value)
            assert stored.dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(stored, np.asarray(value))


# --- Python numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(True, "?"), (3, "i8"), (-3, "i8"), (2**63, "u8"), (2.5, "f8"), (1j, "c16")],
)
@pytest.mark.parametrize("way", [by_insert, by_writer, by_patterns])
def test_python_numbers_become_columns_of_these_dtypes(open_store, way, value, dtype):
    stored = np.asarray(way(open_store(Table("t")), value))
    assert (stored.dtype, stored.item()) == (np.dtype(dtype), value)


def append_both(open_store, first, second):
    """Appends both values to a column; returns the second as stored."""
    store = open_store(Table("t"))
    with store.writer() as writer:
        writer.append({"x": first})
        writer.append({"x": second})
        return writer.history["x"][-1].numpy()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (np.int8(0), -128),
        (np.uint8(0), 255),
        (np.int16(0), 300),
        (np.uint64(0), 2**64 - 1),
        (np.float32(0), 1),
        (np.float32(0), 2.5),
        (np.float16(0), 2.5),
        (np.float64(0), 10**300),
        (np.complex64(0), 2),
        (np.complex64(0), 2.5),
        (np.complex64(0), 1j),
        (np.bool_(0), True),
    ],
    ids=str,
)
def test_python_numbers_take_the_columns_dtype(open_store, column, value):
    stored = append_both(open_store, column, value)
    assert (stored.dtype, stored.item()) == (column.dtype, column.dtype.type(value).item())


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (np.int8(0), 128, "column `x` is 128, which int8 cannot hold"),
        (np.uint8(0), -1, "column `x` is -1, which uint8 cannot hold"),
        (0, 2**63, "column `x` is 9223372036854775808, which int64 cannot hold"),
        (np.float32(0), 10**400, f"column `x` is {10**400}, which float32 cannot hold"),
        (np.float64(0), 10**400, f"column `x` is {10**400}, which float64 cannot hold"),
        (np.float16(0), 10**400, f"column `x` is {10**400}, which float16 cannot hold"),
        (np.int8(0), 1.0, "column `x` must keep its dtype; got float64[] after int8[]"),
        (np.int8(0), True, "column `x` must keep its dtype; got bool[] after int8[]"),
        (np.bool_(0), 1, "column `x` must keep its dtype; got int64[] after bool[]"),
        (np.float32(0), 1j, "column `x` must keep its dtype; got complex128[] after float32[]"),
        (np.float32(0), "a", "column `x` must keep its dtype; got str[] after float32[]"),
        ("a", 1.0, "column `x` must keep its dtype; got float64[] after str[]"),
        (
            np.float32(0),
            np.float64(0),
            "column `x` must keep its dtype; got float64[] after float32[]",
        ),
        (
            np.zeros(2, np.float32),
            np.zeros(3),
            "column `x` must keep its dtype; got float64[3] after float32[2]",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_a_column_cannot_hold_are_rejected(open_store, column, value, text):
    with raises(SignatureError, text):
        append_both(open_store, column, value)


@pytest.mark.parametrize("value", [np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4"), np.longdouble(1)])
def test_dtypes_a_column_cannot_have_are_rejected(through, value):
    with pytest.raises(
        SignatureError,
        match=r"^column `x` has the unsupported dtype .*; supported dtypes are bool, int8, .*, string, str$",
    ):
        through(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "the data must be an array, a number or a string; got None"),
        (2**64, "the data is 18446744073709551616, which uint64 cannot hold"),
        (object(), "the data contains a Python object of type object; supported"),
        (np.zeros(2, "M8[s]"), "the data has the unsupported dtype datetime64[s]; supported dtypes are bool, "),
    ],
)
def test_errors_call_a_single_leaf_the_data(open_store, value, text):
    with pytest.raises(SignatureError, match="^" + re.escape(text)):
        open_store(Table("t")).insert(value, {"t": 1.0})


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array([1, "a", None], object)])
def test_objects_a_column_cannot_hold_are_rejected(open_store, value):
    with pytest.raises(
        SignatureError, match=r"^column `x` contains a Python object of type (set|object|int); supported"
    ):
        by_writer(open_store(Table("t")), value)


@pytest.mark.parametrize("write", [by_insert, by_writer, by_patterns])
@pytest.mark.parametrize("value", [b"a\0", "a\0", np.bytes_(b"a\0\0"), np.str_("a\0")])
def test_text_keeps_trailing_nul_characters(open_store, write, value):
    assert write(open_store(Table("t")), value) == value


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_scalars_of_small_floats_are_stored_unchanged(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(-3, 3).astype(getattr(ml_dtypes, name))
    store = Store([Table("t", max_size=10)])
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        for value in values:
            writer.append({"x": value})
    [items] = store.scan("t", batch_size=10)
    np.testing.assert_array_equal(items.data["x"][:, 0], values)
