"""Updates, deletions, resets, and creation and removal of tables."""

import numpy as np
import pytest
from helpers.support import BackgroundCall, fill, raises, sample_x, wait_until

import engram
from engram import Table, rate_limiters, selectors
from engram.errors import (
    ClosedError,
    InvalidArgumentError,
    PriorityError,
    UnknownTableError,
)


def priorities(store, table, keys):
    """Priorities of the items with these keys, from 500 samples; None for an item that was not drawn."""
    batch = store.sample(table, 500)
    priorities = dict(zip(batch.info.key.tolist(), batch.info.priority.tolist(), strict=True))
    return [priorities.get(key) for key in keys]


# --- update_priorities ---------------------------------------------------------------------------


@pytest.fixture
def three(open_store):
    """A store with three items of priority 1, and their keys."""
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
    return store, fill(store, "t", range(3))


def test_update_returns_the_number_of_keys_found(three):
    store, keys = three
    assert store.update_priorities("t", [keys[0], 12345, keys[2]], [2.0, 9.0, 3.0]) == 2
    assert priorities(store, "t", keys) == [2.0, 1.0, 3.0]
    assert store.update_priorities("t", [], []) == 0
    assert store.update_priorities("t", [12345], [1.0]) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint64, np.bool_])
def test_update_accepts_priorities_of_any_dtype(three, dtype):
    store, keys = three
    signed_keys = np.array(keys, np.int64)[::-1]
    assert store.update_priorities("t", signed_keys, np.array([1, 1, 1], dtype)) == 3


def test_update_counts_repeated_keys_of_a_batch(three):
    store, _ = three
    batch = store.sample("t", 64)
    assert store.update_priorities("t", batch.info.key, np.ones(64)) == 64


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.nan, "priority for table `t` is NaN; it must be a number"),
        (np.inf, "priority for table `t` is inf; a Prioritized selector needs a finite value that is not negative"),
        (-0.5, "priority for table `t` is -0.5; a Prioritized selector needs a finite value that is not negative"),
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


def test_infinite_and_negative_priorities_are_allowed_without_prioritized(open_store):
    store = open_store(Table("t", sampler=selectors.MaxHeap()))
    fill(store, "t", [-np.inf, -1.0, np.inf], priority=float)
    assert sample_x(store, "t", 1) == [np.inf]
    with raises(PriorityError, "priority for table `t` is NaN; it must be a number"):
        store.insert({"x": 0.0}, {"t": np.nan})


@pytest.mark.parametrize("selector", ["sampler", "remover"])
def test_prioritized_rejects_priorities_as_sampler_and_remover(open_store, selector):
    store = open_store(Table("t", **{selector: selectors.Prioritized(1.0)}))
    with raises(
        PriorityError,
        "priority for table `t` is -1; a Prioritized selector needs a finite value that is not negative",
    ):
        store.insert({"x": 0}, {"t": -1.0})
    assert store.info()["t"].size == 0
    store.insert({"x": 1}, {"t": 2.0}, timeout=10)  # the table still works
    assert sample_x(store, "t", 2) == [1, 1]


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        ([1, 2], [1.0], "`keys` has length 2 and `priorities` 1 for table `t`; each key needs one priority"),
        ([1.5], [1.0], "`keys` must be integers; got float64"),
        ([-1], [1.0], "`keys` must be at least 0; got -1"),
        (["a"], [1.0], "`keys` must be integers; got <U1"),
        (
            np.ones(1, np.uint32),
            [1.0],
            (
                "`keys` must be integers of 64 bits, as in `batch.info.key`; got uint32. JAX cuts keys to 32 bits: "
                "keep `batch.info` as NumPy arrays"
            ),
        ),
        ([[1]], [[1.0]], "`keys` must have one axis; got shape (1, 1)"),
        ([1], [[1.0]], "`priorities` must have one axis; got shape (1, 1)"),
        ([1], ["1"], "`priorities` must be numbers; got <U1"),
        ([1], [None], "`priorities` must be numbers; got object"),
        ([1], [1j], "`priorities` must be numbers; got complex128"),
    ],
)
def test_bad_updates_are_rejected(three, keys, values, text):
    with raises(InvalidArgumentError, text):
        three[0].update_priorities("t", keys, values)


def test_changes_without_wait_are_applied_in_order(three):
    store, keys = three
    for value in range(1, 101):
        assert store.update_priorities("t", keys, [value, value + 1, value + 2], wait=False) is None
    assert store.delete("t", keys[:1], wait=False) is None
    assert store.update_priorities("t", keys, [7.0, 8.0, 9.0]) == 2
    assert priorities(store, "t", keys) == [None, 8.0, 9.0]


@pytest.mark.parametrize("change", ["update_priorities", "delete"])
def test_a_later_change_raises_errors_of_changes_without_wait(three, change):
    store, keys = three
    arguments = ([1], [1.0]) if change == "update_priorities" else ([1],)

    def change_another():
        getattr(store, change)("nowhere", *arguments, wait=False)
        store.update_priorities("t", keys, [4.0, 5.0, 6.0])

    with raises(UnknownTableError, "no table `nowhere`; known tables: `t`"):
        change_another()
    # The error is raised once.
    assert store.update_priorities("t", keys, [2.0, 3.0, 4.0]) == 3


MANY = 600_000  # more keys than one message has


@pytest.fixture
def many(three):
    """A store, many keys of which three are in its table, and these three."""
    store, present = three
    keys = np.arange(1 << 40, (1 << 40) + MANY, dtype=np.uint64)
    keys[[0, MANY // 2, MANY - 1]] = present
    return store, keys, present


def test_one_change_may_have_more_keys_than_a_message(many):
    store, keys, present = many
    assert store.update_priorities("t", keys, np.arange(MANY)) == 3
    assert priorities(store, "t", present[1:]) == [MANY // 2, MANY - 1]
    assert store.update_priorities("t", keys, np.arange(1, MANY + 1), wait=False) is None
    assert store.update_priorities("t", present[:1], [5.0 * MANY]) == 1
    assert priorities(store, "t", present) == [5.0 * MANY, MANY // 2 + 1, MANY]
    assert store.delete("t", keys[: MANY // 2]) == 1
    assert store.delete("t", keys) == 2
    with raises(UnknownTableError, "no table `nowhere`; known tables: `t`"):
        store.delete("nowhere", keys)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (np.nan, "NaN; it must be a number"),
        (-1.0, "-1; a Prioritized selector needs a finite value that is not negative"),
    ],
)
def test_one_bad_priority_rejects_many_messages(many, bad, shown, wait):
    store, keys, present = many
    with raises(PriorityError, f"priority for table `t` is {shown}"):
        store.update_priorities("t", keys, np.r_[np.full(MANY - 1, 7.0), bad], wait=wait)
    with raises(
        InvalidArgumentError,
        f"`keys` has length {MANY} and `priorities` {MANY - 1} for table `t`; each key needs one priority",
    ):
        store.update_priorities("t", keys, np.full(MANY - 1, 7.0), wait=wait)
    assert priorities(store, "t", present) == [1.0, 1.0, 1.0]


# --- delete and reset ----------------------------------------------------------------------------


def test_delete_returns_the_number_of_keys_found(three):
    store, keys = three
    assert store.delete("t", [keys[1], 777]) == 1
    assert store.delete("t", keys) == 2
    assert store.delete("t", np.zeros(0, np.uint64)) == 0
    assert (store.info()["t"].size, store.info()["t"].deletes) == (0, 3)


def test_reset_deletes_items_and_resets_counters(three):
    store, _ = three
    store.sample("t", 5)
    store.reset("t")
    info = store.info()["t"]
    assert (info.size, info.inserts, info.samples, info.deletes, info.bytes) == (0, 0, 0, 0, 0)
    assert (info.num_episodes, info.num_deleted_episodes, info.num_unique_samples) == (0, 0, 0)
    fill(store, "t", [9])
    assert sample_x(store, "t", 1) == [9]


# --- tables at run time --------------------------------------------------------------------------


def test_tables_can_be_created_and_dropped(open_store):
    store = open_store(Table("b"))
    store.create_table(Table("a", max_size=5))
    assert store.tables == ["a", "b"]
    assert list(store.info()) == ["a", "b"]
    store.drop_table("b")
    assert store.tables == ["a"]
    store.create_table(Table("b"))


def test_table_names_are_unique(open_store):
    with raises(InvalidArgumentError, "`tables`: two tables have the name `a`; give each table its own name"):
        open_store(Table("a"), Table("a"))
    store = open_store(Table("a"))
    with raises(InvalidArgumentError, "table `a` already exists; choose another name, or drop that table first"):
        store.create_table(Table("a"))
    assert store.tables == ["a"]


def test_tables_can_be_any_iterable():
    with engram.Store(Table(name) for name in ("a", "b")) as store:
        assert store.tables == ["a", "b"]
        assert repr(store) == "Store(['a', 'b'])"
    assert repr(store) == "Store(closed)"


def test_bad_tables_are_rejected(open_store):
    with raises(InvalidArgumentError, "`tables` must be a sequence of tables; got the table `a` itself"):
        engram.Store(Table("a"))
    with raises(InvalidArgumentError, "`store` must be an engram.Store or a sequence of tables; got 3 (int)"):
        engram.Server(3)
    with raises(InvalidArgumentError, "each of `tables` must be an engram.Table; got 'a' (str)"):
        engram.Store(["a"])
    with raises(InvalidArgumentError, "`table` must be an engram.Table; got 'a' (str)"):
        open_store().create_table("a")
    with raises(InvalidArgumentError, "`seed` must be at least 0; got -1"):
        engram.Store([], seed=-1)


def test_a_new_limiter_wakes_waiting_calls(open_store):
    store = open_store(Table("t", rate_limiter=rate_limiters.MinSize(10)), Table.queue("q", max_size=9))
    fill(store, "t", [1])
    sampler = BackgroundCall(lambda: sample_x(store, "t", 1))
    wait_until(lambda: store.info()["t"].waiting_samples == 1)
    store.set_rate_limiter("t", rate_limiters.MinSize(1))
    assert sampler.result() == [1]

    fill(store, "q", range(9))
    inserter = BackgroundCall(lambda: fill(store, "q", [9]))
    wait_until(lambda: store.info()["q"].waiting_inserts == 1)
    store.set_rate_limiter("q", rate_limiters.Queue(10))
    inserter.result()


def test_bad_limiters_are_rejected(open_store):
    store = open_store(Table("t", max_size=5))
    text = "`rate_limiter` must be one of engram.rate_limiters; got 3 (int)"
    with raises(InvalidArgumentError, text):
        store.set_rate_limiter("t", 3)
    text = "rate limiter MinSize of table `t`: `min_size` must be at most the table's `max_size`, 5; got 6"
    with raises(InvalidArgumentError, text):
        store.set_rate_limiter("t", rate_limiters.MinSize(6))
    blocking = rate_limiters.from_native("RateLimiter", 2.0, 1, 0.0, 1.0)  # as earlier releases accepted it
    with pytest.raises(InvalidArgumentError, match="or inserts and samples would block each other forever; got 1"):
        store.set_rate_limiter("t", blocking)
    assert store.info()["t"].rate_limiter == rate_limiters.MinSize(1)


def test_a_store_warns_of_limiters_that_block_both_sides(caplog):
    """As one of a server by an earlier release, or of `engram.compat.reverb`, that is used again."""
    blocking = rate_limiters.from_native("RateLimiter", 2.0, 1, 0.0, 1.0)
    text = (
        "rate limiter of table `{}`: `max_diff` must be at least 2 with `samples_per_insert` = 2 and `min_diff` = 0, "
        "or inserts and samples would block each other forever; got 1; raise `max_diff` to 2, or lower `min_diff` to "
        "-1, with `set_rate_limiter`"
    )
    store = engram.Store([Table("t", rate_limiter=blocking), Table("u")])
    store.create_table(Table("v", rate_limiter=store.info()["t"].rate_limiter))
    with engram.Server([Table("w", rate_limiter=blocking)]):
        assert caplog.messages == [text.format(table) for table in "tvw"]


def test_a_server_rejects_limiters_that_block_both_sides():
    blocking = rate_limiters.from_native("RateLimiter", 2.0, 1, 0.0, 1.0)
    with engram.Server([Table("t")]) as server, engram.Client(server.address) as client:
        for call in (
            lambda: client.create_table(Table("u", rate_limiter=blocking)),
            lambda: client._native.set_rate_limiter("t", blocking),
        ):
            with pytest.raises(
                InvalidArgumentError, match="would block each other forever; got 1; raise `max_diff` to 2"
            ):
                call()
        assert client.tables == ["t"]


def test_calls_of_a_closed_store_raise(open_store):
    store = open_store(Table("t"))
    writer, dataset = store.writer(), engram.Dataset(store, "t", 1)
    store.close()
    store.close()
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


@pytest.mark.parametrize(("exponent", "priority"), [(2, "1e300"), (-2, "1e-200")])
def test_a_priority_whose_power_is_too_large_is_rejected(exponent, priority):
    text = (
        f"priority {priority} for table `t`: its weight, `priority ** {exponent}` (the exponent of the Prioritized "
        "selector), must be at most 1e290; got inf; give a priority closer to 1 or an exponent closer to 0"
    )
    with engram.Store([Table("t", sampler=selectors.Prioritized(float(exponent)))]) as store:
        store.insert({"x": np.zeros(1)}, {"t": 1.0})
        with raises(PriorityError, text):
            store.insert({"x": np.zeros(1)}, {"t": float(priority)})
