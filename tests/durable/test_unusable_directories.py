"""Directories and files that a store cannot use: opening raises an error and changes no file, or uses other files."""

import re
import shutil
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from helpers import records
from helpers.crash_workload import all_values, steps
from helpers.python_process import PIPE, PythonProcess, run_program
from helpers.records import Head, files
from helpers.sample_stores import (
    QUEUE,
    SampleStore,
    checkpointed,
    copied,
    logged,
    logged_twice,
    open_sample,
    state,
    tables,
)
from helpers.support import raises

import engram
from engram import Store, Table, selectors
from engram.errors import InvalidArgumentError, PriorityError, SignatureError, StorageError

FIRST, SECOND = "log-0000000001", "log-0000000002"
OLD, NEW = "checkpoint-0000000001", "checkpoint-0000000002"


@pytest.fixture(scope="module")
def sample(request, tmp_path_factory):
    """A store of `sample_stores`. Tests use copies of its directory."""
    path = tmp_path_factory.mktemp("sample") / "store"
    request.param(path)
    return SampleStore(path, state(path))


def sample_store(how):
    return pytest.mark.parametrize("sample", [how], indirect=True, ids=[how.__name__])


ADVICE = "; `engram.Store.open(path, repair=True)` opens what can still be read (an empty store if nothing can)"


def expect_open_error(path, text, error=StorageError):
    """Expects that opening the store raises this error, and changes no file except the lock."""
    before = files(path)
    with raises(error, text):
        open_sample(path)
    assert files(path) == before


# --- directories ---------------------------------------------------------------------------------


def test_missing_directories_are_created(tmp_path):
    with open_sample(tmp_path / "some" / "where") as store:
        store.insert(steps(7), {QUEUE: 1.0})
    assert state(tmp_path / "some" / "where").queue == [7]


OPEN_UNPRIVILEGED = """
import ctypes, sys
from engram import Store
from engram.errors import StorageError
# The superuser may write everywhere, so this process gives up its capabilities.
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
for line in sys.stdin:
    try:
        Store.open(line.removesuffix("\\n"))
    except StorageError as error:
        print(error, flush=True)
    else:
        print("opened", flush=True)
"""


@pytest.fixture(scope="module")
def error_without_privileges():
    """Returns `error_without_privileges(path)`: the error of a process without the superuser's capabilities."""
    with PythonProcess(OPEN_UNPRIVILEGED, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:

        def error(path):
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            return process.stdout.readline().removesuffix("\n")

        yield error
        assert process.communicate() == ("", "")
        assert process.returncode == 0


@sample_store(checkpointed)
def test_a_directory_or_lock_without_write_permission_is_rejected(sample, tmp_path, error_without_privileges):
    path = copied(sample.path, tmp_path / "store")
    (path / "log-0000000099.tmp").write_text("not finished")
    before = files(path)
    modes = {each: each.stat().st_mode for each in (path, *path.iterdir())}
    path.chmod(0o555)
    assert error_without_privileges(path) == f"{path}: cannot be written: Permission denied"
    path.chmod(0o755)
    (path / "log-0000000099.tmp").unlink()
    path.chmod(0o555)
    assert error_without_privileges(path) == f"{path}: a log cannot be created: Permission denied"
    (path / "LOCK").chmod(0o444)
    assert error_without_privileges(path) == f"{path}/LOCK cannot be used: Permission denied"
    assert error_without_privileges(path / "below") == f"{path}/below cannot be used: Permission denied"
    for each, mode in modes.items():
        if each.exists():
            each.chmod(mode)
    del before["log-0000000099.tmp"]
    assert files(path) == before
    assert state(path) == sample.state


@sample_store(checkpointed)
def test_a_file_without_read_permission_is_rejected(sample, tmp_path, error_without_privileges):
    path = copied(sample.path, tmp_path / "store")
    (path / NEW).chmod(0)
    # The checkpoint is not damaged, so the earlier one must not be used instead.
    assert error_without_privileges(path) == f"{path}: {NEW} cannot be read: Permission denied"
    for name in (OLD, NEW):
        (path / name).chmod(0o644)
    assert state(path) == sample.state


HOLDER = """
import sys
from engram import Store
store = Store.open(sys.argv[1])
store.checkpoint()  # so that no file is being written any more
print("ready", flush=True)
sys.stdin.read()
"""


@sample_store(logged)
def test_a_directory_that_another_process_has_open_is_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    with PythonProcess(HOLDER, path, stdin=PIPE, stdout=PIPE) as holder:
        assert holder.stdout.readline() == "ready\n"
        before = files(path)
        text = rf"{re.escape(str(path))} is in use by process {holder.pid} since (\S+ \S+) UTC; "
        with pytest.raises(StorageError, match=rf"\A{text}only one process .*\Z") as caught:
            open_sample(path)
        since = datetime.fromisoformat(re.match(text, str(caught.value))[1]).replace(tzinfo=UTC).timestamp()
        assert time.time() - 60 < since <= time.time()
        assert files(path) == before
        # A killed process no longer holds the lock.
        holder.kill()
        holder.wait()
    assert state(path) == sample.state


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


@sample_store(logged)
def test_children_of_a_killed_process_do_not_hold_the_lock(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    with PythonProcess(PARENT, path, stdin=PIPE, stdout=PIPE) as parent:
        assert parent.stdout.readline() == "ready\n"
        with pytest.raises(StorageError, match=f"is in use by process {parent.pid}"):
            open_sample(path)
        parent.kill()
        parent.wait()
        # The child is still running.
        open_sample(path).close()


MANY_LOGS = """
import resource, sys
from engram import Store, Table
tables = [Table("t", max_size=1_000)]
with Store.open(sys.argv[1], tables) as store:
    for value in range(60):
        store.insert({"x": value}, {"t": 1.0})
        store.checkpoint()
hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
# Standard streams, the directory's lock, a checkpoint, the current log, and some spare ones.
resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard_limit))
with Store.open(sys.argv[1]) as store:
    print(store.info()["t"].size, store.notes)
"""


def test_a_store_with_many_logs_keeps_few_files_open(tmp_path):
    assert run_program(MANY_LOGS, tmp_path / "store") == "60 ()\n"
    assert len(list((tmp_path / "store").glob("log-*"))) > 50


FEW_FILES = """
import os, resource, sys
from pathlib import Path
from engram import Store
from engram.errors import StorageError
from helpers.records import files
path, repair = Path(sys.argv[1]), sys.argv[2] == "repair"
before = files(path)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
for max_more_files in range(12):
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + max_more_files, limits[1]))
    try:
        with Store.open(path, repair=repair) as store:
            print("opened", store.notes)
        break
    except StorageError as error:
        print(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert files(path) == before
"""


@pytest.mark.parametrize("sample", [checkpointed, logged], indirect=True, ids=["checkpointed", "logged"])
@pytest.mark.parametrize("repair", ["", "repair"])
def test_too_few_open_files_are_not_reported_as_damage(sample, tmp_path, repair):
    path = copied(sample.path, tmp_path / "store")
    name = re.escape(str(path))
    error_text = rf"{name}(:|(/LOCK)? cannot be used:).* Too many open files"
    *outputs, last = run_program(FEW_FILES, path, repair).splitlines()
    assert last == "opened ()"
    for output in outputs:
        assert re.fullmatch(error_text, output)
        assert "can be used" not in output
        assert "is not used" not in output
    assert any(re.match(rf"{name}: (checkpoint|log)-\d+ cannot be read: Too many", text) for text in outputs), outputs
    assert state(path) == sample.state


@sample_store(logged)
def test_unfinished_files_are_removed_and_files_with_other_names_are_kept(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
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
    assert state(path).queue == sample.state.queue


# --- files of other versions and stores ----------------------------------------------------------


@pytest.mark.parametrize("name", [FIRST, SECOND])
@sample_store(logged_twice)
def test_a_log_of_a_newer_version_is_rejected(sample, tmp_path, name):
    path = copied(sample.path, tmp_path / "store")
    Head.of(path / name)._replace(version=2).write(path / name)
    expect_open_error(path, f"{path}: {name} has format version 2, but this release reads only version 1")
    Head.of(path / name)._replace(version=1).write(path / name)
    assert state(path) == sample.state


@sample_store(checkpointed)
def test_a_checkpoint_of_a_newer_version_is_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    Head.of(path / NEW)._replace(version=2).write(path / NEW)
    expect_open_error(path, f"{path}: {NEW} has format version 2, but this release reads only version 1")
    Head.of(path / NEW)._replace(version=1).write(path / NEW)
    assert state(path) == sample.state


@sample_store(logged_twice)
def test_a_log_of_another_store_is_rejected(sample, tmp_path):
    path, other = copied(sample.path, tmp_path / "store"), tmp_path / "other"
    logged_twice(other)
    shutil.copy(other / SECOND, path / SECOND)
    expect_open_error(path, f"{path}: {SECOND} belongs to another store{ADVICE}")
    shutil.copy(sample.path / SECOND, path / SECOND)
    assert state(path) == sample.state


@sample_store(checkpointed)
def test_a_checkpoint_of_another_store_is_not_used(sample, tmp_path):
    path, other = copied(sample.path, tmp_path / "store"), tmp_path / "other"
    checkpointed(other)
    shutil.copy(other / NEW, path / NEW)
    table_states, values, notes = state(path)
    assert (table_states, values) == sample.state[:2]
    assert len(notes) == 1
    assert re.fullmatch(rf"{NEW} is not used: it needs log-\d+, which belongs to another store", notes[0])


@sample_store(checkpointed)
def test_a_file_under_another_name_is_not_used(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    third = "checkpoint-0000000003"
    for name in (OLD, FIRST):
        shutil.copy(sample.path / name, path / third)
        expected = (*sample.state[:2], (f"{third} is not used: it is another file, renamed or copied to this name",))
        assert state(path) == expected
    (path / third).unlink()
    last = max(path.glob("log-*"))
    following = f"log-{int(last.name[4:]) + 1:010}"
    shutil.copy(last, path / following)
    reason = f"it needs {following}, which is another file, renamed or copied to this name"
    expect_open_error(path, f"{path}: none of 2 checkpoints can be used: {NEW}: {reason}; {OLD}: {reason}{ADVICE}")


@sample_store(checkpointed)
def test_a_store_without_the_first_log_of_its_newest_checkpoint_is_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    first = next(record for record in records.records(path / NEW) if record.kind == "logs").u64(0)
    (path / f"log-{first:010}").unlink()
    expect_open_error(path, f"{path}: log-{first:010} is missing{ADVICE}")


@sample_store(logged_twice)
def test_a_store_without_a_checkpoint_and_without_its_first_log_is_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    (path / FIRST).unlink()
    last = records.records(path / SECOND)[0].u64(0) - 1
    expect_open_error(path, f"{path}: changes 1 to {last} are missing before {SECOND}{ADVICE}")


# --- valid checksums, invalid content ------------------------------------------------------------


def forge(path, kind, change):
    """Changes the body of the first record of a kind, with valid checksums; returns how the error's text begins."""
    record = next(record for record in records.records(path) if record.kind == kind)
    body = bytearray(record.body)
    change(body)
    records.replace(path, record._replace(body=bytes(body)))
    return f"{path.parent}: {path.name} has a record at byte {record.offset} that cannot be used"


# kind of record, {offset in its body: new byte}, reason
FORGED = {
    "a schema of an undefined layout": (
        "schema",
        {4: 9},
        "layout 9 is not defined; the file defines 1 before this record",
    ),
    "an unknown dtype": ("schema", {12: 99}, "unknown dtype code 99"),
    "a layout with a wrong number": ("layout", {0: 5}, "layout has number 5, expected 0"),
}


@pytest.mark.parametrize(("kind", "change", "reason"), FORGED.values(), ids=FORGED)
@sample_store(logged)
def test_a_record_with_invalid_content_is_rejected(sample, tmp_path, kind, change, reason):
    path = copied(sample.path, tmp_path / "store")
    error_start = forge(
        path / FIRST, kind, lambda body: [body.__setitem__(offset, value) for offset, value in change.items()]
    )
    expect_open_error(path, f"{error_start}: {reason}{ADVICE}")


@sample_store(logged)
def test_a_change_with_a_repeated_number_is_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    record = next(record for record in records.records(path / FIRST) if record.kind == "changes")
    number = record.u64(8)

    def repeat_number(body):
        body[8:16] = (number - 1).to_bytes(8, "little")

    error_start = forge(path / FIRST, "changes", repeat_number)
    reason = f"change {number - 1} follows change {number - 1}; expected change {number}: the log is corrupt"
    expect_open_error(path, f"{error_start}: {reason}{ADVICE}")


# --- other tables --------------------------------------------------------------------------------


def advice_to_drop(table):
    return (
        "give options that fit, or delete this table with all its items from the directory: "
        f'`engram.Store.open(path, drop=["{table}"])`'
    )


@sample_store(checkpointed)
def test_a_signature_that_items_do_not_match_and_a_repeated_table_name_are_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    signature = {"n": engram.ArraySpec((), np.float32), "x": engram.ArraySpec((24,), np.uint8)}
    text = (
        "does not fit the options given for table `queue`: "
        "item does not match the signature of table `queue`: columns `n`, `x` have a time axis, but the "
        "signature has none; begin each shape in the signature with the number of steps, or with None (in a TOML file "
        "`?`) for any number; signature: `n` float32[], `x` uint8[24]; item: `n` uint64[1], `x` uint8[1,24]; "
        + advice_to_drop("queue")
    )
    with pytest.raises(SignatureError, match=rf"\Astored item \d+ {re.escape(text)}\Z"):
        Store.open(path, [Table.queue(QUEUE, max_size=1_000, signature=signature)])
    with raises(InvalidArgumentError, "`tables`: two tables have the name `uniform`; give each table its own name"):
        Store.open(path, [Table("uniform"), Table("uniform")])
    assert state(path)[:2] == sample.state[:2]


@sample_store(checkpointed)
def test_tables_that_are_not_passed_to_open_are_kept(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    with Store.open(path, [Table("other")]) as store:
        assert store.tables == sorted(["other", *(table.name for table in tables())])
        assert all_values(store, QUEUE) == sample.state.queue


@sample_store(checkpointed)
def test_renaming_or_dropping_an_unknown_table_is_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    for argument, value in (("rename", {"q": "r"}), ("drop", ["q"])):
        with pytest.raises(InvalidArgumentError, match=f"^`{argument}`: the directory has no table `q`; its tables: `"):
            Store.open(path, **{argument: value})


@sample_store(checkpointed)
def test_tables_renamed_to_the_same_name_are_rejected(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    first, second, *_ = sorted(table.name for table in tables())
    with raises(InvalidArgumentError, "`rename`: two tables would have the name `new`; give each table its own name"):
        Store.open(path, rename={first: "new", second: "new"})


def test_a_selector_that_stored_priorities_do_not_fit_is_rejected(tmp_path):
    with Store.open(tmp_path, [Table("t")]) as store:
        store.insert({"x": 1}, {"t": -1.0})
    for name, rename in (("t", {}), ("u", {"t": "u"})):
        text = re.escape(
            f"does not fit the options given for table `{name}`: priority for table `{name}` is -1; a Prioritized "
            f"selector needs a finite value that is not negative; {advice_to_drop('t')}"
        )
        with pytest.raises(PriorityError, match=rf"\Astored item \d+ {text}\Z"):
            Store.open(tmp_path, [Table(name, sampler=selectors.Prioritized(1.0))], rename=rename)
    with Store.open(tmp_path, drop=["t"]) as store:
        assert store.tables == []


@sample_store(checkpointed)
def test_a_repair_that_finds_nothing_raises_an_error(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    for name in (OLD, NEW):
        (path / name).write_text("")
    (path / FIRST).unlink()
    advice = "; `engram.Store.open(path, repair=True)` would find nothing to open; replace the directory with a backup"
    with pytest.raises(StorageError, match=f"{re.escape(advice)}$"):
        Store.open(path)
    advice = "; repair found nothing to open; replace the directory with a backup"
    with pytest.raises(StorageError, match=f"{re.escape(advice)}$"):
        Store.open(path, repair=True)


@sample_store(checkpointed)
def test_a_repair_without_checkpoints_restores_everything_from_complete_logs(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    for name in (OLD, NEW):
        (path / name).write_text("")
    with open_sample(path, repair=True):
        pass
    assert state(path) == sample.state


@sample_store(logged_twice)
def test_a_repair_without_the_first_log_reports_that_all_changes_are_lost(sample, tmp_path):
    path = copied(sample.path, tmp_path / "store")
    (path / FIRST).unlink()
    last = records.records(path / SECOND)[0].u64(0) - 1
    missing = f"changes 1 to {last} are missing before {SECOND}"
    with Store.open(path, repair=True) as store:
        assert f"all changes from change 1 onward are lost: {missing}" in store.notes
