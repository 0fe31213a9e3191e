"""A replay buffer in a file whose process is killed: the file has every step that was added, and none partly."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers.buffer_model import all_steps, items_by_key, priorities_by_key

from engram import selectors
from engram.buffers import Episodes, MappedFile, ReplayBuffer, Sequences

pytestmark = pytest.mark.crash

SEED = int(os.environ.get("KILL_SEED") or secrets.randbits(31))
ROUNDS = [pytest.param(5), pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
NUM_ENVS = 3
LENGTH = 30
ITEMS = [Sequences(length=4, burn_in=2), Episodes(max_length=4)]
STEP_ELEMENTS = 4_000  # most of the time is spent writing steps
MAX_STEPS = 8
"""Maximum number of steps of an environment per call."""
EPISODE_STEPS = 3
"""Number of steps of an episode that is added with `add_episode`."""


def open_buffer(path, items):
    sampler = selectors.Prioritized(0.5)
    return ReplayBuffer(LENGTH * NUM_ENVS, NUM_ENVS, items=items, sampler=sampler, seed=0, storage=MappedFile(path))


def steps(env, positions):
    """Steps whose elements are all equal, and which end episodes at certain positions."""
    numbers = np.array([1_000_000 * env + position for position in positions], np.int64)
    return {
        "x": np.repeat(numbers[:, None], STEP_ELEMENTS, 1),
        "terminated": numbers % 11 == 5,
        "truncated": numbers % 7 == 0,
    }


def is_episode(env, position):
    """True if `use_forever` adds the steps at this position and the next two as an episode, which no flag ends.

    The step before them does not end its episode, either. Positions differ by a multiple of 77 if their flags are the
    same.
    """
    number = 1_000_000 * env + position
    return number % 7 == 2 and number % 11 not in {3, 4, 5}


def use_forever(path, items, added, seed):
    """Adds steps, changes priorities and flushes. Prints the number of steps of each environment after each call."""
    buffer = open_buffer(path, items)
    rng = np.random.default_rng(seed)
    while True:
        action = rng.integers(0, 8) if any(added) else 7
        if action == 0:
            buffer.flush()
            os.write(1, b"flushed\n")
        elif action == 1 and buffer.num_items:
            keys = buffer.sample(5).info.key
            buffer.update_priorities(keys, rng.uniform(1, 2, len(keys)))
        elif episodes := [env for env in range(NUM_ENVS) if is_episode(env, added[env])]:
            env = int(rng.choice(episodes))
            buffer.add_episode(steps(env, range(added[env], added[env] + EPISODE_STEPS)), env_id=env)
            added[env] += EPISODE_STEPS
            os.write(1, (",".join(map(str, added)) + "\n").encode())
        else:
            env_ids = rng.permutation(NUM_ENVS)[: rng.integers(1, NUM_ENVS + 1)]
            until_episode = [min(n for n in range(1, 99) if is_episode(env, added[env] + n)) for env in env_ids]
            count = int(rng.integers(1, min(MAX_STEPS, *until_episode) + 1))
            new = [steps(env, range(added[env], added[env] + count)) for env in env_ids]
            buffer.add_steps({name: np.stack([each[name] for each in new]) for name in new[0]}, env_ids=env_ids)
            for env in env_ids:
                added[env] += count
            os.write(1, (",".join(map(str, added)) + "\n").encode())


def fork_on_request(path, items):
    """Forks a child that runs `use_forever` for each line of stdin, which has its arguments, until it is killed.

    Prints the id of the child first, and how it ended last.
    """
    for line in sys.stdin:
        added, seed = json.loads(line)
        child = os.fork()
        if not child:
            os.write(1, f"pid {os.getpid()}\n".encode())
            use_forever(path, items, added, seed)
        _, status = os.waitpid(child, 0)
        os.write(1, f"\nended {os.waitstatus_to_exitcode(status)}\n".encode())


@contextmanager
def forking_process(path, items):
    """A process that runs `fork_on_request`."""
    code = f"from test_killed_buffers import *; fork_on_request({str(path)!r}, {items!r})"
    modules = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": os.environ | modules}
    with subprocess.Popen([sys.executable, "-c", code], **options) as process:
        yield process
        process.stdin.close()
    assert process.returncode == 0


def run_until_killed(process, added, seed, seconds):
    """Runs `use_forever` in a child; returns the last numbers that it has printed, and whether it has flushed."""
    process.stdin.write(json.dumps([added, seed]) + "\n")
    process.stdin.flush()
    pid = int(process.stdout.readline().removeprefix("pid "))
    lines = [process.stdout.readline()]
    threading.Event().wait(seconds)
    os.kill(pid, signal.SIGKILL)
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ended"):
            break
    assert lines.pop() == f"ended {-signal.SIGKILL}\n"
    counts = [line for line in lines if "," in line]
    printed = [int(number) for number in counts[-1].split(",")] if counts else added
    return printed, any(line.startswith("flushed") for line in lines)


def check(buffer, items, printed):
    """Checks a buffer whose process was killed; returns the number of steps of each environment."""
    found = all_steps(buffer)
    added = [max((position for of, position in found if of == env), default=-1) + 1 for env in range(NUM_ENVS)]
    for env in range(NUM_ENVS):
        # All steps that were added; and those of a call that was not finished may be there.
        assert printed[env] <= added[env] <= printed[env] + MAX_STEPS
        assert not any(is_episode(env, added[env] - n) for n in range(1, EPISODE_STEPS))  # an episode is never cut
        positions = sorted(position for of, position in found if of == env)
        assert positions == list(range(added[env] - len(positions), added[env]))
        # The oldest steps may be missing if a call that was not finished was overwriting them.
        assert len(positions) >= min(added[env], LENGTH) - MAX_STEPS
    for (env, position), step in found.items():
        for name, value in steps(env, [position]).items():
            np.testing.assert_array_equal(step[name], value[0], err_msg=f"{name} of step {position} of {env}")
    check_items(buffer, items, added)
    assert all(1 <= priority <= 2 for priority in priorities_by_key(buffer).values())
    return added


def check_items(buffer, items, added):
    """Compares the items with those of a buffer to which the same steps were added without interruption."""
    # Positions and keys of the other buffer begin at a multiple of the length of both patterns of episodes.
    first = [max(0, count - 2 * LENGTH) // 77 * 77 for count in added]
    whole = ReplayBuffer(LENGTH * NUM_ENVS, NUM_ENVS, items=items, seed=0)
    for env in range(NUM_ENVS):
        position = first[env]
        while position < added[env]:
            if is_episode(env, position):
                whole.add_episode(steps(env, range(position, position + EPISODE_STEPS)), env_id=env)
                position += EPISODE_STEPS
            else:
                whole.add({name: column[0] for name, column in steps(env, [position]).items()}, env_id=env)
                position += 1
    shift = {key: key + NUM_ENVS * first[key % NUM_ENVS] for key in items_by_key(whole)}
    expected = {shift[key]: item for key, item in items_by_key(whole).items()}
    found = items_by_key(buffer)
    assert found == {key: expected[key] for key in found}
    missing = sum(min(count, LENGTH) for count in added) - len(buffer)
    assert len(found) >= len(expected) - missing - NUM_ENVS * getattr(items, "burn_in", 0)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("items", ITEMS)
def test_a_killed_process_loses_no_step_that_was_added(tmp_path, items, rounds):
    print(f"KILL_SEED={SEED}")  # noqa: T201, shown by pytest if the test fails
    rng = np.random.default_rng(SEED)
    added, flushed = [0] * NUM_ENVS, 0
    with forking_process(tmp_path / "file", items) as process:
        for number in range(rounds):
            printed, has_flushed = run_until_killed(process, added, SEED + number, rng.uniform(0, 0.2))
            buffer = open_buffer(tmp_path / "file", items)
            added = check(buffer, items, printed)
            flushed += has_flushed
            if rng.random() < 0.3:
                buffer.close()
            del buffer
    # How many calls a round makes depends on the machine; without any, the rounds would check nothing.
    assert flushed > 0
    assert sum(added) > LENGTH
