"""Inserting items: valid and invalid data, and signatures."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.support import raises, sample_x

import engram
from engram import ArraySpec, Table, selectors
from engram.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PriorityError,
    SignatureError,
    UnsatisfiableError,
)

# --- insert --------------------------------------------------------------------------------------


def test_one_item_can_be_in_several_tables(open_store):
    store = open_store(Table("a"), Table("b"))
    key = store.insert({"x": np.zeros(1000)}, {"a": 1.0, "b": 2.0})
    batches = [store.sample(name, 1) for name in ("a", "b")]
    assert [batch.info.key.tolist() for batch in batches] == [[key], [key]]
    assert [batch.info.priority.tolist() for batch in batches] == [[1.0], [2.0]]
    assert 0 <= key < 2**63
    store.delete("a", [key])
    assert store.sample("b", 1).data["x"].shape == (1, 1000)


def test_insert_is_all_or_nothing_after_a_table_was_replaced(open_store):
    def table(dtype):
        return Table("b", signature={"x": ArraySpec((), dtype)})

    store = open_store(Table("a"), table(np.int32))
    store.insert({"x": np.int32(1)}, {"a": 1.0, "b": 1.0})
    store.insert({"x": np.int32(1)}, {"b": 1.0})
    store.drop_table("b")
    with pytest.raises(engram.errors.UnknownTableError):
        store.insert({"x": np.int32(2)}, {"a": 1.0, "b": 1.0})
    store.create_table(table(np.float64))
    with pytest.raises(SignatureError):
        store.insert({"x": np.int32(3)}, {"a": 1.0, "b": 1.0})
    assert sample_x(store, "a", 1) == [1]
    assert (store.info()["a"].size, store.info()["b"].size) == (1, 0)


def test_a_table_replaced_under_its_old_name_gets_items_of_the_new_signature(open_store):
    def table(dtype):
        return Table("t", signature={"x": ArraySpec((), dtype)})

    store = open_store(table(np.int32))
    store.insert({"x": np.int32(1)}, {"t": 1.0})
    store.drop_table("t")
    with pytest.raises(engram.errors.UnknownTableError):
        store.insert({"x": np.int32(2)}, {"t": 1.0})
    store.create_table(table(np.float64))
    store.insert({"x": np.float64(3)}, {"t": 1.0})
    # Without an error in between.
    store.drop_table("t")
    store.create_table(table(np.uint8))
    store.insert({"x": np.uint8(4)}, {"t": 1.0})
    assert sample_x(store, "t", 1) == [4]


def test_the_dtype_of_a_python_number_does_not_depend_on_earlier_items(open_store):
    signature = {"x": ArraySpec((), np.float32)}
    store = open_store(Table("earlier"), Table("t"), Table("signed", signature=signature))
    for earlier in (np.float32(0.5), np.uint8(3), np.complex64(1), 1, 0.5):
        store.insert({"x": earlier}, {"earlier": 1.0})
        with pytest.raises(PriorityError):
            store.insert({"x": earlier}, {"t": np.nan})
        for value, dtype in (
            (0.1, np.float64),
            (2**24 + 1, np.int64),
            (300, np.int64),
            (True, np.bool_),
            (1j, complex),
        ):
            store.insert({"x": value}, {"t": 1.0})
            stored = [batch.data["x"] for batch in store.scan("t", batch_size=1)][-1]
            assert (stored.dtype, stored.item()) == (dtype, value)
            if dtype is not complex and dtype is not np.bool_:
                store.insert({"x": value}, {"signed": 1.0})
    assert {batch.data["x"].dtype.name for batch in store.scan("signed", batch_size=1)} == {"float32"}


def test_with_time_axis_arrays_are_sequences_of_steps(open_store):
    store = open_store(Table("t"))
    store.insert({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, {"t": 1.0}, time_axis=True)
    data = store.sample("t", 2).data
    assert (data["x"].shape, data["y"].shape) == ((2, 3, 2), (2, 3))


def test_a_rejected_item_is_in_no_table(open_store):
    store = open_store(Table("a"), Table("b", sampler=selectors.Prioritized()))
    with pytest.raises(PriorityError):
        store.insert({"x": 1}, {"a": 1.0, "b": -1.0})
    with pytest.raises(engram.errors.UnknownTableError):
        store.insert({"x": 1}, {"a": 1.0, "c": 1.0})
    assert [info.size for info in store.info().values()] == [0, 0]


def test_a_late_insert_reports_which_tables_have_the_item(open_store):
    store = open_store(Table.queue("q", max_size=1), Table("t"), Table.queue("r", max_size=1))
    store.insert({"x": 1}, {"q": 1.0, "r": 1.0})
    full = "inserting waits: Queue(1) is full: 1 inserted item is not sampled yet"
    with raises(
        DeadlineExceededError, f"table `q` did not accept the item within 0.05 s; no table has the item; `q`: {full}"
    ):
        store.insert({"x": 2}, {"q": 1.0}, timeout=0.05)
    text = "tables `q`, `r` did not accept the item within 0 s; only `t` has the item; "
    with raises(DeadlineExceededError, f"{text}`q`: {full}; `r`: {full}"):
        store.insert({"x": 3}, {"q": 1.0, "t": 1.0, "r": 1.0}, timeout=0)
    assert sample_x(store, "t", 1) == [3]
    assert sample_x(store, "q", 1) == sample_x(store, "r", 1) == [1]


DTYPES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
    "float16, float32, float64, complex64, complex128, bfloat16, float8_e4m3fn, float8_e5m2, string, str"
)
UNEVEN = "with time_axis=True all columns must have the same number of steps, at least 1; "
OBJECT = "column `x` contains a Python object of type object; supported are str, bytes and values with a NumPy dtype"


@pytest.mark.parametrize(
    ("data", "options", "error", "text"),
    [
        ({"x": 1}, {"priorities": {}}, InvalidArgumentError, "`priorities` must name at least one table; got none"),
        ({}, {}, SignatureError, "`data` must have at least one leaf; got an empty nest"),
        ({"x": None}, {}, SignatureError, "column `x` must be an array, a number or a string; got None"),
        (
            {"x": object()},
            {},
            SignatureError,
            OBJECT,
        ),
        (
            {"x": np.zeros(3), "y": 1},
            {"time_axis": True},
            SignatureError,
            "with time_axis=True every column must have shape [T, ...]; column `y` has shape []",
        ),
        (
            {"x": np.zeros(3), "y": np.zeros(2)},
            {"time_axis": True},
            SignatureError,
            UNEVEN + "got `x` with 3 steps, `y` with 2 steps",
        ),
        (
            {"x": np.zeros((0, 2))},
            {"time_axis": True},
            SignatureError,
            UNEVEN + "got `x` with 0 steps",
        ),
        ({1: 0, "a": 0}, {}, SignatureError, "the keys of a mapping must be all str or all int; got [1, 'a']"),
        ({(1, 2): 0}, {}, SignatureError, "the keys of a mapping must be str or int; got (1, 2)"),
        (
            {"x": np.array("2020", "M8[D]")},
            {},
            SignatureError,
            f"column `x` has the unsupported dtype datetime64[D]; supported dtypes are {DTYPES}",
        ),
        (
            {"x": np.zeros(2)},
            {"priorities": "t"},
            InvalidArgumentError,
            "`priorities` must map table names to priorities, such as {\"replay\": 1.0}; got 't'",
        ),
        (
            {"x": np.zeros(2)},
            {"priorities": np.zeros(500)},
            InvalidArgumentError,
            '`priorities` must map table names to priorities, such as {"replay": 1.0}; got float64[500]',
        ),
    ],
)
def test_bad_items_are_rejected(open_store, data, options, error, text):
    store = open_store(Table("t"))
    with raises(error, text):
        store.insert(data, **{"priorities": {"t": 1.0}, **options})
    assert store.info()["t"].size == 0


def test_exchanged_arguments_are_named(open_store):
    text = "the priority for `x` must be a number; got 'one' (str)"
    hint = '; `insert` takes the data first, then the priorities, such as {"t": 1.0}'
    store = open_store(Table("t"))
    with raises(InvalidArgumentError, text + hint):
        store.insert("t", {"x": "one"})
    with raises(InvalidArgumentError, text):
        store.insert({"x": 1}, {"x": "one"})


def test_a_nest_that_contains_itself_is_rejected(open_store):
    nest = []
    nest.append(nest)
    with raises(SignatureError, "nests must have at most 32 levels; got more"):
        open_store(Table("t")).insert(nest, {"t": 1.0})


def test_an_item_larger_than_the_table_is_rejected(open_store):
    store = open_store(Table("t", max_bytes=10_000))
    text = r"^an item of \d+ bytes .* never fits into table `t`, whose max_bytes is 10000; insert smaller items, "
    text += "lower the writer's `chunk_length` or use a larger max_bytes$"
    with pytest.raises(UnsatisfiableError, match=text):
        store.insert({"x": np.random.default_rng(0).random(10_000)}, {"t": 1.0})


# --- signatures ----------------------------------------------------------------------------------

MISMATCH = "item does not match the signature of table `t`: {}; signature: `a` float32[2], `b/c` int64[]; item: {}"


@pytest.mark.parametrize(
    ("data", "problem", "item_columns"),
    [
        (
            {"a": np.zeros(2), "b": {"c": 1}},
            "column `a` must be float32[2]; got float64[2]",
            "`a` float64[2], `b/c` int64[]",
        ),
        (
            {"a": np.zeros(3, np.float32), "b": {"c": 1}},
            "column `a` must be float32[2]; got float32[3]",
            "`a` float32[3], `b/c` int64[]",
        ),
        (
            {"a": np.zeros((2, 1), np.float32), "b": {"c": 1}},
            "column `a` must be float32[2]; got float32[2,1]",
            "`a` float32[2,1], `b/c` int64[]",
        ),
        (
            {"a": np.zeros(2, np.float32), "c": 1},
            "column `b/c` is missing, and the signature has no column `c`",
            "`a` float32[2], `c` int64[]",
        ),
        ({"a": np.zeros(2, np.float32)}, "column `b/c` is missing", "`a` float32[2]"),
        (
            {"a": np.zeros(2, np.float32), "b": {"c": 1, "d": 1}},
            "the signature has no column `b/d`",
            "`a` float32[2], `b/c` int64[], `b/d` int64[]",
        ),
    ],
)
def test_signature_errors_name_both_sides(open_store, data, problem, item_columns):
    signature = {"a": ArraySpec((2,), np.float32), "b": {"c": ArraySpec((), "int64")}}
    store = open_store(Table("t", signature=signature), Table("other"))
    with raises(SignatureError, MISMATCH.format(problem, item_columns)):
        store.insert(data, {"other": 1.0, "t": 1.0})
    assert [info.size for info in store.info().values()] == [0, 0]
    store.insert({"a": np.zeros(2, np.float32), "b": {"c": 1}}, {"t": 1.0})


def test_a_signature_may_have_unknown_sizes_and_text(open_store):
    signature = {"x": ArraySpec((None, 2), np.int8), "y": ArraySpec((None,), str)}
    store = open_store(Table("t", signature=signature))
    for steps in (1, 3):
        item = {"x": np.zeros((steps, 2), np.int8), "y": np.array(["a"] * steps)}
        store.insert(item, {"t": 1.0}, time_axis=True)
    assert store.info()["t"].size == 2


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (
            {"x": 1},
            "each leaf of `signature` must be an ArraySpec, or have a `shape` and a `dtype`; got int for `x`",
        ),
        (
            {"x": ArraySpec((1,), "M8[s]")},
            "`signature`: column `x` has the unsupported dtype M8[s]; supported dtypes are " + DTYPES,
        ),
        (
            ArraySpec((1,), "M8[s]"),
            "`signature` has the unsupported dtype M8[s]; supported dtypes are " + DTYPES,
        ),
        (
            1,
            "each leaf of `signature` must be an ArraySpec, or have a `shape` and a `dtype`; got int",
        ),
        (
            {"obs": SimpleNamespace(shape=(-1, 84), dtype="float32")},
            "the `shape` of `obs` in `signature` must be a sequence of sizes, None for any size; got (-1, 84)",
        ),
        (
            SimpleNamespace(shape=None, dtype="float32"),
            "the `shape` in `signature` must be a sequence of sizes, None for any size; got None",
        ),
        (
            {"x": ArraySpec},
            "each leaf of `signature` must be an ArraySpec, or have a `shape` and a `dtype`; got type for `x`",
        ),
    ],
)
def test_bad_signatures_are_rejected(open_store, signature, text):
    with raises(SignatureError, text):
        open_store(Table("t", signature=signature))


@pytest.mark.parametrize("shape", ["ab", 3])
def test_bad_spec_shapes_are_rejected(shape):
    with raises(InvalidArgumentError, f"`shape` must be a sequence of sizes; got {shape!r}"):
        ArraySpec(shape, np.int8)
    with raises(InvalidArgumentError, "each axis of `shape` must be at least 0; got -1"):
        ArraySpec((-1,), np.int8)


@pytest.mark.parametrize(
    ("priorities", "text"),
    [
        ({1: 1.0}, "each key of `priorities` must be a str, the name of a table; got 1 (int)"),
        ({"t": None}, "the priority for `t` must be a number; got None"),
        ({"t": "high"}, "the priority for `t` must be a number; got 'high' (str)"),
        ({"t": 10**400}, f"the priority for `t` must be a number; got 1{'0' * 99}... (int)"),
    ],
)
def test_priorities_and_timeouts_of_wrong_types_are_rejected(open_store, priorities, text):
    store = open_store(Table("t"))
    with raises(InvalidArgumentError, text):
        store.insert({"x": 1}, priorities)
    with raises(
        InvalidArgumentError,
        "`timeout` must be a number of seconds, at least 0, or None to wait forever; got 'soon' (str)",
    ):
        store.insert({"x": 1}, {"t": 1.0}, timeout="soon")
    assert store.info()["t"].size == 0


@pytest.mark.parametrize("priority", [1.0, True])
@pytest.mark.parametrize("value", ["x", None, 1])
def test_a_time_axis_of_a_wrong_type_is_rejected(open_store, value, priority):
    store = open_store(Table("t"))
    shown = value if value is None else f"{value!r} ({type(value).__name__})"
    with raises(InvalidArgumentError, f"`time_axis` must be True or False; got {shown}"):
        store.insert({"x": 1}, {"t": priority}, time_axis=value)
    assert store.info()["t"].size == 0
