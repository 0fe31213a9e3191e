"""Clocks that are set back, concurrent checkpoints, and stores that end during a checkpoint."""

import signal
import time

import numpy as np
import pytest
from helpers import records
from helpers.python_process import PIPE, PythonProcess
from helpers.records import files
from helpers.sample_stores import copied
from helpers.support import BackgroundCall, runs_all_tests

from engram import Store, Table
from engram.errors import ClosedError

HOUR = 3_600  # seconds
MANY = 30_000  # items of the store `large`
ROUNDS = 10 if runs_all_tests() else 4

# --- clocks --------------------------------------------------------------------------------------


def expiring(ttl=HOUR):
    return [Table("expiring", max_size=100, ttl=ttl)]


@pytest.fixture(params=[False, True], ids=["logs alone", "a checkpoint"])
def store_path(request, tmp_path):
    """The directory of a store whose items expire after an hour."""
    with Store.open(tmp_path / "store", expiring()) as store:
        store.insert({"x": 1}, {"expiring": 1.0})
        if request.param:
            store.checkpoint()
        store.insert({"x": 2}, {"expiring": 1.0})
    return tmp_path / "store"


def set_times(path, seconds):
    """Sets all readings of the system's clock in the files to `seconds` since 1970."""
    for file in path.glob("*-*"):
        for record in records.records(file):
            offset = {"logs": 24, "begin": 16}.get(record.kind)
            if offset is not None:
                assert abs(record.u64(offset) - time.time()) < 60
                body = record.body[:offset] + int(seconds).to_bytes(8, "little") + record.body[offset + 8 :]
                records.replace(file, record._replace(body=body))


def items(path):
    """Opens the store; returns the content of its items, sorted."""
    with Store.open(path) as store:
        assert store.notes == ()
        size = store.info()["expiring"].size
        return sorted(set(store.sample("expiring", 50).data["x"].tolist())) if size else []


@pytest.mark.parametrize("ahead", [1, HOUR, 100 * 365 * 24 * HOUR])
def test_no_time_has_passed_if_the_clock_was_set_back(store_path, ahead):
    set_times(store_path, time.time() + ahead)
    assert items(store_path) == [1, 2]
    # Time passes again from then on.
    with Store.open(store_path, expiring()) as store:
        store.insert({"x": 3}, {"expiring": 1.0})
        store.checkpoint()
    assert items(store_path) == [1, 2, 3]


def test_items_are_kept_if_all_times_are_the_largest_possible(store_path):
    set_times(store_path, 2**64 - 1)
    assert items(store_path) == [1, 2]


@pytest.mark.parametrize(("ago", "expected"), [(HOUR - 60, [1, 2]), (HOUR + 1, []), (30 * 365 * 24 * HOUR, [])])
def test_time_passes_while_the_store_is_closed(store_path, ago, expected):
    set_times(store_path, time.time() - ago)
    assert items(store_path) == expected


def test_time_before_an_insert_does_not_count_for_its_ttl(tmp_path):
    """The item is inserted 2.1 s after the last clock reading in the files. Opening must not make it 2.1 s older."""
    paths = {name: tmp_path / name for name in ("logs alone", "a checkpoint")}
    stores = {name: Store.open(path, expiring(ttl=1.9)) for name, path in paths.items()}
    stores["a checkpoint"].checkpoint()
    time.sleep(2.1)
    for name, store in stores.items():
        store.insert({"x": 1}, {"expiring": 1.0})
        store.close()
        assert items(paths[name]) == [1], name


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The directory of a store whose checkpoints take some time."""
    path = tmp_path_factory.mktemp("large") / "store"
    with Store.open(path, [Table("t", max_size=2 * MANY)]) as store, store.writer() as writer:
        for value in range(MANY):
            writer.append({"x": np.int64(value)})
            writer.create_item("t", num_steps=1)
    return path


def values(path):
    """Opens a copy of a store like `large`; returns the content of every item, in order, and the store's notes."""
    copy = copied(path, path.with_name("values"))
    with Store.open(copy, [Table.queue("t", max_size=2 * MANY)], durability="none") as store:
        return store.sample("t", store.info()["t"].size).data["x"].ravel().tolist(), store.notes


def test_concurrent_checkpoints_all_succeed(large, tmp_path):
    path = copied(large, tmp_path / "store")
    with Store.open(path) as store:
        calls = [BackgroundCall(store.checkpoint) for _ in range(4)]
        store.insert({"x": np.array([MANY])}, {"t": 1.0}, time_axis=True)
        checkpoints = [call.result(60) for call in calls]
        assert sorted(each.number for each in checkpoints) == [1, 2, 3, 4]
        assert {each.items for each in checkpoints} <= {MANY, MANY + 1}
    assert {name for name in files(path) if "checkpoint" in name} == {f"checkpoint-{n:010}" for n in (3, 4)}
    assert values(path) == (list(range(MANY + 1)), ())


@pytest.mark.parametrize("durability", ["none", "process", "disk"])
def test_nothing_is_written_after_a_store_is_closed_during_a_checkpoint(large, tmp_path, durability):
    path = copied(large, tmp_path / "store")
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        store = Store.open(path, durability=durability)
        call = BackgroundCall(store.checkpoint)
        time.sleep(rng.uniform(0, 0.03))
        store.close()
        after_close = files(path)
        try:
            call.result()
        except ClosedError as error:
            assert str(error) == "the store is closed"  # noqa: PT017, the checkpoint may also succeed
        # No thread writes to the directory after `close`.
        assert files(path) == after_close
    assert values(path) == (list(range(MANY)), ())


CHILD = """
import sys
from engram import Store
store = Store.open(sys.argv[1])
print("ready", flush=True)
while True:
    print(store.checkpoint().number, flush=True)
"""


def test_a_process_that_is_killed_during_a_checkpoint_loses_nothing(large, tmp_path):
    path = copied(large, tmp_path / "store")
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        with PythonProcess(CHILD, path, stdout=PIPE) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
            reported = [int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        names = files(path)
        numbers = [int(name[-10:]) for name in names if name.startswith("checkpoint") and not name.endswith(".tmp")]
        assert max(reported, default=0) <= max(numbers, default=0)
        with Store.open(path) as store:
            assert store.notes == ()
            assert store.info()["t"].size == MANY
        assert not list(path.glob("*.tmp"))
    assert values(path) == (list(range(MANY)), ())
