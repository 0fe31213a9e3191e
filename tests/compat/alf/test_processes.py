"""Buffers that forked processes and threads share, and calls that wait."""

import os
import threading
import time

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import fill, ints, replay_buffer, steps
from helpers.forks import needs_fork
from helpers.support import BackgroundCall, raises, run_python, wait_until

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

HEAD = """
import os, signal, sys, time
from collections import Counter
import torch
from helpers.alf_buffers import fill, ints, replay_buffer, steps
from engram.compat.alf import RingBuffer, TensorSpec

torch.set_num_threads(1)

def fork(work):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child

def join(child):
    assert os.waitpid(child, 0)[1] == 0

def ring(max_length=2):
    return RingBuffer(TensorSpec((), "int64"), 2, max_length, allow_multiprocess=True)
"""


def run(code):
    return run_python(f"{HEAD}\n{code}")


def shared_ring(max_length=2):
    """A ring of single numbers of two environments."""
    alf = alf_buffers.alf
    return alf.RingBuffer(alf.TensorSpec((), "int64"), 2, max_length, allow_multiprocess=True)


# --- waiting --------------------------------------------------------------------------------------


@pytest.fixture
def only_signals(monkeypatch):
    """Waiting calls continue only if they are signalled."""
    from engram.compat.alf.utils import _ring_buffer  # noqa: PLC0415, it needs PyTorch

    monkeypatch.setattr(_ring_buffer, "_POLL_INTERVAL", 60.0)


@pytest.mark.usefixtures("only_signals")
def test_enqueue_waits_for_space_in_all_environments():
    ring = shared_ring()
    ring.enqueue(ints([1, 2]))
    ring.enqueue(ints([3]), ints([1]))
    call = BackgroundCall(lambda: ring.enqueue(ints([4, 5]), blocking=True))
    time.sleep(0.05)
    assert ring.get_current_position().tolist() == [1, 2]
    assert ring.dequeue(ints([1])).tolist() == [[2]]
    assert call.result() is True
    assert ring.dequeue(n=2).tolist() == [[1, 4], [3, 5]]


@pytest.mark.usefixtures("only_signals")
def test_dequeue_waits_for_enough_steps_in_all_environments():
    ring = shared_ring()
    call = BackgroundCall(lambda: ring.dequeue(n=2, blocking=True))
    for batch in (ints([1, 2]), ints([3, 4])):
        time.sleep(0.02)
        assert call.is_alive()
        ring.enqueue(batch)
    assert call.result().tolist() == [[1, 3], [2, 4]]


@pytest.mark.usefixtures("only_signals")
@pytest.mark.parametrize("freed_by", ["clear", "remove_up_to"])
def test_clear_and_remove_wake_waiting_writers(freed_by):
    ring = shared_ring(1)
    ring.enqueue(ints([1, 2]))
    call = BackgroundCall(lambda: ring.enqueue(ints([3, 4]), blocking=True))
    time.sleep(0.02)
    ring.clear() if freed_by == "clear" else ring.remove_up_to(1)
    assert call.result() is True
    assert ring.dequeue().tolist() == [[3], [4]]


def test_waits_test_their_condition_again_without_a_signal():
    ring = shared_ring()
    call = BackgroundCall(lambda: ring.dequeue(blocking=True))
    time.sleep(0.05)
    with ring._lock:  # no signal, as if another waiting thread had taken it
        ring._size[:] = 1
        ring._pos[:] = 1
    assert call.result().tolist() == [[0], [0]]


def test_stop_ends_waits_and_revive_allows_them():
    ring = shared_ring(1)
    ring.enqueue(ints([1, 2]))
    calls = [BackgroundCall(lambda: ring.enqueue(ints([3, 4]), blocking=True)) for _ in range(3)]
    time.sleep(0.02)
    ring.stop()
    assert [call.result() for call in calls] == [False] * 3
    # Even calls that could proceed; calls that do not wait ignore it.
    assert ring.dequeue(blocking=True) is None
    assert ring.dequeue().tolist() == [[1], [2]]
    assert ring.enqueue(ints([7, 8]), blocking=True) is False
    assert ring.enqueue(ints([7, 8])) is True
    ring.revive()
    assert ring.dequeue(blocking=True).tolist() == [[7], [8]]


def test_a_stopped_add_changes_no_priorities():
    buffer = fill(replay_buffer(1, 2, prioritized_sampling=True, allow_multiprocess=True), 2)
    buffer.stop()
    before = {key: value.clone() for key, value in buffer.state_dict().items()}
    buffer.add_batch(steps([9]), blocking=True)
    assert all(alf_buffers.torch.equal(value, before[key]) for key, value in buffer.state_dict().items())


def test_waiting_needs_a_shared_buffer():
    alf = alf_buffers.alf
    ring = alf.RingBuffer(alf.TensorSpec((), "int64"), 1)
    text = "`blocking=True` needs a buffer with `allow_multiprocess=True`"
    with raises(AssertionError, text):
        ring.enqueue(ints([1]), blocking=True)
    with raises(AssertionError, text):
        ring.dequeue(blocking=True)
    ring.stop()
    ring.revive()
    assert ring.enqueue(ints([1]))
    buffer = replay_buffer(keep_episodic_info=True, allow_multiprocess=True)
    with raises(AssertionError, "`blocking=True` needs a buffer with `keep_episodic_info=False`"):
        buffer.add_batch(steps([0]), blocking=True)
    assert buffer.total_size == 0


# --- threads --------------------------------------------------------------------------------------


def test_threads_share_a_buffer():
    buffer = replay_buffer(4, 8, prioritized_sampling=True, keep_episodic_info=True)
    fill(buffer, 2, 2, 2, 2)
    errors, end = [], threading.Event()

    def sample():
        while not end.is_set():
            batch, info = buffer.get_batch(8, 2)
            x = batch["nested"]["x"][..., 0]
            if not ((x[:, 1] - x[:, 0] == 1) & (x[:, 0] // 1000 == info.env_ids)).all():
                errors.append(batch)
            buffer.update_priority(info.env_ids, info.positions, info.importance_weights + 0.5)

    buffer.clear()
    for position in range(2):
        buffer.add_batch(steps([1000 * env + position for env in range(4)]))
    threads = [BackgroundCall(sample) for _ in range(2)]
    for position in range(2, 300):
        buffer.add_batch(steps([1000 * env + position for env in range(4)]))
    end.set()
    for thread in threads:
        thread.result()
    assert not errors


# --- forked processes -----------------------------------------------------------------------------


@needs_fork
def test_processes_pass_steps_in_both_directions():
    code = """
to_child, to_parent = ring(), ring()

def work():
    for _ in range(50):
        to_parent.enqueue(to_child.dequeue(blocking=True)[:, 0] + 1, blocking=True)

child, value = fork(work), torch.zeros(2, dtype=torch.int64)
for _ in range(50):
    to_child.enqueue(value, blocking=True)
    value = to_parent.dequeue(blocking=True)[:, 0]
join(child)
print(value.tolist(), to_child.get_current_position().tolist())
"""
    assert run(code) == "[50, 50] [50, 50]\n"


@needs_fork
@pytest.mark.slow
def test_waits_end_when_another_process_stops_them():
    code = """
full, empty = ring(1), ring(1)
full.enqueue(ints([1, 2]))

def work():
    assert full.enqueue(ints([3, 4]), blocking=True) is False
    assert empty.dequeue(blocking=True) is None

child = fork(work)
time.sleep(0.05)
full.stop()
empty.stop()
join(child)
"""
    assert run(code) == ""


@needs_fork
def test_no_step_is_lost_between_many_processes():
    code = """
shared = ring(4)

def write(first):
    for value in range(first, first + 100):
        assert shared.enqueue(ints([value, -value]), blocking=True)

writers = [fork(lambda first=first: write(first)) for first in (0, 1000, 2000)]
seen = [shared.dequeue(blocking=True)[:, 0].tolist() for _ in range(300)]
for writer in writers:
    join(writer)
assert all(b == -a for a, b in seen)
for first in (0, 1000, 2000):
    assert [a for a, _ in seen if first <= a < first + 1000] == [*range(first, first + 100)]
"""
    assert run(code) == ""


@needs_fork
def test_the_lock_is_free_when_its_holder_dies():
    code = """
buffer = replay_buffer(1, 4, prioritized_sampling=True, allow_multiprocess=True)
ready = os.eventfd(0)

def work():
    with buffer._lock:
        os.eventfd_write(ready, 1)
        time.sleep(60)

child = fork(work)
os.eventfd_read(ready)
os.kill(child, signal.SIGKILL)
fill(buffer, 3)
print(buffer.get_batch(1, 2)[0]["reward"].shape)
os.waitpid(child, 0)
"""
    assert run(code) == "torch.Size([1, 2])\n"


@needs_fork
def test_the_lock_excludes_other_processes():
    code = """
shared = ring()
ready = os.eventfd(0)

def work():
    with shared._lock:
        with shared._lock:
            pass
        os.eventfd_write(ready, 1)
        time.sleep(0.2)
        shared.enqueue(ints([1, 2]))

child = fork(work)
os.eventfd_read(ready)
shared.enqueue(ints([3, 4]))
join(child)
print(shared.dequeue(n=2).tolist())
"""
    assert run(code) == "[[1, 3], [2, 4]]\n"


@needs_fork
@pytest.mark.slow
def test_a_child_can_use_a_buffer_that_another_thread_held_at_the_fork():
    code = """
import threading
buffers = [replay_buffer(1, 4, allow_multiprocess=shared) for shared in (True, False)]
held, end = threading.Event(), threading.Event()

def hold():
    with buffers[0]._lock, buffers[1]._lock:
        held.set()
        end.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
ready = os.eventfd(0)

def work():
    fill(buffers[1], 2)  # a copy of its own
    os.eventfd_write(ready, 1)
    fill(buffers[0], 2)

child = fork(work)
os.eventfd_read(ready)
time.sleep(0.05)
assert buffers[0].total_size == 0
end.set()
thread.join()
join(child)
print([int(buffer.total_size) for buffer in buffers])
"""
    assert run(code) == "[2, 0]\n"


@needs_fork
@pytest.mark.parametrize("log_length", [4, pytest.param(2**16, marks=pytest.mark.slow)])
def test_processes_see_each_others_priorities(log_length):
    """Also if more priorities change than the log of changes has."""
    code = f"""
from engram.compat.alf.experience_replayers import _priorities
_priorities._LOG_LENGTH = {log_length}
buffer = replay_buffer(2, 16, prioritized_sampling=True, keep_episodic_info=True, allow_multiprocess=True)
fill(buffer, 8, 8)
buffer.get_batch(1, 2)

def work():
    assert buffer.initial_priority == 1.0
    fill(buffer, 4, 4)
    buffer.update_priority(ints([0] * 11), ints([*range(11)]), torch.zeros(11))
    buffer.update_priority(ints([1] * 5), ints([*range(5)]), torch.full((5,), 8.0))

join(fork(work))
envs, positions, weights = buffer.get_batch(460, 2)[1][:3]
assert (envs == 1).all()
counts = Counter(positions.tolist())
assert set(counts) == set(range(11))
assert all(79 <= counts[position] <= 81 for position in range(5)), counts
assert weights.max().item() == torch.tensor(8 * 11 / 46).item()
assert buffer.initial_priority == 8.0
assert buffer.steps_to_episode_end(ints([0]), ints([1])).tolist() == [11]

def reverse():
    buffer.clear()
    fill(buffer, 3, 0)
    buffer.get_batch(1, 3)  # another length

join(fork(reverse))
assert buffer.get_batch(4, 3)[1].positions.tolist() == [0, 0, 0, 0]
print(buffer.initial_priority.tolist())
"""
    warning = "`batch_length` changes from 2 to 3"
    code = f"import warnings\nwarnings.filterwarnings('ignore', '{warning}')\n{code}"
    assert run(code) == "1.0\n"


@needs_fork
@pytest.mark.slow
def test_a_state_that_one_process_loads_is_seen_by_others():
    code = """
buffers = [replay_buffer(1, 8, prioritized_sampling=True, allow_multiprocess=True) for _ in range(2)]
fill(buffers[0], 4)
buffers[0].update_priority(ints([0, 0, 0]), ints([0, 1, 2]), torch.zeros(3))
fill(buffers[1], 8)
buffers[1].get_batch(1, 1)
join(fork(lambda: buffers[1].load_state_dict(buffers[0].state_dict())))
print(buffers[1].get_batch(4, 1)[1].positions.tolist())
"""
    assert run(code) == "[3, 3, 3, 3]\n"


def test_a_lock_that_looks_like_a_deadlock_is_tried_again(monkeypatch):
    """The system compares processes, not threads."""
    import errno  # noqa: PLC0415, next to its use
    import fcntl  # noqa: PLC0415, next to its use

    from engram.compat.alf import _lock  # noqa: PLC0415, it needs PyTorch

    lock, attempts = _lock.BufferLock(processes=True), []

    def lockf(_, operation):
        attempts.append(operation)
        if len(attempts) == 1:
            raise OSError(errno.EDEADLK, "deadlock")
        if len(attempts) == 5:
            raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(_lock.fcntl, "lockf", lockf)
    with lock:
        pass
    assert attempts == [fcntl.LOCK_EX, fcntl.LOCK_EX, fcntl.LOCK_UN]
    attempts.append(None)
    with pytest.raises(OSError, match="no locks"), lock:
        pass
    other = BackgroundCall(lambda: lock._threads.acquire(blocking=False))
    assert other.result(), "the lock of threads is free after the error"


def test_signals_are_kept_until_the_next_wait():
    from engram.compat.alf._lock import Signal  # noqa: PLC0415, it needs PyTorch

    signal = Signal()
    signal.set()
    signal.set()
    start = time.monotonic()
    signal.wait(30.0)
    assert time.monotonic() - start < 20
    with pytest.raises(BlockingIOError):  # the wait has taken the signal
        os.eventfd_read(signal._file)
    call = BackgroundCall(lambda: signal.wait(30.0))
    wait_until(call.is_alive)
    signal.set()
    call.result(20.0)
