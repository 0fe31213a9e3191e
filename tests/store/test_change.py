"""Updating, deleting, resetting, and tables that come and go."""

import numpy as np
import pytest
from support import Caller, drain, fill, raises, until

import engram
from engram import ArraySpec, Table, rate_limiters, selectors
from engram.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    NeverServedError,
    PriorityError,
    SignatureError,
)


def priorities(store, table, keys):
    """The items' priorities, found by drawing them all."""
    batch = store.sample(table, 500)
    found = dict(zip(batch.info.key.tolist(), batch.info.priority.tolist(), strict=True))
    return [found.get(key) for key in keys]


# --- update_priorities ---------------------------------------------------------------------------


@pytest.fixture
def three(open_store):
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
    return store, fill(store, "t", range(3))


def test_update_returns_how_many_matched(three):
    store, keys = three
    assert store.update_priorities("t", [keys[0], 12345, keys[2]], [2.0, 9.0, 3.0]) == 2
    assert priorities(store, "t", keys) == [2.0, 1.0, 3.0]
    assert store.update_priorities("t", [], []) == 0
    assert store.update_priorities("t", [12345], [1.0]) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint64, np.bool_])
def test_update_takes_any_number(three, dtype):
    store, keys = three
    given = np.array(keys, np.int64)[::-1]
    assert store.update_priorities("t", given, np.array([1, 1, 1], dtype)) == 3


def test_update_of_a_batch(three):
    store, _ = three
    batch = store.sample("t", 64)
    assert store.update_priorities("t", batch.info.key, np.ones(64)) == 64


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.nan, "priority for table `t` is NaN; it must be a number"),
        (np.inf, "priority for table `t` is inf; a Prioritized selector takes finite values from 0"),
        (-0.5, "priority for table `t` is -0.5; a Prioritized selector takes finite values from 0"),
    ],
)
def test_one_bad_priority_rejects_the_whole_call(three, bad, text):
    store, keys = three
    with raises(PriorityError, text):
        store.update_priorities("t", [*keys, 99], [5.0, 6.0, bad, 1.0])
    assert priorities(store, "t", keys) == [1.0, 1.0, 1.0]
    with raises(PriorityError, text):
        store.insert({"x": 1}, {"t": bad})
    with store.writer() as writer:
        writer.append({"x": 1})
        with raises(PriorityError, text):
            writer.create_item("t", bad, num_steps=1)
    assert store.info()["t"].size == 3


def test_infinite_and_negative_priorities_where_they_are_no_weight(open_store):
    store = open_store(Table("t", sampler=selectors.MaxHeap()))
    fill(store, "t", [-np.inf, -1.0, np.inf], priority=float)
    assert drain(store, "t", 1) == [np.inf]
    with raises(PriorityError, "priority for table `t` is NaN; it must be a number"):
        store.insert({"x": 0.0}, {"t": np.nan})


@pytest.mark.parametrize("selector", ["sampler", "remover"])
def test_prioritized_rejects_in_either_role(open_store, selector):
    store = open_store(Table("t", **{selector: selectors.Prioritized(1.0)}))
    with raises(PriorityError, "priority for table `t` is -1; a Prioritized selector takes finite values from 0"):
        store.insert({"x": 0}, {"t": -1.0})


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        ([1, 2], [1.0], "2 keys and 1 priorities for table `t`; there must be one priority per key"),
        ([1.5], [1.0], "`keys` must be integers; got float64"),
        ([-1], [1.0], "`keys` must be at least 0; got -1"),
        (["a"], [1.0], "`keys` must be integers; got <U1"),
        ([[1]], [[1.0]], "`keys` must have one axis; got the shape (1, 1)"),
        ([1], [[1.0]], "`priorities` must have one axis; got the shape (1, 1)"),
        ([1], ["1"], "`priorities` must be numbers; got <U1"),
        ([1], [None], "`priorities` must be numbers; got object"),
        ([1], [1j], "`priorities` must be numbers; got complex128"),
    ],
)
def test_bad_updates(three, keys, values, text):
    with raises(InvalidArgumentError, text):
        three[0].update_priorities("t", keys, values)


# --- delete and reset ----------------------------------------------------------------------------


def test_delete_returns_how_many_matched(three):
    store, keys = three
    assert store.delete("t", [keys[1], 777]) == 1
    assert store.delete("t", keys) == 2
    assert store.delete("t", np.zeros(0, np.uint64)) == 0
    assert (store.info()["t"].size, store.info()["t"].deletes) == (0, 3)


def test_reset_empties_and_zeroes(three):
    store, _ = three
    store.sample("t", 5)
    store.reset("t")
    info = store.info()["t"]
    assert (info.size, info.inserts, info.samples, info.deletes, info.bytes) == (0, 0, 0, 0, 0)
    assert (info.num_episodes, info.num_deleted_episodes, info.num_unique_samples) == (0, 0, 0)
    fill(store, "t", [9])
    assert drain(store, "t", 1) == [9]


# --- insert --------------------------------------------------------------------------------------


def test_one_item_in_several_tables(open_store):
    store = open_store(Table("a"), Table("b"))
    key = store.insert({"x": np.zeros(1000)}, {"a": 1.0, "b": 2.0})
    batches = [store.sample(name, 1) for name in ("a", "b")]
    assert [batch.info.key.tolist() for batch in batches] == [[key], [key]]
    assert [batch.info.priority.tolist() for batch in batches] == [[1.0], [2.0]]
    assert 0 <= key < 2**63
    store.delete("a", [key])
    assert store.sample("b", 1).data["x"].shape == (1, 1000)


def test_time_axis(open_store):
    store = open_store(Table("t"))
    store.insert({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, {"t": 1.0}, time_axis=True)
    data = store.sample("t", 2).data
    assert (data["x"].shape, data["y"].shape) == ((2, 3, 2), (2, 3))


def test_a_refused_item_is_in_no_table(open_store):
    store = open_store(Table("a"), Table("b", sampler=selectors.Prioritized()))
    with pytest.raises(PriorityError):
        store.insert({"x": 1}, {"a": 1.0, "b": -1.0})
    with pytest.raises(engram.errors.UnknownTableError):
        store.insert({"x": 1}, {"a": 1.0, "c": 1.0})
    assert [info.size for info in store.info().values()] == [0, 0]


def test_a_late_insert_says_where_the_item_is(open_store):
    store = open_store(Table.queue("q", max_size=1), Table("t"), Table.queue("r", max_size=1))
    store.insert({"x": 1}, {"q": 1.0, "r": 1.0})
    full = "inserting waits for samples: 1 inserts x 1 - 0 samples = 1, and one more insert would go above 1 (Queue)"
    with raises(DeadlineExceededError, f"table `q` did not take the item within 0.05 s: no table has it; `q`: {full}"):
        store.insert({"x": 2}, {"q": 1.0}, timeout=0.05)
    text = "tables `q`, `r` did not take the item within 0 s: only `t` has it; "
    with raises(DeadlineExceededError, f"{text}`q`: {full}; `r`: {full}"):
        store.insert({"x": 3}, {"q": 1.0, "t": 1.0, "r": 1.0}, timeout=0)
    assert drain(store, "t", 1) == [3]
    assert drain(store, "q", 1) == drain(store, "r", 1) == [1]


@pytest.mark.parametrize(
    ("data", "options", "error", "text"),
    [
        ({"x": 1}, {"priorities": {}}, InvalidArgumentError, None),
        ({}, {}, SignatureError, "the item has no columns; it needs at least one leaf"),
        ({"x": None}, {}, SignatureError, "column `x` is None; a value must be an array, a number or text"),
        (
            {"x": object()},
            {},
            SignatureError,
            "column `x` has an object of type object; a value must be an array, a number or text",
        ),
        (
            {"x": np.zeros(3), "y": 1},
            {"time_axis": True},
            SignatureError,
            "column `y` has no time axis; with time_axis=True every column must be [T, ...]",
        ),
        (
            {"x": np.zeros(3), "y": np.zeros(2)},
            {"time_axis": True},
            SignatureError,
            "columns have `x` 3, `y` 2 steps; with time_axis=True all must have the same number, at least 1",
        ),
        (
            {"x": np.zeros((0, 2))},
            {"time_axis": True},
            SignatureError,
            "columns have `x` 0 steps; with time_axis=True all must have the same number, at least 1",
        ),
        ({1: 0, "a": 0}, {}, SignatureError, None),
        ({(1, 2): 0}, {}, SignatureError, "key (1, 2) of a mapping is neither text nor an integer"),
        ({"x": np.array("2020", "M8[D]")}, {}, SignatureError, None),
        (
            {"x": np.zeros(2)},
            {"priorities": "t"},
            InvalidArgumentError,
            "`priorities` must map tables to priorities, such as {\"replay\": 1.0}; got 't'",
        ),
    ],
)
def test_bad_items(open_store, data, options, error, text):
    store = open_store(Table("t"))
    text = text or {
        InvalidArgumentError: "no table to insert into; priorities must name at least one table",
        SignatureError: "column `x` has dtype datetime64[D]; supported are bool, int8, int16, int32, int64, uint8, "
        "uint16, uint32, uint64, float16, float32, float64, complex64, complex128, bfloat16, float8_e4m3fn, "
        "float8_e5m2, string"
        if "x" in data
        else "keys [1, 'a'] have no common order; a mapping's keys must be all text or all integers",
    }.get(error)
    with raises(error, text):
        store.insert(data, **{"priorities": {"t": 1.0}, **options})
    assert store.info()["t"].size == 0


def test_a_nest_that_contains_itself(open_store):
    nest = []
    nest.append(nest)
    with raises(SignatureError, "a nest has more than 32 levels; at most that many are supported"):
        open_store(Table("t")).insert(nest, {"t": 1.0})


def test_an_item_larger_than_the_table(open_store):
    store = open_store(Table("t", max_bytes=10_000))
    with pytest.raises(NeverServedError, match=r"^an item of \d+ bytes .* never fits table `t` of max_bytes 10000$"):
        store.insert({"x": np.random.default_rng(0).random(10_000)}, {"t": 1.0})


# --- signatures ----------------------------------------------------------------------------------

ASKED = "item does not match the signature of table `t`: {}; asked: `a` float32[2], `b/c` int64[]; found: {}"


@pytest.mark.parametrize(
    ("data", "problem", "found"),
    [
        (
            {"a": np.zeros(2), "b": {"c": 1}},
            "column 0 (`a`) does not fit",
            "`a` float64[2], `b/c` int64[]",
        ),
        (
            {"a": np.zeros(3, np.float32), "b": {"c": 1}},
            "column 0 (`a`) does not fit",
            "`a` float32[3], `b/c` int64[]",
        ),
        (
            {"a": np.zeros((2, 1), np.float32), "b": {"c": 1}},
            "column 0 (`a`) does not fit",
            "`a` float32[2,1], `b/c` int64[]",
        ),
        (
            {"a": np.zeros(2, np.float32), "c": 1},
            "column 1 (`b/c`) does not fit",
            "`a` float32[2], `c` int64[]",
        ),
        ({"a": np.zeros(2, np.float32)}, "it has 1 columns where 2 are asked", "`a` float32[2]"),
        (
            {"a": np.zeros(2, np.float32), "b": {"c": 1, "d": 1}},
            "it has 3 columns where 2 are asked",
            "`a` float32[2], `b/c` int64[], `b/d` int64[]",
        ),
    ],
)
def test_signature_texts_name_both_sides(open_store, data, problem, found):
    signature = {"a": ArraySpec((2,), np.float32), "b": {"c": ArraySpec((), "int64")}}
    store = open_store(Table("t", signature=signature), Table("other"))
    with raises(SignatureError, ASKED.format(problem, found)):
        store.insert(data, {"other": 1.0, "t": 1.0})
    assert [info.size for info in store.info().values()] == [0, 0]
    store.insert({"a": np.zeros(2, np.float32), "b": {"c": 1}}, {"t": 1.0})


def test_signature_with_unknown_sizes_text_and_time(open_store):
    signature = {"x": ArraySpec((None, 2), np.int8), "y": ArraySpec((None,), "string")}
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
            "signature leaf `x` is a int; each leaf must be an ArraySpec, or have a `shape` and a `dtype`",
        ),
        (
            {"x": ArraySpec((1,), "M8[s]")},
            "signature leaf `x` is a ArraySpec; each leaf must be an ArraySpec, or have a `shape` and a `dtype`",
        ),
    ],
)
def test_bad_signatures(open_store, signature, text):
    with raises(SignatureError, text):
        open_store(Table("t", signature=signature))


@pytest.mark.parametrize("shape", ["ab", 3])
def test_bad_spec_shapes(shape):
    with raises(InvalidArgumentError, f"`shape` must be a sequence of sizes; got {shape!r}"):
        ArraySpec(shape, np.int8)
    with raises(InvalidArgumentError, "each axis of `shape` must be at least 0; got -1"):
        ArraySpec((-1,), np.int8)


# --- tables at run time --------------------------------------------------------------------------


def test_create_and_drop(open_store):
    store = open_store(Table("b"))
    store.create_table(Table("a", max_size=5))
    assert store.tables == ["a", "b"]
    assert list(store.info()) == ["a", "b"]
    store.drop_table("b")
    assert store.tables == ["a"]
    store.create_table(Table("b"))
    assert repr(store) == "Store(['a', 'b'])"


def test_names_are_taken_once(open_store):
    text = "table `a` exists already; each name is taken once"
    with raises(InvalidArgumentError, text):
        open_store(Table("a"), Table("a"))
    store = open_store(Table("a"))
    with raises(InvalidArgumentError, text):
        store.create_table(Table("a"))
    assert store.tables == ["a"]


def test_tables_may_come_from_any_iterable():
    with engram.Store(Table(name) for name in ("a", "b")) as store:
        assert store.tables == ["a", "b"]


def test_bad_tables(open_store):
    with raises(InvalidArgumentError, "`tables` must be a sequence of tables; got the table `a` itself"):
        engram.Store(Table("a"))
    with raises(InvalidArgumentError, "each of `tables` must be an engram.Table; got 'a' (str)"):
        engram.Store(["a"])
    with raises(InvalidArgumentError, "`table` must be an engram.Table; got 'a' (str)"):
        open_store().create_table("a")
    with raises(InvalidArgumentError, "`seed` must be at least 0; got -1"):
        engram.Store([], seed=-1)


def test_changing_the_limiter_wakes_those_who_wait(open_store):
    store = open_store(Table("t", rate_limiter=rate_limiters.MinSize(10)), Table.queue("q", max_size=9))
    fill(store, "t", [1])
    sampler = Caller(lambda: drain(store, "t", 1))
    until(lambda: store.info()["t"].waiting_samples == 1)
    store.set_rate_limiter("t", rate_limiters.MinSize(1))
    assert sampler.result() == [1]

    fill(store, "q", range(9))
    inserter = Caller(lambda: fill(store, "q", [9]))
    until(lambda: store.info()["q"].waiting_inserts == 1)
    store.set_rate_limiter("q", rate_limiters.Queue(10))
    inserter.result()


def test_bad_limiters(open_store):
    store = open_store(Table("t", max_size=5))
    text = "`rate_limiter` must be one of engram.rate_limiters; got 3 (int)"
    with raises(InvalidArgumentError, text):
        store.set_rate_limiter("t", 3)
    text = "rate limiter MinSize of table `t`: min_size is 6, but the table holds at most 5 items"
    with raises(InvalidArgumentError, text):
        store.set_rate_limiter("t", rate_limiters.MinSize(6))
    assert store.info()["t"].rate_limiter[:3] == ("MinSize", 1.0, 1)


def test_a_closed_store(open_store):
    store = open_store(Table("t"))
    writer, dataset = store.writer(), engram.Dataset(store, "t", 1)
    store.close()
    store.close()
    assert repr(store) == "Store(closed)"
    writer.append({"x": 1})
    for call in (
        lambda: store.sample("t", 1),
        lambda: store.insert({"x": 1}, {"t": 1.0}),
        lambda: store.update_priorities("t", [1], [1.0]),
        lambda: store.delete("t", [1]),
        lambda: store.reset("t"),
        store.info,
        lambda: store.tables,
        lambda: store.create_table(Table("u")),
        lambda: store.drop_table("t"),
        lambda: store.set_rate_limiter("t", rate_limiters.MinSize(1)),
        lambda: writer.create_item("t", num_steps=1),
        lambda: next(iter(dataset)),
    ):
        with raises(ClosedError, "the store is closed"):
            call()
