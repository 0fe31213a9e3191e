"""Directories and files that a store cannot use: each is refused in words, and nothing in it is changed."""

import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime

import numpy as np
import pytest
import records
from crash_workload import all_values, steps
from records import Head, files
from sample_stores import QUEUE, checkpointed, copied, logged, logged_twice, open_sample, state, tables
from support import raises

import engram
from engram import Store, Table
from engram.errors import InvalidArgumentError, SignatureError, StorageError

FIRST, SECOND = "log-0000000001", "log-0000000002"
OLD, NEW = "checkpoint-0000000001", "checkpoint-0000000002"


@pytest.fixture(scope="module")
def made(request, tmp_path_factory):
    """A store made in one of the ways of `sample_stores`, and its state. Tests work on copies."""
    path = tmp_path_factory.mktemp("made") / "store"
    request.param(path)
    return path, state(path)


def store_is(how):
    return pytest.mark.parametrize("made", [how], indirect=True, ids=[how.__name__])


ADVICE = "; `repair=True` opens what is left"


def refused(path, text, error=StorageError):
    """Expects that opening fails so, and that no file but the lock is other than before."""
    there = files(path)
    with raises(error, text):
        open_sample(path)
    assert files(path) == there


# --- directories ---------------------------------------------------------------------------------


def test_a_directory_that_is_missing_is_made(tmp_path):
    with open_sample(tmp_path / "some" / "where") as store:
        store.insert(steps(7), {QUEUE: 1.0})
    assert state(tmp_path / "some" / "where")[1] == [7]


def test_a_directory_that_goes_away_and_comes_back(tmp_path):
    path, away = tmp_path / "store", tmp_path / "away"
    with open_sample(path) as store:
        store.insert(steps(0), {QUEUE: 1.0})
        path.rename(away)
        for _ in range(2):
            with raises(StorageError, f"{path}: a log cannot be created: No such file or directory (os error 2)"):
                store.checkpoint()
        # What is open goes with the directory.
        store.insert(steps(1), {QUEUE: 1.0})
        assert store.sample(QUEUE, 1).data["n"].tolist() == [0]
        away.rename(path)
        assert store.checkpoint().number == 1
        store.insert(steps(2), {QUEUE: 1.0})
    _, values, notes = state(path)
    assert (values, notes) == ([1, 2], ())


ONLY_READ = """
import ctypes, sys
from engram import Store
from engram.errors import StorageError
# The superuser may write everywhere: as long as it has this right.
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
try:
    Store.open(sys.argv[1])
except StorageError as error:
    print(error)
"""


def opened_by_a_reader(path):
    """What opening says to a process that may only do what the files' owner may."""
    done = subprocess.run([sys.executable, "-c", ONLY_READ, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.rstrip("\n")


@store_is(checkpointed)
def test_a_directory_that_may_only_be_read(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    (path / "log-0000000099.tmp").write_text("not finished")
    there = files(path)
    modes = {each: each.stat().st_mode for each in (path, *path.iterdir())}
    path.chmod(0o555)
    assert opened_by_a_reader(path) == f"{path}: cannot be written: Permission denied (os error 13)"
    path.chmod(0o755)
    (path / "log-0000000099.tmp").unlink()
    path.chmod(0o555)
    assert opened_by_a_reader(path) == f"{path}: a log cannot be created: Permission denied (os error 13)"
    (path / "LOCK").chmod(0o444)
    assert opened_by_a_reader(path) == f"{path} cannot be used: Permission denied (os error 13)"
    assert opened_by_a_reader(path / "below") == f"{path}/below cannot be used: Permission denied (os error 13)"
    for each, mode in modes.items():
        if each.exists():
            each.chmod(mode)
    del there["log-0000000099.tmp"]
    assert files(path) == there
    assert state(path) == made[1]


@store_is(checkpointed)
def test_a_file_that_may_not_be_read(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    (path / NEW).chmod(0)
    # It is not damaged: the one before is not to be used in its place.
    assert opened_by_a_reader(path) == f"{path}: {NEW} cannot be read: Permission denied (os error 13)"
    for name in (OLD, NEW):
        (path / name).chmod(0o644)
    assert state(path) == made[1]


HOLDER = """
import sys
from engram import Store
store = Store.open(sys.argv[1])
store.checkpoint()  # so that nothing is being written any more
print("ready", flush=True)
sys.stdin.read()
"""


@store_is(logged)
def test_a_directory_of_another_process(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "ready\n"
        there = files(path)
        text = rf"{re.escape(str(path))} is in use by process {holder.pid} since (\S+ \S+) UTC; "
        with pytest.raises(StorageError, match=rf"\A{text}only one process .*\Z") as caught:
            open_sample(path)
        since = datetime.fromisoformat(re.match(text, str(caught.value))[1]).replace(tzinfo=UTC).timestamp()
        assert time.time() - 60 < since <= time.time()
        assert files(path) == there
        # Who is killed holds nothing any more.
        holder.kill()
        holder.wait()
    assert state(path) == made[1]


PARENT = """
import os, sys
from engram import Store
store = Store.open(sys.argv[1])
if os.fork() == 0:
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


@store_is(logged)
def test_children_do_not_keep_the_directory_of_a_process_that_was_killed(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        with pytest.raises(StorageError, match=f"is in use by process {parent.pid}"):
            open_sample(path)
        parent.kill()
        parent.wait()
        # The child is still there.
        open_sample(path).close()


MANY_LOGS = """
import resource, sys
from engram import Store, Table
tables = [Table("t", max_size=1_000)]
with Store.open(sys.argv[1], tables) as store:
    for value in range(60):
        store.insert({"x": value}, {"t": 1.0})
        store.checkpoint()
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
# Standard streams, the directory's lock, a checkpoint and the log at hand, and some room.
resource.setrlimit(resource.RLIMIT_NOFILE, (20, most))
with Store.open(sys.argv[1]) as store:
    print(store.info()["t"].size, store.notes)
"""


def test_many_logs_take_no_more_open_files(tmp_path):
    command = [sys.executable, "-c", MANY_LOGS, tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("60 ()\n", "")
    assert len(list((tmp_path / "store").glob("log-*"))) > 50


FEW_FILES = """
import os, resource, sys
from engram import Store
from engram.errors import StorageError
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
free = os.open(os.devnull, os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + int(sys.argv[2]), most))
try:
    with Store.open(sys.argv[1], repair=sys.argv[3] == "repair") as store:
        print("opened", store.notes)
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("made", [checkpointed, logged], indirect=True, ids=["checkpointed", "logged"])
@pytest.mark.parametrize("repair", ["", "repair"])
def test_too_few_open_files_are_no_damage(made, tmp_path, repair):
    path = copied(made[0], tmp_path / "store")
    there = files(path)
    name = re.escape(str(path))
    refused = rf"{name}(:| cannot be used:).* Too many open files \(os error 24\)\n"
    said = []
    for room in range(12):
        command = [sys.executable, "-c", FEW_FILES, path, str(room), repair]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said.append(done.stdout)
        if done.stdout == "opened ()\n":
            break
        assert re.fullmatch(refused, done.stdout)
        assert "can be used" not in done.stdout
        assert "is not used" not in done.stdout
        assert {name: there[name] for name in there if name in files(path)} == there
    assert said[-1] == "opened ()\n"
    assert any(re.match(rf"{name}: (checkpoint|log)-\d+ cannot be read: Too many", text) for text in said), said
    assert state(path)[0] == made[1][0]


@store_is(logged)
def test_files_of_others_are_left_alone(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    (path / "log-0000000002.tmp").write_text("not finished")
    (path / "checkpoint-0000000001.tmp").write_text("not finished")
    others = {"notes.txt": "x", "notes.tmp": "y", "log-7": "z", "checkpoint-0000000001~": "", "old-log-0000000001": "w"}
    for name, text in others.items():
        (path / name).write_text(text)
    with open_sample(path) as store:
        assert store.notes == ()
        for _ in range(3):
            store.checkpoint()
    assert not list(path.glob("*-*.tmp"))
    assert {name: (path / name).read_text() for name in others} == others
    assert state(path)[1] == made[1][1]


# --- files of other versions and stores ----------------------------------------------------------


@pytest.mark.parametrize("name", [FIRST, SECOND])
@store_is(logged_twice)
def test_a_log_of_a_newer_version(made, tmp_path, name):
    path = copied(made[0], tmp_path / "store")
    Head.of(path / name)._replace(version=2).put(path / name)
    refused(path, f"{path}: {name} has format version 2, but this release reads only version 1")
    Head.of(path / name)._replace(version=1).put(path / name)
    assert state(path) == made[1]


@store_is(checkpointed)
def test_a_checkpoint_of_a_newer_version(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    Head.of(path / NEW)._replace(version=2).put(path / NEW)
    refused(path, f"{path}: {NEW} has format version 2, but this release reads only version 1")
    Head.of(path / NEW)._replace(version=1).put(path / NEW)
    assert state(path) == made[1]


@store_is(logged_twice)
def test_a_log_of_another_store(made, tmp_path):
    path, other = copied(made[0], tmp_path / "store"), tmp_path / "other"
    logged_twice(other)
    shutil.copy(other / SECOND, path / SECOND)
    refused(path, f"{path}: {SECOND} belongs to another store{ADVICE}")
    shutil.copy(made[0] / SECOND, path / SECOND)
    assert state(path) == made[1]


@store_is(checkpointed)
def test_a_checkpoint_of_another_store(made, tmp_path):
    path, other = copied(made[0], tmp_path / "store"), tmp_path / "other"
    checkpointed(other)
    shutil.copy(other / NEW, path / NEW)
    words, values, notes = state(path)
    assert (words, values) == made[1][:2]
    assert len(notes) == 1
    assert re.fullmatch(rf"{NEW} is not used: log-\d+ belongs to another store", notes[0])


@store_is(checkpointed)
def test_a_file_under_another_name(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    third = "checkpoint-0000000003"
    for name in (OLD, FIRST):
        shutil.copy((made[0] if (made[0] / name).exists() else path) / name, path / third)
        expected = (*made[1][:2], (f"{third} is not used: {third} is another file, renamed or copied to this name",))
        assert state(path) == expected
    (path / third).unlink()
    last = max(path.glob("log-*"))
    following = f"log-{int(last.name[4:]) + 1:010}"
    shutil.copy(last, path / following)
    why = f"is not used: {following} is another file, renamed or copied to this name"
    refused(path, f"{path}: none of 2 checkpoints can be used: {NEW} {why}; {OLD} {why}{ADVICE}")


@store_is(checkpointed)
def test_a_log_that_is_not_there(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    first = next(record for record in records.records(path / NEW) if record.kind == "logs").u64(0)
    (path / f"log-{first:010}").unlink()
    refused(path, f"{path}: log-{first:010} is missing{ADVICE}")


@store_is(logged_twice)
def test_a_first_log_that_is_not_there(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    (path / FIRST).unlink()
    last = records.records(path / SECOND)[0].u64(0) - 1
    refused(path, f"{path}: changes 1 to {last} are missing before {SECOND}{ADVICE}")


# --- records that nobody has written so ----------------------------------------------------------


def forge(path, kind, change):
    """Changes the first record of a kind, with checksums that fit."""
    record = next(record for record in records.records(path) if record.kind == kind)
    body = bytearray(record.body)
    change(body)
    records.put(path, record._replace(body=bytes(body)))


FORGED = {
    "a schema of an undefined layout": (
        "schema",
        {4: 9},
        "layout 9 is not defined; the file defines 1 before this record",
    ),
    "a dtype that is none": ("schema", {12: 99}, "unknown dtype code 99, expected 0 to 17"),
    "a layout out of turn": ("layout", {0: 5}, "layout has number 5, expected 0"),
}


@pytest.mark.parametrize(("kind", "change", "why"), FORGED.values(), ids=FORGED)
@store_is(logged)
def test_a_record_that_makes_no_sense(made, tmp_path, kind, change, why):
    path = copied(made[0], tmp_path / "store")
    forge(path / FIRST, kind, lambda body: [body.__setitem__(at, value) for at, value in change.items()])
    refused(path, f"{path}: {why}{ADVICE}")


@store_is(logged)
def test_a_change_that_comes_again(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    record = next(record for record in records.records(path / FIRST) if record.kind == "changes")
    number = record.u64(8)

    def again(body):
        body[8:16] = (number - 1).to_bytes(8, "little")

    forge(path / FIRST, "changes", again)
    refused(path, f"{path}: change {number - 1} follows change {number - 1}{ADVICE}")


# --- other tables --------------------------------------------------------------------------------


@store_is(checkpointed)
def test_tables_that_the_items_do_not_fit(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    signature = {"n": engram.ArraySpec((), np.float32), "x": engram.ArraySpec((24,), np.uint8)}
    text = (
        "item does not match the signature of table `queue`: columns `n`, `x` have a time axis, but the "
        "signature has none; begin each shape in the signature with the number of steps, or None for any number; "
        "signature: `n` float32[], `x` uint8[24]; item: `n` uint64[1], `x` uint8[1,24]"
    )
    with raises(SignatureError, text):
        Store.open(path, [Table.queue(QUEUE, max_size=1_000, signature=signature)])
    with raises(InvalidArgumentError, "table `uniform` already exists; choose another name, or drop that table first"):
        Store.open(path, [Table("uniform"), Table("uniform")])
    assert state(path)[:2] == made[1][:2]


@store_is(checkpointed)
def test_tables_that_are_not_named_stay(made, tmp_path):
    path = copied(made[0], tmp_path / "store")
    with Store.open(path, [Table("other")]) as store:
        assert store.tables == sorted(["other", *(table.name for table in tables())])
        assert all_values(store, QUEUE) == made[1][1]
