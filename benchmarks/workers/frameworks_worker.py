"""Engram's datasets for frameworks: `engram.data`, and Reverb's dataset API in `engram.compat.reverb`."""

import importlib
import os

from benchmarks.workers import common
from benchmarks.workers.common import Block, Task
from benchmarks.workers.engram_worker import TABLE, Endpoint, fill, server

PREFETCH = 8  # batches
VERSIONS = ["numpy", "torch", "jax", "tensorflow"]


def data_reader(task: Task, endpoint: Endpoint) -> Block:
    """Returns a block that reads a dataset of `engram.data`.

    `task.variant` is the framework, then nothing for batches of items, "steps" for batches of steps, or "single" for
    single items. For example, "torch steps".
    """
    framework, _, kind = task.variant.partition(" ")
    module = importlib.import_module(f"engram.data.{framework}")
    options = {"": {"batch_size": task.batch}, "steps": {"batch_size": task.batch, "steps": True}, "single": {}}[kind]
    iterator = iter(module.dataset(endpoint.store, TABLE, prefetch=task.prefetch or PREFETCH, **options))
    if kind == "single":
        return lambda: len([next(iterator).data["obs"]])  # always 1
    return lambda: int(next(iterator).data["obs"].shape[0])


def compat_reader(task: Task, endpoint: Endpoint) -> Block:
    """Returns a block that reads the dataset of `engram.compat.reverb`."""
    reverb = importlib.import_module("engram.compat.reverb")
    tf = importlib.import_module("tensorflow")
    return common.dataset_reader(task, tf, reverb.TrajectoryDataset, endpoint.address, TABLE)


def sample(task: Task) -> float:
    """Items or steps per second."""
    endpoint = Endpoint(task)
    fill(task, endpoint.store)
    return common.rate((compat_reader if task.in_flight else data_reader)(task, endpoint), task.seconds)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    common.run_task(VERSIONS, {"sample": sample, "server": server})
