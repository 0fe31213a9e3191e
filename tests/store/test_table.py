"""Tables: selectors, limits, time to live, queues and stacks, and `info`."""

import dataclasses
import re
import time

import numpy as np
import pytest
from helpers.support import BackgroundCall, fill, raises, sample_x, wait_until

from engram import Table, rate_limiters, selectors
from engram.errors import DeadlineExceededError


def contents(store, table):
    return sorted(set(sample_x(store, table, 500)))


# --- selectors -----------------------------------------------------------------------------------


def test_a_queue_samples_each_item_once_in_order(open_store):
    store = open_store(Table.queue("q", max_size=3))
    fill(store, "q", [5, 3, 4])
    with pytest.raises(DeadlineExceededError):
        store.insert({"x": 9}, {"q": 1.0}, timeout=0)
    assert sample_x(store, "q", 2) == [5, 3]
    fill(store, "q", [1])
    assert sample_x(store, "q", 2) == [4, 1]
    assert store.info()["q"].size == 0


def test_a_stack_samples_the_newest_first(open_store):
    store = open_store(Table.stack("s", max_size=3))
    fill(store, "s", [5, 3, 4])
    with pytest.raises(DeadlineExceededError):
        store.insert({"x": 9}, {"s": 1.0}, timeout=0)
    assert sample_x(store, "s", 2) == [4, 3]
    fill(store, "s", [1])
    assert sample_x(store, "s", 2) == [1, 5]


@pytest.mark.parametrize(("selector", "first"), [(selectors.MinHeap(), 1), (selectors.MaxHeap(), 9)])
def test_heaps_follow_priorities(open_store, selector, first):
    store = open_store(Table("t", sampler=selector))
    keys = fill(store, "t", [4, 1, 9, 5], priority=float)
    assert sample_x(store, "t", 2) == [first, first]
    store.update_priorities("t", [keys[0]], [-100.0 if first == 1 else 100.0])
    assert sample_x(store, "t", 1) == [4]
    assert store.sample("t", 1).info.probability.tolist() == [1.0]


def test_equal_priorities_in_a_heap_are_ordered_by_last_update(open_store):
    store = open_store(Table("t", sampler=selectors.MinHeap(), max_times_sampled=1))
    keys = fill(store, "t", [1, 2, 3])
    store.update_priorities("t", [keys[0]], [1.0])
    assert sample_x(store, "t", 3) == [2, 3, 1]


@pytest.mark.parametrize(
    ("remover", "left"),
    [
        (selectors.Fifo(), [3, 4, 5]),
        (selectors.Lifo(), [1, 2, 3]),
        (selectors.MinHeap(), [3, 4, 5]),
        (selectors.MaxHeap(), [1, 2, 3]),
    ],
)
def test_the_remover_can_choose_the_new_item(open_store, remover, left):
    store = open_store(Table("t", max_size=3, remover=remover))
    fill(store, "t", [1, 2, 3, 4, 5], priority=float)
    assert contents(store, "t") == left
    assert store.info()["t"].deletes == 2


def test_random_removers_keep_the_size(open_store):
    for remover in (selectors.Uniform(), selectors.Prioritized(1.0)):
        store = open_store(Table("t", max_size=3, remover=remover))
        fill(store, "t", range(20))
        assert len(contents(store, "t")) == store.info()["t"].size == 3


def test_priority_zero_is_drawn_only_when_all_are(open_store):
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
    keys = fill(store, "t", [0, 1, 2], priority=lambda value: float(value > 0))
    assert contents(store, "t") == [1, 2]
    store.update_priorities("t", keys, [0.0, 0.0, 0.0])
    assert contents(store, "t") == [0, 1, 2]


def test_tables_may_share_a_selector_and_a_limiter(open_store):
    selector, limiter = selectors.Lifo(), rate_limiters.Queue(2)
    store = open_store(*(Table(name, sampler=selector, remover=selector, rate_limiter=limiter) for name in "ab"))
    fill(store, "a", [1, 2])
    fill(store, "b", [9])
    assert (store.info()["a"].inserting_blocked is None, store.info()["b"].inserting_blocked) == (False, None)
    assert (sample_x(store, "a", 1), sample_x(store, "b", 1)) == ([2], [9])


# --- bounds --------------------------------------------------------------------------------------


def test_items_leave_after_max_times_sampled(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=2))
    fill(store, "t", [1, 2])
    batch = store.sample("t", 4)
    assert batch.data["x"].tolist() == [1, 1, 2, 2]
    assert batch.info.times_sampled.tolist() == [1, 2, 1, 2]
    assert store.info()["t"].size == 0


def test_items_leave_after_their_ttl(open_store):
    store = open_store(Table("t", ttl=0.3))
    fill(store, "t", [1])
    assert sample_x(store, "t", 1) == [1]
    time.sleep(0.35)
    assert store.info()["t"].size == 0
    with pytest.raises(DeadlineExceededError):
        store.sample("t", 1, timeout=0)
    fill(store, "t", [2])
    assert sample_x(store, "t", 1) == [2]


def test_max_bytes_bounds_the_bytes_of_a_table(open_store):
    store = open_store(Table("t", max_bytes=100_000))
    random = np.random.default_rng(0)
    for _ in range(50):
        store.insert({"x": random.random(1000)}, {"t": 1.0})
        assert store.info()["t"].bytes <= 100_000
    assert 5 <= store.info()["t"].size <= 12


def test_shared_data_counts_once_per_table(open_store):
    store = open_store(Table("t"))
    random = np.random.default_rng(0)
    with store.writer(chunk_length=10) as writer:
        for _ in range(10):
            writer.append({"x": random.random(1000)})
            writer.create_item("t", num_steps=1)
    once = store.info()["t"].bytes
    assert 80_000 < once < 100_000


# --- info ----------------------------------------------------------------------------------------


def test_info_has_every_field_with_its_value(open_store):
    store = open_store(Table("t", max_size=5, max_bytes=10**6, rate_limiter=rate_limiters.MinSize(2)))
    info = store.info()["t"]
    assert {field.name: getattr(info, field.name) for field in dataclasses.fields(info)} == {
        "name": "t",
        "size": 0,
        "total_weight": 0.0,
        "max_size": 5,
        "bytes": 0,
        "max_bytes": 10**6,
        "hidden_items": 0,
        "num_episodes": 0,
        "num_deleted_episodes": 0,
        "num_unique_samples": 0,
        "inserts": 0,
        "samples": 0,
        "deletes": 0,
        "unreadable_items": 0,
        "storage_problem": None,
        "inserts_per_s": 0.0,
        "samples_per_s": 0.0,
        "waiting_inserts": 0,
        "waiting_samples": 0,
        "inserting_blocked": None,
        "sampling_blocked": "`t`: sampling waits: the table is empty (MinSize)",
        "rate_limiter": rate_limiters.MinSize(2),
        "sampler": selectors.Uniform(),
        "remover": selectors.Fifo(),
        "max_times_sampled": None,
        "ttl": None,
        "signature": None,
        "note": None,
        "users": [],
        "rejected_calls": {},
    }
    assert (info.samples_per_insert, info.blocked) == (0.0, info.sampling_blocked)

    keys = fill(store, "t", range(7))
    store.sample("t", 21)
    store.delete("t", keys[-1:])
    info = store.info()["t"]
    assert (info.size, info.inserts, info.samples, info.deletes) == (4, 7, 21, 3)
    assert (info.num_episodes, info.num_deleted_episodes) == (4, 3)
    assert 1 <= info.num_unique_samples <= 5
    assert info.samples_per_insert == 3.0
    assert info.blocked is None
    assert info.bytes > 0
    assert info.inserts_per_s > 0 < info.samples_per_s


def test_waiting_calls_are_counted(open_store):
    store = open_store(Table("t"))
    callers = [BackgroundCall(lambda: store.sample("t", 1)) for _ in range(2)]
    wait_until(lambda: store.info()["t"].waiting_samples == 2)
    fill(store, "t", [1])
    for caller in callers:
        caller.result()
    assert store.info()["t"].waiting_samples == 0


def test_each_blocking_reason_has_its_text(open_store):
    store = open_store(
        Table("replay", rate_limiter=rate_limiters.MinSize(100)),
        Table.queue("q", max_size=1),
        Table("ratio", rate_limiter=rate_limiters.SampleToInsertRatio(2.0, 1, (0.0, 4.0))),
    )
    fill(store, "replay", range(37))
    fill(store, "q", [1])
    fill(store, "ratio", [1, 2])
    info = store.info()
    assert info["replay"].blocked == "`replay`: sampling waits: the table has 37 of the 100 items it needs (MinSize)"
    assert info["q"].blocked == ("`q`: inserting waits: Queue(1) is full: 1 inserted item is not sampled yet")
    assert info["ratio"].blocked == (
        "`ratio`: inserting waits: writers are 4 samples ahead of the learner, the limit of SampleToInsertRatio(2) "
        "(2 inserted x 2 samples per insert - 0 sampled = 4)"
    )
    store.sample("ratio", 4)
    assert store.info()["ratio"].blocked == (
        "`ratio`: sampling waits: the learner has caught up with the writers, which is as far as "
        "SampleToInsertRatio(2) allows (2 inserted x 2 samples per insert - 4 sampled = 0)"
    )


def test_the_blocking_reason_mentions_items_in_unfinished_chunks(open_store):
    store = open_store(Table("t"))
    with store.writer(chunk_length=5) as writer:
        for value in range(2):
            writer.append({"x": value})
            writer.create_item("t", num_steps=1)
        text = (
            "`t`: sampling waits: the table is empty (MinSize); writers hold 2 items for this or other tables "
            "in unfinished chunks; call `flush` to send them"
        )
        assert (writer.pending_items, store.info()["t"].size, store.info()["t"].blocked) == (2, 0, text)
        with raises(DeadlineExceededError, f"table `t` had 0 of 1 sample available within 0 s; {text}"):
            store.sample("t", 1, timeout=0)
        for value in range(2, 6):  # the sixth step starts another chunk
            writer.append({"x": value})
        wait_until(lambda: store.info()["t"].size == 2)


def test_a_delete_from_a_queue_uses_capacity_until_a_reset(open_store):
    """As in Reverb; capacity for one item remains."""
    store = open_store(Table.queue("q", max_size=3))
    keys = fill(store, "q", range(3))
    store.delete("q", keys[:2])
    text = (
        "inserting waits: Queue(3) is full: 3 inserted items are not sampled yet; 2 of them were removed, but count "
        "until the table is reset"
    )
    with pytest.raises(DeadlineExceededError, match=re.escape(text)):
        store.insert({"x": 3}, {"q": 1.0}, timeout=0)
    assert sample_x(store, "q", 1) == [2]
    store.insert({"x": 3}, {"q": 1.0}, timeout=0)
    with pytest.raises(DeadlineExceededError, match=re.escape(text)):
        store.insert({"x": 4}, {"q": 1.0}, timeout=0)
    store.reset("q")
    for value in range(3):
        store.insert({"x": value}, {"q": 1.0}, timeout=0)


def test_sample_to_insert_ratio_holds(open_store):
    limiter = rate_limiters.SampleToInsertRatio(2.0, 2, (0.0, 8.0))
    store = open_store(Table("t", rate_limiter=limiter))
    inserted = 0
    with raises(
        DeadlineExceededError,
        "table `t` did not accept the item within 0 s; no table has the item; `t`: inserting waits: writers are 8 "
        "samples ahead of the learner, the limit of SampleToInsertRatio(2) (4 inserted x 2 samples per insert - "
        "0 sampled = 8)",
    ):
        while True:
            store.insert({"x": inserted}, {"t": 1.0}, timeout=0)
            inserted += 1
    assert inserted == 4
    assert len(store.sample("t", 100, at_least=1, timeout=0)) == 8
