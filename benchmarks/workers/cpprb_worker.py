"""The cpprb worker: transitions (obs and next_obs in one row), its equivalent of items of two steps."""

import itertools
from typing import Any

import cpprb
import numpy as np

from benchmarks.workers import common
from benchmarks.workers.common import Task


def open_buffer(task: Task) -> Any:  # noqa: ANN401 - cpprb has no types
    """Creates an empty buffer."""
    shape, dtype = common.OBS[task.step]
    columns = {
        "obs": {"shape": shape, "dtype": dtype},
        "next_obs": {"shape": shape, "dtype": dtype},
        "action": {"dtype": np.int32},
        "reward": {"dtype": np.float32},
        "discount": {"dtype": np.float32},
    }
    if task.prioritized:
        return cpprb.PrioritizedReplayBuffer(task.items, columns, alpha=0.6)
    return cpprb.ReplayBuffer(task.items, columns)


def fill(task: Task, buffer: Any) -> None:  # noqa: ANN401
    """Inserts up to `task.items` transitions with unequal priorities, as many as whole batches of `envs` contain."""
    priorities = common.priorities(task.items)
    batches = itertools.cycle(common.step_batches(task.step, task.envs))
    for start in range(0, task.items - task.envs + 1, task.envs):
        batch = next(batches)
        extra = {"priorities": priorities[start : start + task.envs]} if task.prioritized else {}
        buffer.add(**batch, next_obs=batch["obs"], **extra)


def insert(task: Task) -> float:
    """Inserted transitions per second, one by one or in batches of `envs`."""
    buffer = open_buffer(task)
    if task.variant == "batched":
        stream, size = itertools.cycle(common.step_batches(task.step, task.envs)), task.envs
    else:
        stream, size = itertools.cycle(common.steps(task.step)), 1

    def block() -> int:
        for _ in range(64):
            step = next(stream)
            buffer.add(**step, next_obs=step["obs"])
        return 64 * size

    return common.rate(block, task.seconds)


def sample(task: Task) -> float:
    """Sampled transitions per second, in batches of `batch`."""
    buffer = open_buffer(task)
    fill(task, buffer)
    extra = {"beta": 0.4} if task.prioritized else {}
    return common.rate(
        lambda: len(buffer.sample(task.batch, **extra)["obs"]),
        task.seconds,
    )


def update(task: Task) -> float:
    """Calls per second, each updating the priorities of `batch` transitions."""
    buffer = open_buffer(task)
    fill(task, buffer)
    keys = itertools.cycle([buffer.sample(task.batch, beta=0.4)["indexes"] for _ in range(64)])
    fresh = common.priorities(task.batch)

    def block() -> int:
        buffer.update_priorities(next(keys), fresh)
        return 1

    return common.rate(block, task.seconds)


if __name__ == "__main__":
    common.run_task(["cpprb", "numpy"], {"insert": insert, "sample": sample, "update": update})
