"""A full disk: a store continues in memory, acknowledges nothing, and writes the changes when there is space again."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.full_disk import (
    ITEM_BYTES,
    insert,
    is_durable,
    item,
    kill_this_process,
    limit_file_size,
    newest_log,
    queued,
    run_in_process,
    tables,
    write_error,
)
from helpers.python_process import run_program
from helpers.support import raises, wait_until

from engram import Pattern, Store, Table
from engram.errors import BackpressureError, DeadlineExceededError, StorageError


def open_filled(path, durability):
    """Opens a store with ten items in both tables; the log may then grow by two and a half items."""
    store = Store.open(path, tables(), durability=durability)
    for value in range(10):
        insert(store, value, "queue", "drawn")
    limit_file_size(newest_log(path).stat().st_size + 5 * ITEM_BYTES // 2)
    return store


def insert_until_full(store, path):
    """Inserts 10, 11, ... until an insert is not acknowledged; returns its number."""
    for value in range(10, 20):
        try:
            insert(store, value, "queue", "drawn")
        except StorageError as error:
            assert str(error) == write_error(path)  # noqa: PT017, other errors are raised
            return value
    raise AssertionError("every insert was acknowledged")


# Each of these functions runs in another process, in which the size of files is limited.


def continues_in_memory(path, durability):
    store = open_filled(path, durability)
    first_failed = insert_until_full(store, path)
    assert first_failed in (11, 12)
    # Changes are made in memory, and none is acknowledged.
    for value in range(first_failed + 1, 30):
        with raises(StorageError, write_error(path)):
            insert(store, value, "queue", "drawn")
    writer = store.writer()
    for value in range(30, 40):
        writer.append(item(value))
        writer.create_item("queue", num_steps=1)
    for _ in range(2):
        with raises(StorageError, write_error(path)):
            writer.flush()
    key = store.sample("drawn", 1).info.key
    for call in (
        lambda: store.update_priorities("drawn", key, [3.0]),
        lambda: store.delete("drawn", key),
        lambda: store.create_table(Table("late")),
        lambda: store.set_rate_limiter("drawn", Table("any").rate_limiter),
    ):
        with raises(StorageError, write_error(path)):
            call()
    with raises(StorageError, write_error(path)):
        store.checkpoint()
    info = store.info()
    assert (info["queue"].size, info["drawn"].size) == (40, 29)
    assert store.sample("drawn", 200).data["n"].max() > first_failed
    assert not is_durable(store)
    limit_file_size(None)
    wait_until(lambda: is_durable(store))
    writer.flush()
    insert(store, 40, "queue")
    kill_this_process()


def is_killed_while_full(path, durability):
    store = open_filled(path, durability)
    first_failed = insert_until_full(store, path)
    print(first_failed, flush=True)  # noqa: T201, the parent reads it
    kill_this_process()


def is_closed_while_full(path, durability):
    store = open_filled(path, durability)
    first_failed = insert_until_full(store, path)
    print(first_failed, flush=True)  # noqa: T201, the parent reads it
    with raises(StorageError, f"changes were not written to {path}: File too large"):
        store.close()
    store.close()
    kill_this_process()


def has_no_space_for_a_checkpoint(path, durability):
    store = open_filled(path, durability)
    limit_file_size(None)
    assert store.checkpoint().number == 1
    for value in range(10, 3_000):
        insert(store, value, "queue")
    # There is space for the next log, but not for the checkpoint.
    limit_file_size(100_000)
    files_before = set(path.iterdir())
    for _ in range(2):
        with raises(StorageError, f"{path}: a checkpoint cannot be written: File too large"):
            store.checkpoint()
    assert files_before <= set(path.iterdir())
    assert not list(path.glob("checkpoint-*.tmp"))
    insert(store, 3_000, "queue")
    limit_file_size(None)
    # Each failed attempt has used up a number.
    assert store.checkpoint().number == 4
    insert(store, 3_001, "queue")
    kill_this_process()


def has_no_space_for_chunks(path, durability):
    store = Store.open(path, tables(), durability=durability)
    insert(store, 0, "queue")
    assert store.checkpoint().number == 1
    for value in range(1, 200):
        insert(store, value, "queue")
    limit_file_size(100_000)
    for _ in range(2):
        with raises(StorageError, f"{path}: chunks cannot be written: File too large"):
            store.checkpoint()
    assert len(list(path.glob("checkpoint-*"))) == 1
    limit_file_size(None)
    # The attempts failed before they had a number.
    assert store.checkpoint().number == 2
    kill_this_process()


def has_a_disk_that_does_not_write(path, durability):
    """Prints the errors of `insert_batch` and of a writer while the log is a full pipe, so that writing to it waits."""
    store = Store.open(path, tables(), durability=durability)
    log = next(file for file in Path("/proc/self/fd").iterdir() if "/log-" in os.path.realpath(file))
    os.dup2(os.pipe()[1], int(log.name))
    x = np.random.default_rng(0).integers(0, 256, (100, 1 << 20), np.uint8)
    writer = store.pattern_writer([Pattern("drawn", num_steps=1)], timeout=0.5)
    try:
        with pytest.raises(DeadlineExceededError) as batch_error:
            store.insert_batch("drawn", {"x": x}, timeout=0.5)
        with pytest.raises(BackpressureError) as writer_error:
            for row in x:
                writer.append({"x": row})
        os.write(1, f"{batch_error.value}\n{writer_error.value}\n".encode())
    finally:
        kill_this_process()


def fills_the_buffer(path, durability):
    """Prints the errors of calls once the buffer of changes that cannot be written is full."""
    store = Store.open(path, tables(), durability=durability)
    limit_file_size(0)
    x = np.random.default_rng(0).integers(0, 256, (100, 1 << 20), np.uint8)
    with pytest.raises(StorageError) as batch_error:
        store.insert_batch("drawn", {"x": x})
    size = store.info()["drawn"].size
    with pytest.raises(StorageError) as error:
        store.insert({"x": x[0]}, {"drawn": 1.0})
    assert store.info()["drawn"].size == size
    with pytest.raises(StorageError) as delete_error:
        store.delete("drawn", [store.peek("drawn", 1).items[0].key], wait=False)
    assert store.info()["drawn"].size == size - 1
    with pytest.raises(StorageError) as sample_error:
        store.sample("drawn", 1)
    errors = [batch_error.value, error.value, delete_error.value, sample_error.value]
    os.write(1, "\n".join(map(str, [size, *errors])).encode())
    kill_this_process()


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_changes_are_written_when_there_is_space_again(tmp_path, durability):
    run_in_process(continues_in_memory, tmp_path / "store", durability)
    assert queued(tmp_path / "store") == (list(range(41)), ())


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize("call", [is_killed_while_full, is_closed_while_full])
def test_changes_acknowledged_before_the_disk_was_full_are_kept(tmp_path, call, durability):
    first_failed = int(run_in_process(call, tmp_path / "store", durability))
    numbers, notes = queued(tmp_path / "store")
    assert numbers in (list(range(first_failed)), list(range(first_failed + 1)))
    assert notes == ()


def test_a_checkpoint_without_space_fails_and_loses_nothing(tmp_path):
    run_in_process(has_no_space_for_a_checkpoint, tmp_path / "store", "process")
    assert queued(tmp_path / "store") == (list(range(3_002)), ())


def test_chunks_are_written_when_there_is_space_again(tmp_path):
    run_in_process(has_no_space_for_chunks, tmp_path / "store", "none")
    assert queued(tmp_path / "store") == (list(range(200)), ())


def test_a_disk_that_cannot_keep_up_is_named(tmp_path):
    batch, writer = run_in_process(has_a_disk_that_does_not_write, tmp_path / "store", "process").splitlines()
    assert re.fullmatch(
        r"table `drawn` did not accept all items within 0.5 s; it has the first \d\d of 100 items; the disk cannot "
        "keep up: the buffer of unwritten changes stayed full",
        batch,
    )
    assert writer == (
        "the disk cannot keep up: the buffer of unwritten changes stayed full for 0.5 s (`timeout`); write more "
        'slowly, or use durability="none"'
    )


def test_a_full_buffer_is_named_and_what_was_stored(tmp_path):
    path = tmp_path / "store"
    size, batch, single, delete, sample = run_in_process(fills_the_buffer, path, "process").splitlines()
    text = (
        f"changes cannot be written to {path}: File too large; earlier changes are kept in memory, and writing is "
        "retried twice a second; their buffer is full: free disk space"
    )
    assert 0 < int(size) < 100
    assert batch == f"{text}, and repeat what this call has not stored; the table has the first {size} of 100 items"
    assert single == f"{text}, and insert the item again: it is not stored"
    assert [delete, sample] == [text, text]


OPEN_WITH_LIMIT = """
import resource, sys
from engram import Store
from engram.errors import StorageError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    Store.open(sys.argv[1])
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize(("max_size", "problem"), [(10, "/LOCK cannot be used"), (47, ": a log cannot be created")])
def test_opening_a_store_without_space_raises_an_error_and_loses_nothing(tmp_path, max_size, problem):
    path = tmp_path / "store"
    with Store.open(path, tables()) as store:
        insert(store, 0, "queue")
    assert run_program(OPEN_WITH_LIMIT, path, max_size) == f"{path}{problem}: File too large\n"
    assert queued(path) == ([0], ())


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
