"""Values of columns: every dtype, memory layout and Python type, through every writer."""

import re

import numpy as np
import pytest
from helpers.support import case, raises

from engram import ArraySpec, Pattern, Store, Table
from engram.buffers import ReplayBuffer
from engram.errors import SignatureError

FLOAT32_MAX = "3.4028235e+38"
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
    data = store.sample("t", 2, timeout=0).data["x"]
    np.testing.assert_array_equal(data[0, 0], data[1, 0])
    return data[0, 0]


@pytest.fixture
def store(open_store):
    """A store whose table has no items once they are sampled."""
    return open_store(Table.queue("t", max_size=2))


WAYS = [by_insert, by_writer, by_patterns, by_batches]


def each_way(store, values, ways=WAYS):
    """Yields for each value and each way to write it: the case, the value, and what a table returns for it.

    The caller's `with` of the case names it in an error.
    """
    for value in values:
        for way in ways:
            with case(way.__name__, value):
                stored = way(store, value)
            yield case(way.__name__, value), value, stored


def some(dtype, shape):
    """Random numbers from 0 to 99, or booleans."""
    random = np.random.default_rng(0)
    return np.asarray(random.integers(0, 2 if dtype == "?" else 100, shape)).astype(dtype)


def test_every_dtype_is_stored_unchanged(store):
    shapes = ((), (3,), (2, 3), (0,), (2, 0))
    values = [some(dtype, shape) for dtype in DTYPES for shape in shapes]
    for named, value, stored in each_way(store, values):
        with named:
            array = np.asarray(stored)
            assert (array.dtype, array.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(stored, value)


def test_small_floats_are_stored_unchanged(store):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    for named, value, stored in each_way(store, [np.arange(-3, 3).astype(getattr(ml_dtypes, name)) for name in names]):
        with named:
            assert stored.dtype == value.dtype
            np.testing.assert_array_equal(stored, value)


def test_arrays_of_every_memory_layout_are_stored(store):
    values = [
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
    ]
    for named, value, stored in each_way(store, values):
        with named:
            assert np.asarray(stored).dtype == value.dtype.newbyteorder("=")
            np.testing.assert_array_equal(stored, value)


def test_arrays_of_text_and_bytes_are_returned_as_objects(store):
    cases = [
        (np.array("text"), "text"),
        (np.array(["a", "", "ü"]), ["a", "", "ü"]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array([["a"], ["b"]], ">U3"), [["a"], ["b"]]),
        (np.zeros((0,), "S3"), []),
        (np.zeros((2, 0), "U3"), [[], []]),
    ]
    for value, expected in cases:
        for named, _, stored in each_way(store, [value]):
            with named:
                array = np.asarray(stored, object)
                assert (array.dtype, array.tolist()) == (np.dtype(object), expected)


def test_python_text_keeps_every_character(store):
    values = ["", "text", "nul\0", "\0", b"bytes\0\0", "ü€😀", np.str_("n")]
    for named, value, stored in each_way(store, values, [by_insert, by_writer, by_patterns]):
        with named:
            assert stored == value


@pytest.mark.jax
def test_jax_arrays_are_stored_unchanged(store):
    import jax.numpy as jnp  # noqa: PLC0415, an optional package

    dtypes = (jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_)
    values = [jnp.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes]
    for named, value, stored in each_way(store, values, [by_insert, by_writer, by_patterns]):
        with named:
            assert stored.dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(stored, np.asarray(value))


# --- Python numbers ------------------------------------------------------------------------------


def test_python_numbers_become_columns_of_these_dtypes(open_store):
    for value, dtype in ((True, "?"), (3, "i8"), (-3, "i8"), (2**63, "u8"), (2.5, "f8"), (1j, "c16")):
        # A store of its own: later numbers take the dtype of the column.
        store = open_store(Table.queue("t", max_size=2))
        for named, _, stored in each_way(store, [value], [by_insert, by_writer, by_patterns]):
            with named:
                array = np.asarray(stored)
                assert (array.dtype, array.item()) == (np.dtype(dtype), value)


def append_both(store, first, second):
    """Appends both values to a column; returns the second as stored."""
    with store.writer() as writer:
        writer.append({"x": first})
        writer.append({"x": second})
        return writer.history["x"][-1].numpy()


def test_python_numbers_take_the_columns_dtype(store):
    cases = [
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
    ]
    for column, value in cases:
        with case(column, value):
            stored = append_both(store, column, value)
            assert (stored.dtype, stored.item()) == (column.dtype, column.dtype.type(value).item())


def test_values_a_column_cannot_hold_are_rejected(store):
    cases = [
        (np.int8(0), 128, "column `x` is 128, which int8 cannot hold"),
        (np.uint8(0), -1, "column `x` is -1, which uint8 cannot hold"),
        (0, 2**63, "column `x` is 9223372036854775808, which int64 cannot hold"),
        (np.float32(0), 10**400, f"column `x` is {10**400}, which float32 cannot hold"),
        (np.float64(0), 10**400, f"column `x` is {10**400}, which float64 cannot hold"),
        (np.float16(0), 10**400, f"column `x` is {10**400}, which float16 cannot hold"),
        (np.float32(0), 1e39, f"column `x` is 1e+39, which float32 cannot hold; its largest value is {FLOAT32_MAX}"),
        (
            np.float32(0),
            -(10**40),
            f"column `x` is -1e+40, which float32 cannot hold; its largest value is {FLOAT32_MAX}",
        ),
        (np.float16(0), 65520, "column `x` is 65520.0, which float16 cannot hold; its largest value is 65504"),
        (
            np.complex64(0),
            1e39j,
            f"column `x` is 1e+39j, which complex64 cannot hold; its largest value is {FLOAT32_MAX}",
        ),
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
    ]
    for column, value, text in cases:
        with case(column, value), raises(SignatureError, text):
            append_both(store, column, value)


def test_dtypes_a_column_cannot_have_are_rejected(store):
    text = r"^column `x` has the unsupported dtype .*; supported dtypes are bool, int8, .*, string, str$"
    for value in (np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4"), np.longdouble(1)):
        for way in WAYS:
            with case(way.__name__, value), pytest.raises(SignatureError, match=text):
                way(store, value)


def test_errors_call_a_single_leaf_the_data(store):
    cases = [
        (None, "the data must be an array, a number or a string; got None"),
        (2**64, "the data is 18446744073709551616, which uint64 cannot hold"),
        (object(), "the data contains a Python object of type object; supported"),
        (np.zeros(2, "M8[s]"), "the data has the unsupported dtype datetime64[s]; supported dtypes are bool, "),
    ]
    for value, text in cases:
        with case(value), pytest.raises(SignatureError, match="^" + re.escape(text)):
            store.insert(value, {"t": 1.0})


def test_objects_a_column_cannot_hold_are_rejected(store):
    text = r"^column `x` contains a Python object of type (set|object|int); supported"
    for value in ({1, 2}, object(), np.array([1, "a", None], object)):
        with case(value), pytest.raises(SignatureError, match=text):
            by_writer(store, value)


def test_text_keeps_trailing_nul_characters(store):
    values = [b"a\0", "a\0", np.bytes_(b"a\0\0"), np.str_("a\0")]
    for named, value, stored in each_way(store, values, [by_insert, by_writer, by_patterns]):
        with named:
            assert stored == value


def test_scalars_of_small_floats_are_stored_unchanged():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        values = np.arange(-3, 3).astype(getattr(ml_dtypes, name))
        store = Store([Table("t", max_size=10)])
        with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
            for value in values:
                writer.append({"x": value})
        [items] = store.scan("t", batch_size=10)
        np.testing.assert_array_equal(items.data["x"][:, 0], values)


def test_numbers_a_small_float_cannot_hold_are_rejected():
    pytest.importorskip("ml_dtypes")
    for name, value, fits, largest in (
        ("bfloat16", 3.4e38, 3.39e38, "3.3895314e+38"),
        ("float8_e4m3fn", 500.0, 464.0, "448"),
        ("float8_e5m2", -61440.0, -61000.0, "57344"),
    ):
        store = Store([Table("t", signature={"x": ArraySpec((), name)})])
        buffer = ReplayBuffer(10, signature={"x": ArraySpec((), name)})
        store.insert({"x": fits}, {"t": 1.0})
        buffer.add({"x": fits})
        text = f"column `x` is {value}, which {name} cannot hold; its largest value is {largest}"
        with raises(SignatureError, text):
            store.insert({"x": value}, {"t": 1.0})
        with raises(SignatureError, text):
            buffer.add({"x": value})
        store.insert({"x": float("nan")}, {"t": 1.0})
        buffer.add({"x": float("nan")})
        assert np.isfinite(next(iter(store.scan("t"))).data["x"][0])


class Converts:
    """Like an array of another library: NumPy converts it, or raises the error."""

    def __init__(self, array, **attributes):
        self._array = array
        self.__dict__.update(attributes)

    def __array__(self, dtype=None, copy=None):
        if isinstance(self._array, Exception):
            raise self._array
        return self._array


class Device(Converts):
    """An array of another library whose text takes long to make."""

    shown = 0

    def __repr__(self):
        Device.shown += 1
        return "Device"


def by_buffer(_, value):
    buffer = ReplayBuffer(10)
    buffer.add({"x": value})
    return next(iter(buffer.scan())).data["x"][0]


def by_bulk(store, value):
    store.insert_batch("t", {"x": value})
    return store.sample("t", 2, timeout=0).data["x"]


VALUES = np.array([1, 2])
MASKED = (
    "a masked array, and its masked elements would be stored as if they were valid; pass `array.filled(value)`, or its "
    "data and its mask as two columns"
)
TABLE = "a Converts, whose columns have dtypes of their own; pass a dict of its columns as NumPy arrays"
NULLS = "with missing values, which an array cannot have; fill them in, or pass the values and a mask as two columns"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            Converts(np.ma.masked_equal(VALUES, 2)),
            MASKED,
        ),
        (
            Converts(VALUES[:, None], columns=["a"]),
            TABLE,
        ),
        (Converts(VALUES, null_count=1), f"a Converts {NULLS}"),
        (Converts(VALUES, null_count=lambda: 1), f"a Converts {NULLS}"),
        (Converts(VALUES, dtype=Converts(0, na_value=None), isna=lambda: VALUES == 2), f"a Converts {NULLS}"),
    ],
    ids=["mask", "table", "pyarrow", "polars", "pandas"],
)
@pytest.mark.parametrize("way", [by_insert, by_bulk, by_writer, by_patterns, by_buffer])
def test_values_that_an_array_would_not_have_are_refused(store, way, value, text):
    with raises(SignatureError, f"column `x` is {text}"):
        way(store, value)
    if way is by_bulk:
        with raises(SignatureError, f"the data is {text}"):
            store.insert_batch("t", value)


@pytest.mark.parametrize("way", [by_insert, by_bulk, by_writer, by_patterns, by_buffer])
def test_objects_that_numpy_converts_are_stored(store, way):
    no_nulls = {"dtype": Converts(0, na_value=None), "isna": lambda: VALUES == 4}
    for value in (Device(VALUES), Converts(VALUES, null_count=0), Converts(VALUES, **no_nulls)):
        assert way(store, value).ravel().tolist() == [1, 2]
    assert Device.shown == 0
    text = "column `x` has type Converts and does not convert to a NumPy array: it needs a gradient"
    with raises(SignatureError, text):
        way(store, Converts(RuntimeError("it needs a gradient")))
