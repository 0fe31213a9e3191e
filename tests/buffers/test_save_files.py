"""Files of saved replay buffers: how they replace earlier ones, and which files are rejected."""

import errno
import fcntl
import os
import resource
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import records
from helpers.records import Head, each_damage, flip
from helpers.support import raises, run_python, runs_all_tests, wait_until

from engram import Store, Table, selectors
from engram.buffers import ReplayBuffer
from engram.errors import InvalidArgumentError, PriorityError, StorageError, UnsatisfiableError

MISSING = os.strerror(errno.ENOENT)


def saved(path, num_steps=10):
    buffer = ReplayBuffer(20, sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_steps({"x": np.arange(num_steps)[None]})
    buffer.save(path)
    return buffer


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def numbers(path):
    """The steps of a save."""
    buffer = ReplayBuffer(100, seed=0)
    buffer.restore(path)
    return sorted(buffer.epoch(200).__next__().data["x"].tolist())


def test_a_save_replaces_an_earlier_one(tmp_path, monkeypatch):
    for num_steps in (10, 20, 5):
        saved(tmp_path / "save", num_steps)
        assert numbers(tmp_path / "save") == list(range(num_steps))
    assert names_in(tmp_path) == ["save"]
    assert (tmp_path / "save").stat().st_mode & 0o777 == 0o600
    monkeypatch.chdir(tmp_path)
    saved("save", 3)
    assert numbers(tmp_path / "save") == [0, 1, 2]


def test_a_save_replaces_the_file_that_a_link_leads_to(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "latest").symlink_to("folder/save")
    for num_steps in (10, 20):  # at first, there is no file
        saved(tmp_path / "latest", num_steps)
        assert (tmp_path / "latest").is_symlink()
        assert numbers(tmp_path / "folder" / "save") == list(range(num_steps))
    assert names_in(tmp_path / "folder") == ["save"]


def test_a_save_that_fails_leaves_the_earlier_one(tmp_path):
    saved(tmp_path / "save", 7)
    before = (tmp_path / "save").read_bytes()
    (tmp_path / "save.0123456789abcdef.tmp").write_text("left by a crash")
    buffer = ReplayBuffer(5000, seed=0)
    buffer.add_steps({"x": np.zeros((1, 5000))})
    old, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with raises(StorageError, f"{tmp_path / 'save'} cannot be written: File too large"):
            buffer.save(tmp_path / "save")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (old, hard))
    assert names_in(tmp_path) == ["save"]
    assert (tmp_path / "save").read_bytes() == before
    assert len(buffer.sample(3)) == 3


def test_paths_that_cannot_be_written(tmp_path):
    buffer = ReplayBuffer(5, seed=0)
    with raises(
        UnsatisfiableError,
        "the replay buffer has no columns to save yet; add a step first, or create it with `signature`",
    ):
        buffer.save(tmp_path / "save")
    buffer.add({"x": 1})
    missing = tmp_path / "missing"
    for path, reason in [
        (tmp_path, "it is a directory; give the path of a file"),
        (missing / "save", f"{missing}: {MISSING}"),
    ]:
        with raises(StorageError, f"{path} cannot be written: {reason}"):
            buffer.save(path)
    with raises(StorageError, "\ufffd cannot be written: its name is not valid UTF-8"):
        buffer.save(os.fsdecode(b"\xff"))
    with raises(InvalidArgumentError, "`path` must be a path, as a str or os.PathLike; got 1 (int)"):
        buffer.save(1)
    with raises(InvalidArgumentError, "`path` must not be empty; give the path of a file"):
        buffer.save("")
    assert names_in(tmp_path) == []


def test_saves_to_one_directory_wait_for_each_other_and_can_be_interrupted(tmp_path):
    """Another process writes to the directory: adding and sampling continue, and Ctrl-C ends the wait."""
    saved(tmp_path / "save", 4)
    buffer = ReplayBuffer(50, seed=0)
    buffer.add({"x": 0})
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)

    def interrupt(*_):
        for number in range(1, 4):
            buffer.add({"x": number})
        assert len(buffer.sample(2)) == 2
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            buffer.save(tmp_path / "save")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert numbers(tmp_path / "save") == [0, 1, 2, 3]
    waiting = threading.Thread(target=buffer.save, args=(tmp_path / "save",))
    waiting.start()
    buffer.add({"x": 4})
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
    waiting.join()
    assert numbers(tmp_path / "save") == [0, 1, 2, 3, 4]


SAVE_FOREVER = """
import sys
import numpy as np
from engram.buffers import ReplayBuffer

buffer = ReplayBuffer(3000, seed=0)
buffer.add_steps({"x": np.zeros((1, 3000, 100), np.int32)})
for number in range(1, 10**9):
    buffer.save(sys.argv[1])
    print(number, flush=True)
    buffer.add_steps({"x": np.full((1, 3000, 100), number, np.int32)})
"""


def test_a_killed_save_leaves_a_whole_file(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(5 if runs_all_tests() else 2):
        command = [sys.executable, "-c", SAVE_FOREVER, tmp_path / "save"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            threading.Event().wait(rng.uniform(0, 0.1))
            process.kill()
            done = [1, *map(int, process.stdout.read().split())][-1]
        buffer = ReplayBuffer(3000, seed=0)
        buffer.restore(tmp_path / "save")
        [batch] = buffer.epoch(3000)
        [number] = set(batch.data["x"].ravel().tolist())
        assert number in (done - 1, done)  # the last save may be complete although its number was not printed
    saved(tmp_path / "save")
    assert names_in(tmp_path) == ["save"]


def test_other_threads_use_the_buffer_meanwhile(tmp_path):
    """Each save has complete steps only: their elements are all equal."""
    buffer = ReplayBuffer(64, 2, sampler=selectors.Prioritized(0.5), seed=0)
    buffer.add_batch({"x": np.zeros((2, 5_000))})
    stop = threading.Event()

    def use():
        number = 0
        while not stop.is_set():
            number += 1
            buffer.add_batch({"x": np.full((2, 5_000), number)})
            batch = buffer.sample(4)
            buffer.update_priorities(batch.info.key, [1.0, 2.0, 3.0, 4.0])

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for _ in range(10):
            before = len(buffer)
            buffer.save(tmp_path / "save")
            other = ReplayBuffer(64, 2, sampler=selectors.Prioritized(0.5), seed=0)
            other.restore(tmp_path / "save")
            assert len(other) >= before
            x = other.sample(64).data["x"]
            assert (x == x[:, :1]).all()
            wait_until(lambda before=before: len(buffer) > before or len(buffer) == 64)
    finally:
        stop.set()
        thread.join()


def error_of(path, num_envs=1):
    """The error of restoring a file, without its path."""
    buffer = ReplayBuffer(20, num_envs, sampler=selectors.Prioritized(1.0), seed=0)
    with pytest.raises(StorageError) as caught:
        buffer.restore(path)
    assert len(buffer) == buffer.num_items == 0
    text = str(caught.value)
    assert text.startswith(f"{path} ")
    return text.removeprefix(f"{path} ")


def test_files_that_are_no_saves(tmp_path):
    path = tmp_path / "file"
    assert error_of(path) == f"cannot be read: {MISSING}"
    assert error_of(tmp_path) == "is not a file; a saved replay buffer is a file"
    path.write_bytes(b"")
    assert error_of(path) == "cannot be used: it has 0 bytes, fewer than a file header (48 bytes)"
    path.write_text("text " * 100)
    assert error_of(path) == "cannot be used: it is not an Engram file, or its first 8 bytes are damaged"
    with Store.open(tmp_path / "store", [Table("t")]) as store:
        store.checkpoint()
    for file, kind in [("log-0000000001", "a log"), ("checkpoint-0000000001", "a checkpoint")]:
        assert error_of(tmp_path / "store" / file) == f"is {kind} of a store, not a saved replay buffer"
    assert error_of(tmp_path / "store" / "CLOSED") == "is the mark of a closed store, not a saved replay buffer"
    saved(path)
    head = Head.of(path)
    head._replace(version=2).write(path)
    assert error_of(path) == "has format version 2, but this release reads only version 1"
    head._replace(kind=9).write(path)
    assert error_of(path) == "cannot be used: it has the unknown file kind 9, expected 1 to 5"
    head.write(path)
    flip(path, 20)
    assert error_of(path) == "cannot be used: its file header (the first 48 bytes) is damaged"


def big_save(path):
    """A save with several records of steps."""
    buffer = ReplayBuffer(8, 2, sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_steps({"x": np.zeros((2, 5, 20_000))})
    buffer.save(path)


@pytest.mark.parametrize("kind", ["layout", "schema", "buffer", "environments", "steps", "end"])
def test_damaged_records_are_rejected(tmp_path, kind):
    path = tmp_path / "save"
    big_save(path)
    whole = path.read_bytes()
    all_records = records.records(path)
    of_kind = [record for record in all_records if record.kind == kind]
    assert len(of_kind) == (8 if kind == "steps" else 1)
    for record in {0: of_kind[0], 1: of_kind[-1]}.values():
        for damage, reason in each_damage(record):
            path.write_bytes(whole)
            damage(path)
            assert error_of(path, 2) == f"cannot be used: it is damaged at byte {record.offset}: {reason}"
        path.write_bytes(whole[: record.offset])
        assert error_of(path, 2) == "cannot be used: it is incomplete"
    path.write_bytes(whole + bytes(8))
    assert error_of(path, 2) == "cannot be used: it has bytes after its last record"


def forged(path, kind, index, offset, data):
    """Overwrites part of the body of a record, with a valid checksum; returns the offset of the record."""
    record = [each for each in records.records(path) if each.kind == kind][index]
    body = record.body[:offset] + data + record.body[offset + len(data) :]
    records.replace(path, record._replace(body=body))
    return record.offset


FORGERIES = [
    ("steps", 0, 0, struct.pack("<Q", 2), "environment 2 is unknown"),
    (
        "steps",
        1,
        8,
        struct.pack("<Q", 4),
        "1 step from position 4 on was not expected: those of environment 0 from 2 to 5 are missing",
    ),
    ("steps", 1, 16, struct.pack("<I", 2), "the data of 2 steps: 159992 bytes, expected 320000"),
    ("steps", 0, 16, struct.pack("<I", 2**31), "expected 17179869184 more bytes, found 160008"),
    ("steps", 0, 20, struct.pack("<d", -1.0), None),
    ("environments", 0, 4, struct.pack("<QQ", 3, 4), "an environment has 3 steps, of which 4 are stored"),
    (
        "environments",
        0,
        4,
        struct.pack("<QQ", 2**62, 4),
        f"an environment has {2**62} steps, of which 4 are stored",
    ),
    ("buffer", 0, 0, struct.pack("<I", 1), "schema 1 is not defined; the file defines 1 before this record"),
]


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_records_are_rejected(tmp_path, forgery):
    path, (kind, *place, reason) = tmp_path / "save", forgery
    big_save(path)
    at = forged(path, kind, *place)
    if reason is None:
        buffer = ReplayBuffer(8, 2, sampler=selectors.Prioritized(1.0), seed=0)
        with raises(
            PriorityError,
            "priority for the replay buffer is -1; a Prioritized selector needs a finite value that is not negative",
        ):
            buffer.restore(path)
        assert len(buffer) == 0
    elif kind == "environments":
        assert error_of(path, 2) == f"cannot be used: {reason}"
    else:
        assert error_of(path, 2) == f"cannot be used: it has a record at byte {at} that cannot be used: {reason}"


def test_missing_steps_and_records_are_noticed(tmp_path):
    path = tmp_path / "save"
    big_save(path)
    last = records.records(path)[-1]
    forged(path, "environments", 0, 4, struct.pack("<QQ", 6, 5))
    assert error_of(path, 2) == "cannot be used: the steps of environment 0 from position 5 on are missing"
    forged(path, "environments", 0, 4, struct.pack("<QQ", 5, 4))
    records.replace(path, last._replace(body=struct.pack("<IQ", 0, 3)))
    assert error_of(path, 2) == "cannot be used: some of its records are missing"


def test_a_child_cannot_save_the_buffer_of_its_parent(tmp_path):
    code = f"""
from helpers.forks import PROGRAM
exec(PROGRAM + '''
from engram.buffers import ReplayBuffer
buffer = ReplayBuffer(10, signature=np.zeros(3), seed=0)
path = {str(tmp_path / "save")!r}
buffer.save(path)

def work():
    expect_forked_error("replay buffer", lambda: buffer.save(path))
    expect_forked_error("replay buffer", lambda: buffer.restore(path))

in_child(work)
''')
"""
    run_python(code)
