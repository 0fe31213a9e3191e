"""Shared by all workers: the steps they store, the clock, and the one JSON line they print.

This module runs inside each peer's own virtual environment, so it imports NumPy and nothing of ours.
"""

import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OBS = {"small": ((4,), np.float32), "atari": ((84, 84, 4), np.uint8)}
Step = dict[str, Any]
Block = Callable[[], int]  # does a bounded piece of the work, says how many things it did


@dataclass(frozen=True)
class Task:
    """What the harness asks of one process."""

    job: str  # "insert", "sample", "update", "memory" or "draw"
    variant: str  # which of the engine's ways to do it, such as "client" or "dataset"
    step: str = "small"  # or "atari"
    prioritized: bool = False
    seconds: float = 3.0  # how long the measured part runs, where a rate is measured
    items: int = 100_000  # the table's bound, and what it holds before it is sampled
    batch: int = 256  # items per sample or update
    envs: int = 64  # environments of a batched writer


def observations(step: str, n: int, seed: int = 0) -> np.ndarray:
    """`n` observations of noise: the worst case for every engine's compressor."""
    rng = np.random.default_rng(seed)
    shape, _ = OBS[step]
    if step == "small":
        return rng.standard_normal((n, *shape), dtype=np.float32)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8)


def steps(step: str) -> list[Step]:
    """Ready-made single steps, cycled through so that making data costs nothing while we measure."""
    n = 1024 if step == "small" else 256
    return [
        {
            "obs": obs,
            "action": np.int32(i % 4),
            "reward": np.float32(i),
            "discount": np.float32(0.99),
        }
        for i, obs in enumerate(observations(step, n))
    ]


def step_batches(step: str, envs: int) -> list[Step]:
    """Ready-made steps of `envs` environments: every leaf is `[envs, ...]`."""
    n = 64 if step == "small" else 8
    frames = observations(step, n * envs).reshape(n, envs, *OBS[step][0])
    return [
        {
            "obs": obs,
            "action": np.arange(envs, dtype=np.int32) % 4,
            "reward": np.full(envs, i, np.float32),
            "discount": np.full(envs, 0.99, np.float32),
        }
        for i, obs in enumerate(frames)
    ]


def rate(block: Block, seconds: float, finish: Callable[[], object] | None = None) -> float:
    """Things per second: calls `block` (which returns how many it did) for `seconds`.

    `finish` (a flush) is part of the measured time: what was not yet taken was not yet done.
    """
    block()  # warm caches, connections and lazy imports
    done = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += block()
    if finish is not None:
        finish()
    return done / (time.perf_counter() - start)


def rss_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def priorities(n: int) -> np.ndarray:
    """Positive, uneven priorities."""
    return np.random.default_rng(1).uniform(0.1, 10.0, n)


def serve(packages: list[str], jobs: Mapping[str, Callable[[Task], float]]) -> None:
    """Do the task given as JSON in `argv[1]`; the last line printed is `{"value": ...}` or `{"error": ...}`."""
    task = Task(**json.loads(sys.argv[1]))
    answer: dict[str, object] = {"python": platform.python_version()}
    answer["versions"] = {name: importlib.metadata.version(name) for name in packages}
    try:
        answer["value"] = jobs[task.job](task)
    except Exception as error:  # noqa: BLE001 - a failed run is a result: the harness reports it
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
    os._exit(0)  # a peer's server may take long to stop, or hang: nothing after the figure matters
