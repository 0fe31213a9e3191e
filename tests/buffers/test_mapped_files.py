"""Replay buffers in mapped files: what a file contains after its buffer was closed, dropped, or its process killed."""

import errno
import os
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import records
from buffer_model import all_steps, items_by_key, priorities_by_key, row, stacked
from forks import PROGRAM, needs_fork
from support import raises, run_python

from engram import ArraySpec, Store, Table, selectors
from engram.buffers import MappedFile, ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import ClosedError, InvalidArgumentError, PriorityError, SignatureError, StorageError

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


def test_clear_and_ends_of_episodes_are_kept(tmp_path):
    def opened():
        items = Transitions(n_step=3, discount=1.0)
        return ReplayBuffer(12, items=items, storage=MappedFile(tmp_path / "file"), seed=0)

    step = {"reward": 1.0, "next_obs": 0.0, "terminated": False, "truncated": False}
    buffer = opened()
    for _ in range(5):
        buffer.add(step)
    buffer.clear()
    del buffer
    buffer = opened()
    assert (len(buffer), buffer.num_items) == (0, 0)
    for _ in range(3):
        buffer.add(step)
    buffer.end_episodes()
    assert sorted(items_by_key(buffer)) == [5, 6, 7]
    del buffer
    buffer = opened()
    buffer.add(step)
    assert {key: item["num_steps"] for key, item in items_by_key(buffer).items()} == {5: 3, 6: 2, 7: 1}


def test_priorities_of_items_that_the_end_of_an_episode_completes_are_kept(tmp_path):
    def opened():
        items = Transitions(n_step=3, discount=1.0)
        return ReplayBuffer(12, items=items, sampler=PRIORITIZED, storage=MappedFile(tmp_path / "file"), seed=0)

    buffer = opened()
    for number in range(3):
        buffer.add(row(number))
    buffer.end_episodes()
    buffer.update_priorities([0, 1, 2], [2.0, 3.0, 4.0])
    del buffer
    assert priorities_by_key(opened()) == {0: 2.0, 1: 3.0, 2: 4.0}


def test_priorities_of_steps_that_a_uniform_buffer_removes_are_lost(tmp_path):
    options = {"capacity": 6, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.add_steps({"x": np.arange(6)[None]})
        buffer.update_priorities(np.arange(6), [5.0] * 6)
    with ReplayBuffer(**options) as buffer:
        buffer.clear()
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.add({"x": 6})
        buffer.update_priorities([6], [0.5])
        buffer.add({"x": 7})
        assert priorities_by_key(buffer) == {6: 0.5, 7: 0.5}


def test_priorities_must_be_allowed_with_the_exponent(tmp_path):
    options = {"capacity": 6, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.add_steps({"x": np.arange(3)[None]})
        buffer.update_priorities([1], [1e200])
    text = r"its weight, `priority \*\* 2` .* must be at most 1e290; got inf"
    for _ in range(2):
        with pytest.raises(PriorityError, match=text):
            ReplayBuffer(**options, sampler=selectors.Prioritized(2.0))
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        assert priorities_by_key(buffer) == {0: 1.0, 1: 1e200, 2: 1.0}


def test_items_and_samplers_may_change(tmp_path):
    path = tmp_path / "file"
    options = {"capacity": 12, "num_envs": 2, "storage": MappedFile(path), "seed": 0}
    transitions = {"items": Transitions(n_step=2, discount=1.0), "sampler": PRIORITIZED}
    with ReplayBuffer(**options, **transitions) as buffer:
        for number in range(4):
            buffer.add_batch(stacked([row(number), row(10 + number)]))
        buffer.update_priorities([0, 1], [3.0, 0.0])
        priorities = priorities_by_key(buffer)
        assert priorities == {0: 3.0, 1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}
        items = items_by_key(buffer)
    with ReplayBuffer(**options, **transitions) as buffer:
        assert (priorities_by_key(buffer), items_by_key(buffer)) == (priorities, items)
    # Without priorities, those of the file are lost; new ones begin at 1.
    with ReplayBuffer(**options, items=Steps()) as buffer:
        assert buffer.num_items == 8
        buffer.add_batch(stacked([row(4, truncated=True), row(14)]))
    with ReplayBuffer(**options, **transitions) as buffer:
        assert priorities_by_key(buffer) == dict.fromkeys([*range(8), 8], 1.0)
        assert items_by_key(buffer)[8]["num_steps"] == 1
    with ReplayBuffer(**options, items=Sequences(length=2)) as buffer:
        assert items_by_key(buffer)[8]["action"] == [4, 0]


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
    assert str(caught.value).startswith(f"{path} is already open in this process (since 20")
    assert str(caught.value).endswith(" UTC); close that buffer first")
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
    other_size = "for another size, save the buffer, and restore it into another file"
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
    with raises(InvalidArgumentError, "`storage` must be engram.buffers.MappedFile(...) or None; got 'file' (str)"):
        ReplayBuffer(5, storage="file")
    with raises(InvalidArgumentError, "`path` must be a path, as a str or os.PathLike; got 5 (int)"):
        MappedFile(5)


def limited(path, size):
    """Opens a buffer in a process whose files have at most this size; returns the error."""
    code = f"""
import resource
from engram import ArraySpec
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import StorageError
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    ReplayBuffer(10**5, signature=ArraySpec((10,), "int64"), storage=MappedFile({str(path)!r}))
except StorageError as error:
    print(error)
"""
    return run_python(code).strip()


def test_a_full_disk_is_an_error_before_any_step_is_added(tmp_path):
    path = tmp_path / "file"
    size = 9306112
    assert limited(path, size) == ""
    assert path.stat().st_size == size <= path.stat().st_blocks * 512
    path.unlink()
    reason = f"its {size} bytes cannot be allocated: {os.strerror(errno.EFBIG)}"
    assert limited(path, size - 1) == f"{path} cannot be created: {reason}"
    assert limited(path, 10) == f"{path} cannot be created: {os.strerror(errno.EFBIG)}"
    assert list(tmp_path.iterdir()) == []
    missing = tmp_path / "missing"
    with raises(StorageError, f"{missing / 'file'} cannot be written: {missing}: {os.strerror(errno.ENOENT)}"):
        numbered(missing / "file", 1)


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


# --- flush and close --------------------------------------------------------------------------------------------------


def test_a_closed_buffer_refuses_all_calls(tmp_path):
    for storage in (None, MappedFile(tmp_path / "file")):
        buffer = ReplayBuffer(10, sampler=PRIORITIZED, storage=storage, seed=0)
        buffer.add({"x": 1})
        add, epoch, scan = buffer.add, buffer.epoch(1), buffer.scan(1, steps=True)
        native = buffer._native
        buffer.close()
        buffer.close()
        assert repr(buffer) == "ReplayBuffer(closed, Steps(), Prioritized(exponent=0.5))"
        calls = [
            lambda add=add: add({"x": 1}),
            lambda buffer=buffer: buffer.add_batch({"x": np.zeros(1, np.int64)}),
            lambda buffer=buffer: buffer.add_steps({"x": np.zeros((1, 100_000), np.int64)}),
            lambda buffer=buffer: buffer.sample(1),
            lambda epoch=epoch: next(epoch),
            lambda scan=scan: next(scan),
            lambda buffer=buffer: buffer.epoch(1),
            lambda buffer=buffer: buffer.scan(1),
            lambda native=native: native.sample_sequences(1, 1, 0),
            lambda native=native: native.read_sequences(np.array([0]), np.array([0], np.uint64), 1),
            lambda native=native: native.next_position(0),
            lambda buffer=buffer: buffer.update_priorities([0], [1.0]),
            buffer.end_episodes,
            buffer.clear,
            lambda buffer=buffer: len(buffer),
            lambda buffer=buffer: buffer.num_items,
            lambda buffer=buffer: buffer.save(tmp_path / "save"),
        ]
        if storage is not None:
            calls.append(buffer.flush)
        for call in calls:
            with raises(ClosedError, "the replay buffer is closed"):
                call()


def test_a_closed_buffer_without_columns_refuses_all_calls(tmp_path):
    ReplayBuffer(10, seed=0, signature={"x": ArraySpec((), "int64")}).save(tmp_path / "save")
    with ReplayBuffer(10, sampler=PRIORITIZED, storage=MappedFile(tmp_path / "file")) as buffer:
        pass
    for call in [
        lambda: buffer.add({"x": 1}),
        lambda: buffer.add_batch({"x": np.zeros(1, np.int64)}),
        lambda: buffer.add_steps({"x": np.zeros((1, 3), np.int64)}),
        lambda: buffer.sample(1),
        lambda: buffer.epoch(1),
        lambda: buffer.scan(1),
        lambda: buffer.update_priorities([0], [1.0]),
        buffer.end_episodes,
        buffer.clear,
        lambda: len(buffer),
        lambda: buffer.num_items,
        lambda: buffer.save(tmp_path / "other"),
        lambda: buffer.restore(tmp_path / "save"),
        buffer.flush,
    ]:
        with raises(ClosedError, "the replay buffer is closed"):
            call()
    buffer.close()
    assert repr(buffer) == "ReplayBuffer(closed, Steps(), Prioritized(exponent=0.5))"
    assert [each.name for each in tmp_path.iterdir()] == ["save"]


def test_a_flush_needs_a_file():
    buffer = ReplayBuffer(10)
    for _ in range(2):
        with raises(
            InvalidArgumentError,
            "`flush` needs a buffer in a file; create it with `storage=MappedFile(...)`, or use `save`",
        ):
            buffer.flush()
        buffer.add({"x": 1})


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
