"""Combinations of two features that once failed."""

import numpy as np
import pytest
from helpers.support import wait_until

import engram
from engram import ArraySpec, Pattern, Table, patterns
from engram.errors import BackpressureError, SignatureError


def test_a_failed_batch_returns_its_items(open_store):
    store = open_store(Table.queue("q", max_size=10))
    for size in (3, 4):
        store.insert({"x": np.zeros(size)}, {"q": 1.0})
    with pytest.raises(SignatureError, match="sample them one by one"):
        store.sample("q", 2)
    assert [store.sample("q", 1, timeout=5).data["x"].shape for _ in range(2)] == [(1, 3), (1, 4)]


def test_a_full_table_does_not_block_items_for_other_tables(open_store):
    store = open_store(Table.queue("full", max_size=1), Table("open"))
    writer = store.writer(history=1, chunk_length=1, max_in_flight_items=4, timeout=0)
    for step in range(3):
        writer.append({"x": step})
        writer.create_item("full", num_steps=1)
    for step in range(50):
        writer.append({"x": step})
        writer.create_item("open", num_steps=1)
    wait_until(lambda: store.info()["open"].size >= 49)
    with pytest.raises(BackpressureError):
        for step in range(10):
            writer.append({"x": step})
            writer.create_item("full", num_steps=1)
    store.close()


def test_a_writer_uses_a_table_that_replaces_a_dropped_one(open_store):
    store = open_store(Table("t"))
    with store.writer(history=1) as writer:
        writer.append({"x": 1})
        writer.create_item("t", num_steps=1)
        writer.flush()
        store.drop_table("t")
        store.create_table(Table("t"))
        writer.create_item("t", num_steps=1)
        writer.flush()
    assert store.info()["t"].size == 1


def test_python_numbers_get_the_dtype_of_the_tables_signature(open_store):
    small = Table("small", signature={"x": ArraySpec((), "uint8")})
    store = open_store(small, Table("any"), Table("real", signature={"x": ArraySpec((), "float64")}))
    store.insert({"x": 5}, {"small": 1.0})
    store.insert({"x": 300}, {"any": 1.0})
    store.insert({"x": 2}, {"real": 1.0})
    dtypes = [store.sample(name, 1).data["x"].dtype for name in ("small", "any", "real")]
    assert dtypes == [np.uint8, np.int64, np.float64]


def test_a_rejected_first_step_has_no_effect(open_store):
    store = open_store(Table("t", signature={"x": ArraySpec((2, 3), "float32")}))
    with store.pattern_writer([Pattern("t", num_steps=2)]) as writer:
        with pytest.raises(SignatureError):
            writer.append({"x": np.zeros(3)})
        for _ in range(2):
            writer.append({"x": np.zeros(3, np.float32)})
    assert store.info()["t"].size == 1


@pytest.mark.parametrize("batched", [False, True])
def test_a_step_of_another_shape_is_checked_against_the_signature(open_store, batched):
    store = open_store(Table("t", signature={"x": ArraySpec((1, 2), "float32")}))
    pattern = Pattern("t", num_steps=1)
    writer = store.batched_writer(1, [pattern]) if batched else store.pattern_writer([pattern])
    append = writer.append_batch if batched else writer.append
    lead = (1,) if batched else ()
    with writer:
        append({"x": np.zeros((*lead, 2), np.float32)})
        with pytest.raises(SignatureError, match="does not match the signature"):
            append({"x": np.zeros((*lead, 3), np.float32)})
        append({"x": np.ones((*lead, 2), np.float32)})
    assert store.info()["t"].size == 2


def test_an_episode_ends_even_if_its_last_item_is_rejected(open_store):
    store = open_store(Table("t"))
    last_two = Pattern("t", num_steps=2, when=[patterns.end_of_episode()])
    with store.pattern_writer([last_two]) as writer:
        writer.append({"x": np.zeros(2)})
        writer.append({"x": np.zeros(3)})
        with pytest.raises(SignatureError):
            writer.end_episode()
        assert writer.episode_steps == 0
        for _ in range(2):
            writer.append({"x": np.ones(3)})
        writer.end_episode()
    assert store.sample("t", 1).data["x"].tolist() == [[[1.0] * 3] * 2]


def test_an_error_in_a_with_block_does_not_wait(open_store):
    store = open_store(Table.queue("q", max_size=1))
    with pytest.raises(ZeroDivisionError), store.pattern_writer([Pattern("q", num_steps=1)]) as writer:
        for step in range(3):
            writer.append({"x": step})
        _ = 1 / 0
    assert store.info()["q"].size == 1
    store.close()
    with pytest.warns(ResourceWarning):
        del writer


def test_booleans_of_other_encodings_end_episodes(open_store):
    store = open_store(Table("t"))
    ends = np.array([2, 0], np.uint8).view(np.bool_)
    with store.batched_writer(2, [Pattern("t", num_steps=2)]) as writer:
        writer.append_batch({"x": np.zeros(2)}, episode_ends=ends)
        writer.append_batch({"x": np.zeros(2)})
    assert store.info()["t"].size == 1


def test_a_table_used_by_a_writer_and_a_dataset_can_be_dropped(open_store):
    store = open_store(Table("t"))
    writer = store.writer(history=1)
    writer.append({"x": np.zeros(1000)})
    writer.create_item("t", num_steps=1)
    writer.flush()
    dataset = iter(engram.Dataset(store, "t", 1))
    next(dataset)
    store.drop_table("t")
    assert store.tables == []
    writer.close()
