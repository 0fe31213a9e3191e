"""What comes at a bad time: clocks that go back, checkpoints during checkpoints, ends during checkpoints."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import records
from records import files
from sample_stores import copied
from support import BackgroundCall

from engram import Store, Table
from engram.errors import ClosedError

HOUR = 3_600
MANY = 30_000

# --- clocks --------------------------------------------------------------------------------------


def passing(ttl=HOUR):
    return [Table("passing", max_size=100, ttl=ttl)]


@pytest.fixture(params=[False, True], ids=["logs alone", "a checkpoint"])
def passed(request, tmp_path):
    """A store whose items pass after an hour."""
    with Store.open(tmp_path / "passed", passing()) as store:
        store.insert({"x": 1}, {"passing": 1.0})
        if request.param:
            store.checkpoint()
        store.insert({"x": 2}, {"passing": 1.0})
    return tmp_path / "passed"


def made_at(path, seconds):
    """Says that all of it was written at another time of the system's clock."""
    for file in path.glob("*-*"):
        for record in records.records(file):
            at = {"logs": 24, "begin": 16}.get(record.kind)
            if at is not None:
                assert abs(record.u64(at) - time.time()) < 60
                body = record.body[:at] + int(seconds).to_bytes(8, "little") + record.body[at + 8 :]
                records.replace(file, record._replace(body=body))


def there(path):
    with Store.open(path) as store:
        assert store.notes == ()
        size = store.info()["passing"].size
        return sorted(set(store.sample("passing", 50).data["x"].tolist())) if size else []


@pytest.mark.parametrize("ahead", [1, HOUR, 100 * 365 * 24 * HOUR])
def test_a_clock_that_went_back_stands_still(passed, ahead):
    made_at(passed, time.time() + ahead)
    assert there(passed) == [1, 2]
    # And goes on from there.
    with Store.open(passed, passing()) as store:
        store.insert({"x": 3}, {"passing": 1.0})
        store.checkpoint()
    assert there(passed) == [1, 2, 3]


def test_a_clock_that_had_come_to_its_end(passed):
    made_at(passed, 2**64 - 1)
    assert there(passed) == [1, 2]


@pytest.mark.parametrize(("ago", "left"), [(HOUR - 60, [1, 2]), (HOUR + 1, []), (30 * 365 * 24 * HOUR, [])])
def test_time_passes_while_nobody_has_the_store_open(passed, ago, left):
    made_at(passed, time.time() - ago)
    assert there(passed) == left


@pytest.mark.parametrize("checkpoint", [False, True])
def test_no_time_passes_twice(tmp_path, checkpoint):
    """An item that comes two seconds after the last time that was told is not as old as that at once."""
    with Store.open(tmp_path, passing(ttl=1.9)) as store:
        if checkpoint:
            store.checkpoint()
        time.sleep(2.1)
        store.insert({"x": 1}, {"passing": 1.0})
    assert there(tmp_path) == [1]


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A store whose checkpoints take a while."""
    path = tmp_path_factory.mktemp("large") / "store"
    with Store.open(path, [Table("t", max_size=2 * MANY)]) as store, store.writer() as writer:
        for value in range(MANY):
            writer.append({"x": np.int64(value)})
            writer.create_item("t", num_steps=1)
    return path


def values(path):
    """Every item's content, in order; the directory is left alone."""
    copy = copied(path, path.with_name("values"))
    with Store.open(copy, [Table.queue("t", max_size=2 * MANY)], durability="none") as store:
        return store.sample("t", store.info()["t"].size).data["x"].ravel().tolist(), store.notes


def test_a_checkpoint_during_a_checkpoint(large, tmp_path):
    path = copied(large, tmp_path / "store")
    with Store.open(path) as store:
        calls = [BackgroundCall(store.checkpoint) for _ in range(4)]
        store.insert({"x": np.array([MANY])}, {"t": 1.0}, time_axis=True)
        made = [call.result(60) for call in calls]
        assert sorted(each.number for each in made) == [1, 2, 3, 4]
        assert {each.items for each in made} <= {MANY, MANY + 1}
    assert {name for name in files(path) if "checkpoint" in name} == {f"checkpoint-{n:010}" for n in (3, 4)}
    assert values(path) == (list(range(MANY + 1)), ())


@pytest.mark.parametrize("durability", ["none", "process", "disk"])
def test_a_store_that_is_closed_during_a_checkpoint(large, tmp_path, durability):
    path = copied(large, tmp_path / "store")
    rng = np.random.default_rng()
    ended = set()
    for _ in range(10):
        store = Store.open(path, durability=durability)
        call = BackgroundCall(store.checkpoint)
        time.sleep(rng.uniform(0, 0.03))
        store.close()
        left = files(path)
        try:
            call.result()
            ended.add("made")
        except ClosedError as error:
            assert str(error) == "the store is closed"  # noqa: PT017, it may as well be made
            ended.add("closed")
        # Who has closed it may open it again, and nobody else writes there any more.
        assert files(path) == left
    assert values(path) == (list(range(MANY)), ())


CHILD = """
import sys, threading
from engram import Store
store = Store.open(sys.argv[1])
print("ready", flush=True)
while True:
    print(store.checkpoint().number, flush=True)
"""


def test_a_process_that_is_killed_during_a_checkpoint(large, tmp_path):
    path = copied(large, tmp_path / "store")
    rng = np.random.default_rng()
    unfinished = 0
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
            said = [int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        there = files(path)
        numbers = [int(name[-10:]) for name in there if name.startswith("checkpoint") and not name.endswith(".tmp")]
        assert max(said, default=0) <= max(numbers, default=0)
        unfinished += any(name.endswith(".tmp") for name in there)
        with Store.open(path) as store:
            assert store.notes == ()
            assert store.info()["t"].size == MANY
        assert not list(path.glob("*.tmp"))
    assert values(path) == (list(range(MANY)), ())
