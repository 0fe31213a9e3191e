"""Our datasets of frameworks: `engram.data`, and Reverb's by `engram.compat.reverb`."""

import importlib
import os

from benchmarks.workers import common
from benchmarks.workers.common import Block, Task
from benchmarks.workers.engram_worker import TABLE, Place, fill, server

PREFETCH = 8  # batches
VERSIONS = ["numpy", "torch", "jax", "tensorflow"]


def elements(task: Task, place: Place) -> Block:
    """Elements of the framework that `task.variant` names first."""
    framework, _, kind = task.variant.partition(" ")
    module = importlib.import_module(f"engram.data.{framework}")
    options = {"": {"batch_size": task.batch}, "steps": {"batch_size": task.batch, "steps": True}, "single": {}}[kind]
    iterator = iter(module.dataset(place.store, TABLE, prefetch=task.prefetch or PREFETCH, **options))
    if kind == "single":
        return lambda: len((next(iterator).data["obs"],))
    return lambda: int(next(iterator).data["obs"].shape[0])


def compatible(task: Task, place: Place) -> Block:
    """Elements of Reverb's dataset."""
    reverb = importlib.import_module("engram.compat.reverb")
    tf = importlib.import_module("tensorflow")
    return common.few_in_flight(task, tf, reverb.TrajectoryDataset, place.address, TABLE)


def sample(task: Task) -> float:
    """Items, or steps, per second."""
    place = Place(task)
    fill(task, place.store)
    return common.rate((compatible if task.in_flight else elements)(task, place), task.seconds)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    common.serve(VERSIONS, {"sample": sample, "server": server})
