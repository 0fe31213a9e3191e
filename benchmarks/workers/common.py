"""Shared by all workers: the steps they store, the measuring loops, and the JSON line they print.

This module runs inside each peer's own virtual environment, so it must not import Engram.
"""

import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workers import processes

FRAME_SPEC = ((84, 84, 4), np.uint8)
# Shape and dtype of an observation, by the kind of step.
OBS = {"small": ((4,), np.float32), "atari": FRAME_SPEC, "pong": FRAME_SPEC}
PONG = Path(__file__).resolve().parents[2] / ".bench" / "pong.npy"  # u8[N, 84, 84], by `ale_worker`
UNLIMITED = 1e9  # seconds
CONCURRENT_UPDATES = 8  # calls at the same time; each in its own thread, because a call waits for its response

# Options of rate limiters with a ratio. An error buffer of 10,000 permits a range of 20,000 samples: more than some
# batches in flight, and few compared with the samples of three seconds.
MIN_SIZE, ERROR_BUFFER = 2_500, 10_000

Step = dict[str, Any]
Block = Callable[[], int]  # does a bounded piece of the work; returns its number of operations


@dataclass(frozen=True)
class Task:
    """The work of one process."""

    job: str  # a function of the worker's module, such as "insert" or "sample"; see the call of `run_task` at its end
    variant: str  # way of doing it, such as "client" or "dataset"
    step: str = "small"  # or "atari" (noise) or "pong"
    prioritized: bool = False
    seconds: float = 3.0  # duration of the measured part, for rates
    items: int = 100_000  # maximum size of the table, and its size before sampling
    batch: int = 256  # items per sample or update
    envs: int = 64  # environments of a batched writer
    length: int = 2  # steps per item
    every: int = 1  # steps between the starts of two items
    ratio: float = 0.0  # samples per insert that the table enforces; 0: no limit
    percentile: int = 50  # of the latency
    remote: bool = False  # the table is in another process
    address: str = ""  # of a running server; empty: if `remote`, the worker starts one
    writers: int = 1  # processes that insert
    child: bool = False  # this process was started by another worker, see `processes`
    directory: str = ""  # a fresh directory on disk, for stores on disk; otherwise empty
    durability: str = ""  # of the store in `directory`; empty: in memory
    prefetch: int = 0  # batches that a dataset prefetches; 0: the worker's default
    in_flight: int = 0  # items in flight of Reverb's dataset with one worker; 0: the worker's default
    cold: bool = False  # the files to restore are not in the page cache


@dataclass(frozen=True)
class Result:
    """The result of a run: its figure, and further ones."""

    value: float
    # Further figures: the key is a text to print, in which `{}` stands for the value.
    extra: Mapping[str, float] = field(default_factory=dict)
    reference: float | None = None  # what `value` is compared with, such as the speed of the disk in the same run


def observations(step: str, n: int, seed: int = 0) -> np.ndarray:
    """`n` observations: recorded ones for `pong`, otherwise noise, the worst case for every engine's compressor."""
    if step == "pong":
        frames = np.load(PONG)[: n + 3]
        return np.stack([frames[i : i + n] for i in range(4)], axis=-1)
    rng = np.random.default_rng(seed)
    shape, _ = OBS[step]
    if step == "small":
        return rng.standard_normal((n, *shape), dtype=np.float32)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8)


def steps(step: str) -> list[Step]:
    """Single steps, created in advance and reused in a cycle, so that creating them is not measured."""
    n = {"small": 1024, "atari": 256, "pong": 2000}[step]
    return [
        {
            "obs": obs,
            "action": np.int32(i % 4),
            "reward": np.float32(i),
            "discount": np.float32(0.99),
        }
        for i, obs in enumerate(observations(step, n))
    ]


def dataset_reader(task: Task, tf: Any, kind: Any, address: str, table: str) -> Block:  # noqa: ANN401, untyped modules
    """Returns a block that reads a dataset with `task.in_flight` items in flight.

    Each call reads one item for the variant `single`, otherwise one batch. `kind` is the class `TrajectoryDataset` of
    Reverb or of `engram.compat.reverb`.
    """
    shape, dtype = OBS[task.step]
    dtypes = {"obs": tf.as_dtype(dtype), "action": tf.int32, "reward": tf.float32, "discount": tf.float32}
    shapes = {name: tf.TensorShape((task.length, *(shape if name == "obs" else ()))) for name in dtypes}
    dataset = kind(address, table, dtypes, shapes, max_in_flight_samples_per_worker=task.in_flight)
    if task.variant == "single":
        items = iter(dataset)
        return lambda: len([next(items).data["obs"]])  # always 1
    batches = iter(dataset.batch(task.batch, drop_remainder=True))
    return lambda: int(next(batches).data["obs"].shape[0])


def step_bytes(step: str) -> int:
    """Bytes of one step, all columns."""
    shape, dtype = OBS[step]
    return int(np.prod(shape)) * np.dtype(dtype).itemsize + 3 * 4


def step_batches(step: str, envs: int) -> list[Step]:
    """Steps of `envs` environments, created in advance; every leaf is `[envs, ...]`."""
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


def rate(
    block: Block,
    seconds: float,
    finish: Callable[[], object] | None = None,
    begin: Callable[[], object] | None = None,
    warm: int = 1,
) -> float:
    """Operations per second: calls `block` repeatedly for `seconds`; each call returns its number of operations.

    `finish` (a flush) is part of the measured time, because operations count once they are complete. `begin` runs after
    the warm-up of at least `warm` operations, before the clock starts.
    """
    while warm > 0:  # fills caches, opens connections, imports lazy modules
        warm -= block()
    if begin is not None:
        begin()
    done = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += block()
    if finish is not None:
        finish()
    return done / (time.perf_counter() - start)


def warmup_steps(task: Task) -> int:
    """Minimum steps of the warm-up. Sequences first fill their table, so that the measured part reuses its memory."""
    return task.items * task.every if task.every > 1 else 1


def rate_in_threads(threads: int, block: Block, seconds: float) -> float:
    """Operations per second of all threads together; each calls `block`, as `rate` does."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: rate(block, seconds), range(threads)))


def latency(call: Callable[[], object], seconds: float, percentile: int) -> float:
    """Latency of one call in microseconds, calls one after the other."""
    for _ in range(50):  # warm-up, for the same reasons as in `rate`
        call()
    latencies = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        latencies.append(time.perf_counter() - start)
    return float(np.percentile(latencies, percentile)) * 1e6


def balanced_rate(block: Block, seconds: float, ratio: float, counts: Callable[[], tuple[int, int]]) -> float:
    """Samples per second in the steady state; `counts` returns the table's inserts and samples so far.

    Batches that were ready before the start are used up first. Raises an error if the ratio of samples to inserts
    differs from `ratio` by more than 10 %.
    """
    before: list[tuple[int, int]] = []

    def begin() -> None:
        rate(block, 2.0)
        before.append(counts())

    value = rate(block, seconds, begin=begin)
    inserts, samples = (after - start for after, start in zip(counts(), before[0], strict=True))
    if abs(samples / max(inserts, 1) - ratio) > 0.1 * ratio:
        msg = f"no steady state: {samples} samples and {inserts} inserts; expected {ratio:g} samples per insert"
        raise RuntimeError(msg)
    return value


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of process `pid`; by default, of this process."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def priorities(n: int) -> np.ndarray:
    """`n` priorities between 0.1 and 10."""
    return np.random.default_rng(1).uniform(0.1, 10.0, n)


def run_task(packages: list[str], jobs: Mapping[str, Callable[[Task], float | Result]]) -> None:
    """Runs the task given as JSON in `argv[1]`, prints its result or error as one line of JSON, and ends the process.

    `packages` are those whose versions the line also contains; `jobs` are the functions by `Task.job`.
    """
    task = Task(**json.loads(sys.argv[1]))
    if task.child:
        processes.end_with_parent()
    printed: dict[str, object] = {"python": platform.python_version()}
    printed["versions"] = {name: importlib.metadata.version(name) for name in packages}
    try:
        result = jobs[task.job](task)
        printed |= asdict(result if isinstance(result, Result) else Result(result))
    except Exception as error:  # noqa: BLE001 - a failed run is a result: the harness reports it
        traceback.print_exc()
        printed["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(printed), flush=True)
    os._exit(0)  # a peer's server may take long to stop, or hang
