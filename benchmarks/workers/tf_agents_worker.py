"""TF-Agents' `TFUniformReplayBuffer`, its own and that of `engram.compat.tf_agents`, with the same TensorFlow.

The variant of a task is the engine, `engram` or `tf_agents`.
"""

import importlib
import itertools
import os
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.workers import common
from benchmarks.workers.common import Block, Task

PACKAGES = {"engram": "engram.compat.tf_agents", "tf_agents": "tf_agents"}
VERSIONS = ["numpy", "tensorflow", "tf-agents"]


def open_buffer(task: Task) -> Any:  # noqa: ANN401, untyped
    """Creates an empty buffer."""
    tf = importlib.import_module("tensorflow")
    shape, dtype = common.OBS[task.step]
    spec = {
        "obs": tf.TensorSpec(shape, dtype, "obs"),
        "action": tf.TensorSpec([], tf.int32, "action"),
        "reward": tf.TensorSpec([], tf.float32, "reward"),
        "discount": tf.TensorSpec([], tf.float32, "discount"),
    }
    module = importlib.import_module(f"{PACKAGES[task.variant]}.replay_buffers.tf_uniform_replay_buffer")
    return module.TFUniformReplayBuffer(spec, task.envs, task.items // task.envs)


def batches(task: Task) -> list[Any]:
    """Items of all environments, as tensors."""
    tf = importlib.import_module("tensorflow")
    return [tf.nest.map_structure(tf.constant, step) for step in common.step_batches(task.step, task.envs)]


def full_buffer(task: Task) -> Any:  # noqa: ANN401, untyped
    """Creates a buffer and fills it, in a graph because that is faster."""
    tf = importlib.import_module("tensorflow")
    buffer = open_buffer(task)
    items = batches(task)[0]

    @tf.function
    def fill(n: Any) -> None:  # noqa: ANN401, a tensor
        for _ in tf.range(n):
            buffer.add_batch(items)

    fill(task.items // task.envs)
    return buffer


def adding(task: Task, add: Callable[[Any], object]) -> float:
    """Items per second, added one after the other for each environment."""
    stream = itertools.cycle(batches(task))

    def block() -> int:
        add(next(stream))
        return task.envs

    return common.rate(block, task.seconds)


def add(task: Task) -> float:
    """Adds eagerly."""
    return adding(task, open_buffer(task).add_batch)


def add_in_graph(task: Task) -> float:
    """Adds in a `tf.function`."""
    tf = importlib.import_module("tensorflow")
    buffer = open_buffer(task)

    @tf.function
    def add(items: Any) -> None:  # noqa: ANN401, tensors
        buffer.add_batch(items)

    return adding(task, add)


def sequences(task: Task, sample: Callable[[], Any]) -> float:
    """Sequences per second, in batches."""
    block: Block = lambda: int(sample()[0]["obs"].shape[0])  # noqa: E731, as in other workers
    return common.rate(block, task.seconds)


def get_next(task: Task) -> float:
    """Samples eagerly."""
    buffer = full_buffer(task)
    return sequences(task, lambda: buffer.get_next(task.batch, task.length))


def dataset(task: Task) -> float:
    """Reads a dataset, as the examples of TF-Agents do."""
    made = full_buffer(task).as_dataset(task.batch, task.length, num_parallel_calls=3).prefetch(3)
    iterator = iter(made)
    return sequences(task, lambda: next(iterator))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.simplefilter("ignore")
    common.run_task(VERSIONS, {"add": add, "add_in_graph": add_in_graph, "get_next": get_next, "dataset": dataset})
