"""Replay buffers in mapped files: what a file contains after its buffer was closed, dropped, or its process killed."""

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import records
from helpers.buffer_model import all_steps, items_by_key, priorities_by_key, row, stacked
from helpers.forks import PROGRAM, needs_fork
from helpers.support import raises, run_python

from engram import ArraySpec, Store, Table, selectors
from engram.buffers import MappedFile, ReplayBuffer, Sequences, Transitions
from engram.errors import InvalidArgumentError, PriorityError, SignatureError, StorageError

PRIORITIZED = selectors.Prioritized(0.5)


def numbered(path, num_steps=0, capacity=20, num_envs=2, **options):
    """A buffer in a file, with new steps that are numbered."""
    buffer = ReplayBuffer(capacity, num_envs, storage=MappedFile(path), seed=0, **options)
    first = len(buffer) // num_envs
    if num_steps:
        numbers = np.arange(first, first + num_steps)
        buffer.add_steps({"x": np.stack([numbers + 1000 * env for env in range(num_envs)])})
    return buffer


# --- what a file contains ---------------------------------------------------------------------------------------------


def test_a_closed_buffer_continues_as_if_it_had_not_been_interrupted(tmp_path):
    options = {"items": Sequences(length=3, burn_in=1), "sampler": PRIORITIZED, "seed": 0}
    rng = np.random.default_rng(0)
    in_memory = ReplayBuffer(60, 3, **options)
    number = 0
    for _ in range(6):
        with ReplayBuffer(60, 3, storage=MappedFile(tmp_path / "file"), **options) as mapped:
            for _ in range(4):
                ends = rng.random((3, 5)) < 0.1
                steps = stacked(
                    [stacked([row(number + i, truncated=end) for i, end in enumerate(env)]) for env in ends]
                )
                number += 15
                for buffer in (in_memory, mapped):
                    buffer.add_steps(steps)
                    buffer.end_episodes(env_ids=[1])
                    one = buffer.sample(20)
                    buffer.update_priorities(one.info.key, np.linspace(0, 2, 20))
            for _ in range(2):
                one, other = in_memory.sample(20), mapped.sample(20)
                np.testing.assert_array_equal(one.info.key, other.info.key)
                np.testing.assert_array_equal(one.info.probability, other.info.probability)
                for name, column in one.data.items():
                    np.testing.assert_array_equal(column, other.data[name], err_msg=name)
            assert items_by_key(mapped) == items_by_key(in_memory)
            assert priorities_by_key(mapped) == priorities_by_key(in_memory)


def test_a_buffer_that_was_not_closed_keeps_its_steps(tmp_path):
    path = tmp_path / "file"
    for num_steps in (3, 4, 3, 0):
        buffer = numbered(path, num_steps)
        del buffer
    buffer = numbered(path)
    assert len(buffer) == 20
    assert {key: item["x"] for key, item in items_by_key(buffer).items()} == {
        2 * position + env: 1000 * env + position for env in range(2) for position in range(10)
    }
    assert (path.stat().st_mode & 0o777, [each.name for each in tmp_path.iterdir()]) == (0o600, ["file"])


def test_a_file_is_created_when_the_columns_are_known(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with ReplayBuffer(10, storage=MappedFile(path)) as buffer:
        buffer.flush()
        for step in ({"x": "text"}, {"x": None}):
            with pytest.raises(SignatureError):
                buffer.add(step)
        with pytest.raises(InvalidArgumentError):
            buffer.add({"x": 1}, env_id=1)
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    buffer = ReplayBuffer(10, storage=MappedFile("file"))
    monkeypatch.chdir("/")
    buffer.add({"x": 1})
    assert path.stat().st_size > 0
    buffer.close()
    spec = {"x": ArraySpec((), "int64")}
    ReplayBuffer(10, storage=MappedFile(tmp_path / "other"), signature=spec)
    assert (tmp_path / "other").exists()
    assert len(ReplayBuffer(10, storage=MappedFile(tmp_path / "other"))) == 0


def test_a_buffer_that_cannot_be_created_leaves_no_file(tmp_path):
    options = {"capacity": 10, "items": Transitions(discount=1.0), "storage": MappedFile(tmp_path / "file")}
    text = "column `reward` must be one float32, float64 or integer per step; got float64[2]"
    with raises(SignatureError, text):
        ReplayBuffer(**options, signature=row(0) | {"reward": np.zeros(2)})
    buffer = ReplayBuffer(**options)
    with raises(SignatureError, text):
        buffer.add(row(0) | {"reward": np.zeros(2)})
    assert list(tmp_path.iterdir()) == []
    buffer.add(row(0))
    buffer.close()
    # The file of an earlier buffer stays.
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.end_episodes()
        buffer.update_priorities([0], [1e200])
    with pytest.raises(PriorityError):
        ReplayBuffer(**options, sampler=selectors.Prioritized(2.0))
    assert len(ReplayBuffer(**options)) == 1


def test_an_invalid_first_step_does_not_remove_the_file_of_another_buffer(tmp_path):
    path = tmp_path / "file"
    buffer = ReplayBuffer(20, 2, storage=MappedFile(path))
    numbered(path, 3).close()  # in another process, for example
    for _ in range(2):
        with raises(InvalidArgumentError, "`env_id` must be from 0 to 1; got 5"):
            buffer.add({"x": 1}, env_id=5)
    buffer.add({"x": 1}, env_id=1)
    assert len(buffer) == 7


def test_saves_are_restored_into_files(tmp_path):
    in_memory = ReplayBuffer(30, 2, sampler=PRIORITIZED, seed=1)
    in_memory.add_steps({"x": np.arange(40).reshape(2, 20)})
    in_memory.update_priorities([22, 23], [5.0, 6.0])
    in_memory.save(tmp_path / "save")
    options = {"capacity": 20, "num_envs": 2, "sampler": PRIORITIZED, "storage": MappedFile(tmp_path / "file")}
    wrong = ReplayBuffer(20, 5, storage=MappedFile(tmp_path / "wrong"))
    with pytest.raises(InvalidArgumentError):
        wrong.restore(tmp_path / "save")
    assert not (tmp_path / "wrong").exists()
    buffer = ReplayBuffer(**options)
    buffer.restore(tmp_path / "save")
    expected = items_by_key(buffer)
    assert sorted(expected) == list(range(20, 40))
    del buffer
    buffer = ReplayBuffer(**options)
    assert items_by_key(buffer) == expected
    assert priorities_by_key(buffer) == dict.fromkeys(range(20, 40), 1.0) | {22: 5.0, 23: 6.0}
    buffer.add_batch({"x": np.array([7, 8])})
    steps = all_steps(buffer)
    assert len(steps) == 20
    assert {place[1] for place in steps} == set(range(11, 21))


def test_states_that_were_not_published_completely_do_not_count(tmp_path):
    """A process was killed while it published a restored state: the last flush counts, without overwritten steps."""
    path, is_changing = tmp_path / "file", 65536 * 3
    buffer = numbered(path, 10)
    buffer.flush()
    buffer.add_steps({"x": np.arange(10, 13)[None]}, env_ids=[0])
    del buffer
    records.overwrite(path, is_changing, b"\x01")
    buffer = numbered(path)
    x = {key: item["x"] for key, item in items_by_key(buffer).items()}
    assert x == {2 * n: n for n in range(5, 10)} | {2 * n + 1: 1000 + n for n in range(10)}
    buffer.add({"x": 10}, env_id=0)
    del buffer
    buffer = numbered(path)
    assert {key: item["x"] for key, item in items_by_key(buffer).items()} == x | {20: 10}


def test_a_flush_continues_while_other_threads_use_the_buffer(tmp_path):
    with ReplayBuffer(200, 2, storage=MappedFile(tmp_path / "file"), seed=0) as buffer:
        stop, failures = threading.Event(), []

        def use():
            number = 0
            while not stop.is_set():
                number += 1
                buffer.add_batch({"x": np.full((2, 10_000), number)})
                x = buffer.sample(4).data["x"]
                if not (x == x[:, :1]).all():
                    failures.append(x)

        thread = threading.Thread(target=use)
        thread.start()
        try:
            for _ in range(5):
                buffer.flush()
        finally:
            stop.set()
            thread.join()
        assert not failures


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_file_has_one_buffer_at_a_time(tmp_path):
    path = tmp_path / "file"
    buffer = numbered(path, 3)
    with pytest.raises(StorageError) as caught:
        numbered(path)
    assert str(caught.value).startswith(f"{path} is in use by this process (since 20")
    assert str(caught.value).endswith(
        " UTC), according to the file: close that buffer first; if this process does not have it open, a process in "
        "another container does: close the buffer there first"
    )
    code = f"""
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import StorageError
try:
    ReplayBuffer(20, 2, storage=MappedFile({str(path)!r}))
except StorageError as error:
    print(error)
"""
    [text] = run_python(code).splitlines()
    assert text.startswith(f"{path} is in use by process {os.getpid()} since 20")
    assert text.endswith(" UTC; only one process at a time can use it: close the buffer there first")
    buffer.close()
    assert run_python(code) == ""
    assert len(numbered(path)) == 6


@needs_fork
def test_a_forked_child_neither_uses_nor_keeps_the_file(tmp_path):
    code = f"""
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import StorageError
storage = MappedFile({str(tmp_path / "file")!r})
buffer = ReplayBuffer(20, storage=storage)
buffer.add({{"x": 1}})
start, started = os.pipe()
stop, stopped = os.pipe()

def work():
    expect_forked_error("replay buffer", lambda: buffer.add({{"x": 1}}))
    expect_forked_error("replay buffer", buffer.flush)
    expect_forked_error("replay buffer", buffer.close)
    buffer.__exit__(None, None, None)  # the end of a `with` block, which the child leaves to the parent
    try:
        ReplayBuffer(20, storage=storage)
    except StorageError:
        os.write(started, b"x")
    os.read(stop, 1)  # the parent closes and opens the buffer meanwhile

child = fork(work)
assert os.read(start, 1) == b"x"
del buffer
buffer = ReplayBuffer(20, storage=storage)
assert len(buffer) == 1
buffer.close()
os.write(stopped, b"x")
assert os.waitpid(child, 0)[1] == 0
print("done")
"""
    assert run_python(PROGRAM + code).endswith("done\n")


@needs_fork
def test_the_end_of_a_with_block_in_a_forked_child_does_not_wait_for_threads_of_the_parent(tmp_path):
    code = f"""
from engram.buffers import MappedFile, ReplayBuffer
with ReplayBuffer(20, storage=MappedFile({str(tmp_path / "file")!r})) as buffer:
    buffer.add({{"x": 1}})
    held, release = threading.Event(), threading.Event()

    def hold():  # as `restore` does in another thread
        with buffer._first_add_lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = fork(lambda: buffer.__exit__(None, None, None))
    assert os.waitpid(child, 0)[1] == 0
    release.set()
    thread.join()
    assert len(buffer) == 1
print("done")
"""
    assert run_python(PROGRAM + code).endswith("done\n")


@needs_fork
def test_a_forked_child_of_a_killed_process_does_not_keep_the_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    code = f"""
from engram.buffers import MappedFile, ReplayBuffer
buffer = ReplayBuffer(20, storage=MappedFile({str(tmp_path / "file")!r}))
buffer.add({{"x": 1}})
start, started = os.pipe()

def work():
    os.write(started, b"x")
    print(open({str(tmp_path / "fifo")!r}).read(), flush=True)

fork(work)
os.read(start, 1)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", PROGRAM + code], stdout=subprocess.PIPE, text=True) as process:
        assert process.wait() == -signal.SIGKILL
        try:
            buffer = ReplayBuffer(20, storage=MappedFile(tmp_path / "file"))
        finally:
            (tmp_path / "fifo").write_text("the child has ended")
        assert process.stdout.read() == "the child has ended\n"
    assert len(buffer) == 1


def test_the_buffer_must_be_that_of_the_file(tmp_path):
    path = tmp_path / "file"
    numbered(path, 3).close()
    before = path.read_bytes()
    other_size = "for another `capacity`, save the buffer and restore it into another file; `num_envs` cannot change"
    for capacity, num_envs, got in [
        (22, 2, "2 environments with 11 steps each"),
        (20, 4, "4 environments with 5 steps each"),
        (20, 1, "20 steps"),
    ]:
        with raises(
            InvalidArgumentError,
            f"{path}: the file has a capacity of 2 environments with 10 steps each, and this buffer a capacity of "
            f"{got}; {other_size}",
        ):
            numbered(path, capacity=capacity, num_envs=num_envs)
    with raises(
        SignatureError,
        f"{path}: its steps differ from those of this buffer: the file has `x` int64[]; this buffer has `x` int32[]",
    ):
        numbered(path, signature={"x": ArraySpec((), "int32")})
    with raises(
        SignatureError,
        "items=Sequences(...) needs steps with `terminated`, `truncated`; `terminated`, `truncated` missing; got `x`",
    ):
        numbered(path, items=Sequences(length=2))
    assert path.read_bytes() == before
    with raises(InvalidArgumentError, "`path` must be a path, as a str or os.PathLike; got 5 (int)"):
        MappedFile(5)


LIMITED = """
import resource
from pathlib import Path
from engram import ArraySpec
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import StorageError

def limited(size):
    # Opens a buffer while files have at most this size; prints the error, or the size and the space of the file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        ReplayBuffer(10**5, signature=ArraySpec((10,), "int64"), storage=MappedFile(path))
    except StorageError as error:
        print(error)
    else:
        print(path.stat().st_size, path.stat().st_blocks * 512 >= path.stat().st_size)
        path.unlink()
"""


def test_a_full_disk_is_an_error_before_any_step_is_added(tmp_path):
    path = tmp_path / "file"
    size = 9306112
    code = f"path = Path({str(path)!r})\nfor size in ({size}, {size - 1}, 10):\n    limited(size)"
    assert run_python(f"{LIMITED}\n{code}").splitlines() == [
        f"{size} True",
        f"{path} cannot be created: its {size} bytes cannot be allocated: {os.strerror(errno.EFBIG)}",
        f"{path} cannot be created: {os.strerror(errno.EFBIG)}",
    ]
    assert list(tmp_path.iterdir()) == []
    missing = tmp_path / "missing"
    with raises(StorageError, f"{missing / 'file'} cannot be written: {missing}: {os.strerror(errno.ENOENT)}"):
        numbered(missing / "file", 1)


def test_a_copy_without_disk_space_for_zeros_gets_it_when_it_is_opened(tmp_path):
    path, copy = tmp_path / "file", tmp_path / "copy"
    with ReplayBuffer(1000, storage=MappedFile(path)) as buffer:
        buffer.add({"x": np.arange(1000)})
    with path.open("rb") as source, copy.open("wb") as target:
        target.truncate(path.stat().st_size)
        for offset in range(0, path.stat().st_size, 65536):
            part = source.read(65536)
            if any(part):
                target.seek(offset)
                target.write(part)
    size = copy.stat().st_size
    assert copy.stat().st_blocks * 512 < size
    with ReplayBuffer(1000, storage=MappedFile(copy)) as buffer:
        assert copy.stat().st_blocks * 512 >= size
        assert len(buffer) == 1


def test_a_new_file_is_removed_if_its_creation_is_interrupted(tmp_path):
    def interrupt(*_):
        if list(tmp_path.iterdir()):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signature = {"x": ArraySpec((250,), np.float32)}
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        with pytest.raises(KeyboardInterrupt):
            for capacity in (50_000, 100_000, 200_000):  # a small file may be complete before the next signal
                ReplayBuffer(capacity, storage=MappedFile(tmp_path / "file"), signature=signature).close()
                (tmp_path / "file").unlink()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_the_directory_can_be_interrupted(tmp_path):
    """A buffer is being saved to the directory where the file is to be created."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    buffer = ReplayBuffer(10, storage=MappedFile(tmp_path / "file"))

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            buffer.add({"x": 1})
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert list(tmp_path.iterdir()) == []
    os.close(handle)
    buffer.add({"x": 1})
    assert len(buffer) == 1


def test_files_that_are_not_those_of_a_mapped_buffer(tmp_path):
    def error_of(path):
        with pytest.raises(StorageError) as caught:
            numbered(path)
        return str(caught.value).removeprefix(f"{path} ")

    assert error_of(tmp_path) == f"cannot be opened: {os.strerror(errno.EISDIR)}"
    path = tmp_path / "file"
    path.write_text("text " * 100)
    assert error_of(path) == "cannot be used: it is not an Engram file, or its first 8 bytes are damaged"
    assert path.read_text() == "text " * 100
    ReplayBuffer(5, signature=np.zeros(3)).save(path)
    assert error_of(path) == "is a saved replay buffer, not the file of a mapped replay buffer"
    with Store.open(tmp_path / "store", [Table("t")]):
        pass
    kind = "is a log of a store, not the file of a mapped replay buffer"
    assert error_of(tmp_path / "store" / "log-0000000001") == kind
    path.unlink()
    numbered(path, 3).close()
    with raises(StorageError, f"{path} is the file of a mapped replay buffer, not a saved replay buffer"):
        ReplayBuffer(20, 2).restore(path)


def test_damaged_files_are_rejected(tmp_path):
    path = tmp_path / "file"
    numbered(path, 3).close()
    whole = path.read_bytes()

    def error_of(data):
        path.write_bytes(data)
        with pytest.raises(StorageError) as caught:
            numbered(path)
        return str(caught.value).removeprefix(f"{path} cannot be used: ")

    assert error_of(whole[:-1]) == f"it has {len(whole) - 1} bytes, expected {len(whole)}"
    assert error_of(whole + b"x") == f"it has {len(whole) + 1} bytes, expected {len(whole)}"
    offsets, record = [*range(48)], 48
    while whole[record + 4]:  # each record of the columns and of the size
        [size] = struct.unpack_from("<Q", whole, record + 8)
        offsets += range(record, record + 24 + size)
        record += 24 + size + -size % 8
    assert len(offsets) > 150
    for offset in offsets:
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        assert "damaged" in error_of(damaged), offset
    slots = 65536
    for slot in (slots, slots * 2):
        damaged = bytearray(whole)
        damaged[slot + 40] ^= 1
        path.write_bytes(damaged)
        numbered(path).close()  # the other slot is valid
    damaged = bytearray(whole)
    damaged[slots + 40] ^= 1
    damaged[slots * 2 + 40] ^= 1
    assert error_of(damaged) == "both of its `flushed` records are damaged: its checksum is wrong"


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ((0, 11, 0), "an environment has the steps from 0 to 11 in 10 slots"),
        ((2**62, 2**62, 0), f"an environment has the steps from {2**62} to {2**62} in 10 slots"),
    ],
)
def test_impossible_states_are_rejected(tmp_path, numbers, reason):
    """The live state has no checksum: its numbers change one by one."""
    path = tmp_path / "file"
    buffer = numbered(path, 3)
    del buffer
    live = 65536 * 3 + 64
    records.overwrite(path, live, np.array(numbers, "<u8").tobytes())
    with raises(StorageError, f"{path} cannot be used: {reason}"):
        numbered(path)


@pytest.mark.slow
def test_a_file_may_be_larger_than_the_memory_of_the_process(tmp_path):
    """The steps in the file are not data of the process, which has a limit."""
    code = f"""
import resource
import numpy as np
from engram.buffers import MappedFile, ReplayBuffer
with ReplayBuffer(1000, storage=MappedFile({str(tmp_path / "file")!r}), seed=0) as buffer:
    buffer.add({{"x": np.zeros(1 << 16, np.int32)}})
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), used + (64 << 20)))
    try:
        np.zeros(100 << 20, np.uint8)
    except MemoryError:
        print("limited")
    for number in range(1, 1200):
        buffer.add({{"x": np.full(1 << 16, number, np.int32)}})
    batch = buffer.sample(50)
    assert (batch.data["x"] == batch.info.position[:, None]).all()
print("done")
"""
    assert run_python(code) == "limited\ndone\n"
    assert (tmp_path / "file").stat().st_size > 250 << 20
