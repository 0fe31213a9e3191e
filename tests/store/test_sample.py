"""Sampling: batch sizes, partial batches, deadlines, and requests that can never complete."""

import time
from contextlib import suppress

import numpy as np
import pytest
from helpers.support import BackgroundCall, fill, raises, sample_x, wait_until

from engram import Table, rate_limiters, selectors
from engram.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureError,
    UnknownTableError,
    UnsatisfiableError,
)


def test_exactly_n_items_are_sampled_with_replacement(open_store):
    store = open_store(Table("t"))
    fill(store, "t", range(3))
    batch = store.sample("t", 100)
    assert len(batch) == 100
    assert set(batch.data["x"]) == {0, 1, 2}


def test_n_items_are_collected_from_several_inserts(open_store):
    store = open_store(Table.queue("q", max_size=5))
    fill(store, "q", [0, 1])
    caller = BackgroundCall(lambda: sample_x(store, "q", 5))
    wait_until(lambda: store.info()["q"].samples == 2)
    fill(store, "q", [2, 3, 4])
    assert caller.result() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n", [2, 25])
def test_items_that_a_waiting_sample_holds_do_not_block_the_inserts_that_it_waits_for(open_store, n):
    """Of a table that needs ten items, and of a queue whose limit is exceeded by items that were removed unsampled."""
    ratio = rate_limiters.SampleToInsertRatio(2.0, 10, 10.0)
    store = open_store(
        Table("t", sampler=selectors.Fifo(), max_times_sampled=1, max_size=1000, rate_limiter=ratio),
        Table.queue("q", max_size=30),
    )
    fill(store, "q", range(30))
    store.delete("q", [item.key for item in store.peek("q", 30).items])
    for table in ("t", "q"):
        caller = BackgroundCall(lambda table=table: sample_x(store, table, n))
        inserted = 0
        deadline = time.monotonic() + 5
        while caller.is_alive() and time.monotonic() < deadline:
            with suppress(DeadlineExceededError):
                store.insert({"x": inserted}, {table: 1.0}, timeout=0.1)
                inserted += 1
        assert caller.result() == list(range(n))


def test_a_sample_whose_items_expire_while_it_waits_states_that_there_are_no_others(open_store):
    store = open_store(Table.queue("q", max_size=5, ttl=0.05))
    fill(store, "q", [0])
    store.delete("q", [store.peek("q", 1).items[0].key])
    fill(store, "q", [1])
    with raises(
        DeadlineExceededError,
        "table `q` had 1 of 2 samples available within 0.2 s; they were returned to it; the table has no other item to "
        "sample: insert more, or sample fewer at once",
    ):
        store.sample("q", 2, timeout=0.2)


@pytest.mark.parametrize("max_times_sampled", [None, 4])
def test_a_sample_that_cannot_be_stacked_does_not_count(open_store, max_times_sampled):
    store = open_store(Table("t", max_times_sampled=max_times_sampled))
    fill(store, "t", range(2))
    store.sample("t", 3)
    store.insert({"y": 1}, {"t": 1.0})
    counts = [(item.key, item.times_sampled) for item in store.peek("t", 3).items]
    for _ in range(10):
        with suppress(SignatureError):
            store.sample("t", 100 if max_times_sampled is None else 8)
            pytest.fail("the columns differ")
    info = store.info()["t"]
    assert (info.samples, info.num_unique_samples) == (3, sum(times > 0 for _, times in counts))
    assert [(item.key, item.times_sampled) for item in store.peek("t", 3).items] == counts


def test_a_late_sample_returns_its_items(open_store):
    store = open_store(Table.queue("q", max_size=5))
    fill(store, "q", range(3))
    with raises(
        DeadlineExceededError,
        "table `q` had 3 of 5 samples available within 0.05 s; they were returned to it; `q`: sampling waits: "
        "the learner has caught up with the writers, which is as far as Queue allows "
        "(3 inserted x 1 sample per insert - 3 sampled = 0)",
    ):
        store.sample("q", 5, timeout=0.05)
    assert store.info()["q"].samples == 0
    assert sample_x(store, "q", 3) == [0, 1, 2]


def test_available_items_are_sampled_without_a_wait(open_store):
    store = open_store(Table.queue("q", max_size=5))
    fill(store, "q", range(3))
    batch = store.sample("q", 5, at_least=1, timeout=0)
    assert batch.data["x"].tolist() == [0, 1, 2]
    assert store.info()["q"].size == 0
    with raises(
        DeadlineExceededError,
        "table `q` had 0 of 5 samples available within 0 s (at least 1 needed); `q`: sampling waits: the table is "
        "empty (Queue)",
    ):
        store.sample("q", 5, at_least=1, timeout=0)


def test_min_size_reports_its_progress(open_store):
    store = open_store(Table("t", rate_limiter=rate_limiters.MinSize(100)))
    fill(store, "t", range(37))
    reason = "`t`: sampling waits: the table has 37 of the 100 items it needs (MinSize)"
    assert store.info()["t"].blocked == reason
    with raises(DeadlineExceededError, f"table `t` had 0 of 4 samples available within 0 s; {reason}"):
        store.sample("t", 4, timeout=0)


def test_a_sample_waits_until_its_timeout(open_store):
    store = open_store(Table("t"))
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        store.sample("t", 1, timeout=0.2)
    assert 0.2 <= time.monotonic() - start < 10


@pytest.mark.parametrize("timeout", [None, 5])
def test_more_items_than_a_table_can_ever_provide_are_rejected(open_store, timeout):
    store = open_store(Table("t", max_size=3, max_times_sampled=2))
    text = "table `t` can never yield 7 samples at once: it has at most 3 items, each sampled at most 2 times"
    with raises(UnsatisfiableError, text):
        store.sample("t", 7, timeout=timeout)


def test_calls_that_name_an_unknown_table_raise(open_store):
    store = open_store(Table("b"), Table("a"))
    text = "no table `c`; known tables: `a`, `b`"
    for call in (
        lambda: store.sample("c", 1),
        lambda: store.insert({"x": 1}, {"c": 1.0}),
        lambda: store.update_priorities("c", [1], [1.0]),
        lambda: store.delete("c", [1]),
        lambda: store.reset("c"),
        lambda: store.drop_table("c"),
        lambda: store.set_rate_limiter("c", rate_limiters.MinSize(1)),
    ):
        with raises(UnknownTableError, text):
            call()
    with raises(UnknownTableError, "no table `t`; known tables: none"):
        open_store().sample("t", 1)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "`n` must be at least 1; got 0"),
        (-1, "`n` must be at least 1; got -1"),
        (2**24 + 1, "`n` must be at most 16777216; got 16777217"),
        (1.0, "`n` must be an integer; got 1.0 (float)"),
        (None, "`n` must be an integer; got None"),
        (True, "`n` must be an integer; got True (bool)"),
    ],
)
def test_bad_n_is_rejected(open_store, n, text):
    with raises(InvalidArgumentError, text):
        open_store(Table("t")).sample("t", n)


def test_numpy_integers_are_integers(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [1])
    assert len(store.sample("t", np.int32(3))) == 3


@pytest.mark.parametrize(("timeout", "shown"), [(-1.0, "-1"), (float("nan"), "nan"), ("x", "'x' (str)")])
def test_bad_timeouts_are_rejected(open_store, timeout, shown):
    store = open_store(Table("t"))
    text = f"`timeout` must be a number of seconds, at least 0, or None to wait forever; got {shown}"
    for call in (
        lambda: store.sample("t", 1, timeout=timeout),
        lambda: store.insert({"x": 1}, {"t": 1.0}, timeout=timeout),
        lambda: store.writer(timeout=timeout),
    ):
        with raises(InvalidArgumentError, text):
            call()


def test_an_endless_timeout_is_allowed(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [1])
    assert len(store.sample("t", 1, timeout=float("inf"))) == 1
    assert len(store.sample("t", 1, timeout=1e300)) == 1


def test_waiting_calls_are_served_in_order(open_store):
    store = open_store(Table.queue("q", max_size=10))
    callers = []
    for waiting in range(1, 4):
        callers.append(BackgroundCall(lambda: sample_x(store, "q", 2)))
        wait_until(lambda waiting=waiting: store.info()["q"].waiting_samples == waiting)
    fill(store, "q", range(6))
    assert [caller.result() for caller in callers] == [[0, 1], [2, 3], [4, 5]]


def test_a_blocked_table_does_not_stall_another(open_store):
    store = open_store(Table("empty"), Table("full"))
    fill(store, "full", range(3))
    caller = BackgroundCall(lambda: store.sample("empty", 1))
    wait_until(lambda: store.info()["empty"].waiting_samples == 1)
    assert len(store.sample("full", 10, timeout=1)) == 10
    store.insert({"x": 1}, {"empty": 1.0})
    assert len(caller.result()) == 1


def test_dropping_a_table_ends_waiting_calls(open_store):
    store = open_store(Table("t"), Table.queue("q", max_size=1))
    fill(store, "q", [1])
    sampler = BackgroundCall(lambda: store.sample("t", 1))
    inserter = BackgroundCall(lambda: store.insert({"x": 2}, {"q": 1.0}))
    wait_until(lambda: store.info()["t"].waiting_samples == store.info()["q"].waiting_inserts == 1)
    store.drop_table("t")
    store.drop_table("q")
    with raises(ClosedError, "table `t` was dropped"):
        sampler.result()
    with raises(ClosedError, "table `q` was dropped"):
        inserter.result()


def test_closing_the_store_ends_waiting_calls(open_store):
    store = open_store(Table("t"))
    sampler = BackgroundCall(lambda: store.sample("t", 1))
    wait_until(lambda: store.info()["t"].waiting_samples == 1)
    store.close()
    with raises(ClosedError, "the store is closed"):
        sampler.result()


def test_waiting_calls_continue_after_a_reset(open_store):
    store = open_store(Table.queue("q", max_size=5))
    fill(store, "q", [1])
    sampler = BackgroundCall(lambda: sample_x(store, "q", 2))
    wait_until(lambda: store.info()["q"].waiting_samples == 1)
    store.reset("q")
    fill(store, "q", [2, 3])
    assert sampler.result() == [2, 3]


def test_the_gil_is_free_while_a_call_waits(open_store):
    store = open_store(Table("t"))
    caller = BackgroundCall(lambda: store.sample("t", 1))
    wait_until(lambda: store.info()["t"].waiting_samples == 1)
    counted, end = 0, time.monotonic() + 0.2
    while time.monotonic() < end:
        counted += 1
    assert counted > 1000
    fill(store, "t", [1])
    caller.result()


def test_same_seed_and_same_calls_give_the_same_data(open_store):
    def run(seed):
        tables = [Table(name, sampler=selectors.Prioritized(1.0)) for name in ("a", "b")]
        store = open_store(*tables, seed=seed)
        for value in range(50):
            store.insert({"x": value}, {"a": 1.0 + value, "b": 1.0 + value})
        return [sample_x(store, name, 64) for name in ("a", "b", "a")]

    first = run(1)
    assert run(1) == first
    assert run(2) != first
    assert first[0] != first[1], "tables of one store draw from different streams"


def test_a_tables_seed_overrides_the_stores(open_store):
    def run(seed):
        store = open_store(Table("t", seed=7), seed=seed)
        fill(store, "t", range(50))
        return sample_x(store, "t", 64)

    assert run(1) == run(2)


def test_tables_created_later_have_different_seeds(open_store):
    store = open_store(Table("a"), Table("b"))
    store.drop_table("a")
    store.create_table(Table("c"))
    for name in ("b", "c"):
        fill(store, name, range(50))
    assert sample_x(store, "b", 64) != sample_x(store, "c", 64)
