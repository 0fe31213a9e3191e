"""`flush` and `close` of a replay buffer: their errors, and calls after them."""

import errno
import os
import platform

import numpy as np
import pytest
from helpers.support import raises, run_python

from engram import ArraySpec, selectors
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import ClosedError, InvalidArgumentError

PRIORITIZED = selectors.Prioritized(0.5)


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


MSYNC = {"x86_64": (0xC000003E, 26), "aarch64": (0xC00000B7, 227)}.get(platform.machine())
"""The architecture and the number of the system call, as the system's filters know them."""


@pytest.mark.skipif(MSYNC is None, reason="the number of the system call is unknown")
def test_no_flush_succeeds_after_one_has_failed_to_write_its_record(tmp_path):
    """The system may have lost bytes, and reports that only once. Here `msync` fails, in one thread only."""
    code = f"""
import ctypes, errno, struct, threading
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import StorageError

def fail_msync():
    load, equal, answer = 0x20, 0x15, 0x06
    program = b"".join(struct.pack("<HBBI", *each) for each in [
        (load, 0, 0, 4), (equal, 0, 3, {MSYNC[0]}),
        (load, 0, 0, 0), (equal, 0, 1, {MSYNC[1]}),
        (answer, 0, 0, 0x00050000 | errno.EIO), (answer, 0, 0, 0x7FFF0000)])
    filter = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(filter)))
    prctl = ctypes.CDLL(None).prctl
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, header, 0, 0):
        print("no filters")

def flush():
    try:
        buffer.flush()
        print("flushed")
    except StorageError as error:
        print(error)

buffer = ReplayBuffer(20, storage=MappedFile({str(tmp_path / "file")!r}))
buffer.add({{"x": 1}})
flush()
thread = threading.Thread(target=lambda: (fail_msync(), flush()))
thread.start()
thread.join()
flush()
"""
    lines = run_python(code).splitlines()
    if "no filters" in lines:
        pytest.skip("the system does not allow filters of system calls")
    failed = f"{tmp_path / 'file'} cannot be written: {os.strerror(errno.EIO)}"
    assert lines == ["flushed", failed, failed]


def test_a_flush_needs_a_file():
    buffer = ReplayBuffer(10)
    for _ in range(2):
        with raises(
            InvalidArgumentError,
            "`flush` needs a buffer in a file; create it with `storage=MappedFile(...)`, or use `save`",
        ):
            buffer.flush()
        buffer.add({"x": 1})
