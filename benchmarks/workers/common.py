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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workers import processes

FRAMES = ((84, 84, 4), np.uint8)
OBS = {"small": ((4,), np.float32), "atari": FRAMES, "pong": FRAMES}
PONG = Path(__file__).resolve().parents[2] / ".bench" / "pong.npy"  # u8[N, 84, 84], by `ale_worker`
FOR_EVER = 1e9  # seconds
CALLS_UNDER_WAY = 8  # of updates, in as many threads: a call waits for its reply

# Of a ratio. A range of 20,000 samples: some batches in flight, little beside what is taken in three seconds.
MIN_SIZE, ERROR_BUFFER = 2_500, 10_000

Step = dict[str, Any]
Block = Callable[[], int]  # does a bounded piece of the work, says how many things it did


@dataclass(frozen=True)
class Task:
    """What the harness asks of one process."""

    job: str  # "insert", "sample", "update", "memory", "draw", "latency", "balance", "server" or "record"
    variant: str  # which of the engine's ways to do it, such as "client" or "dataset"
    step: str = "small"  # or "atari" (noise) or "pong"
    prioritized: bool = False
    seconds: float = 3.0  # how long the measured part runs, where a rate is measured
    items: int = 100_000  # the table's bound, and what it holds before it is sampled
    batch: int = 256  # items per sample or update
    envs: int = 64  # environments of a batched writer
    length: int = 2  # steps per item
    every: int = 1  # steps from one item to the next
    ratio: float = 0.0  # samples per insert that the table insists on, if any
    percentile: int = 50  # of a latency
    remote: bool = False  # the table is in another process
    address: str = ""  # of a server that runs already
    writers: int = 1  # processes that insert
    child: bool = False  # this process was started by another worker, see `processes`
    directory: str = ""  # a fresh one on a disk, for what wants it
    durability: str = ""  # of the store in it; without, it lives in memory
    prefetch: int = 0  # batches that a dataset keeps ready, where the worker is not to choose
    in_flight: int = 0  # items that Reverb's dataset, one worker, may have in flight, where the worker is not to choose
    cold: bool = False  # what is restored is not in the system's cache


@dataclass(frozen=True)
class Answer:
    """A figure, and what belongs to it."""

    value: float
    besides: Mapping[str, float] = field(default_factory=dict)  # further figures, by their text with a {} in it
    against: float | None = None  # what the machine can do, measured beside it


def observations(step: str, n: int, seed: int = 0) -> np.ndarray:
    """`n` observations: real ones for `pong`, else noise, the worst case for every engine's compressor."""
    if step == "pong":
        frames = np.load(PONG)[: n + 3]
        return np.stack([frames[i : i + n] for i in range(4)], axis=-1)
    rng = np.random.default_rng(seed)
    shape, _ = OBS[step]
    if step == "small":
        return rng.standard_normal((n, *shape), dtype=np.float32)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8)


def steps(step: str) -> list[Step]:
    """Ready-made single steps, cycled through so that making data costs nothing while we measure."""
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


def few_in_flight(task: Task, tf: Any, kind: Any, address: str, table: str) -> Block:  # noqa: ANN401, modules of others
    """Items of Reverb's dataset, or of ours that is called so, one by one or in batches."""
    shape, dtype = OBS[task.step]
    dtypes = {"obs": tf.as_dtype(dtype), "action": tf.int32, "reward": tf.float32, "discount": tf.float32}
    shapes = {name: tf.TensorShape((task.length, *(shape if name == "obs" else ()))) for name in dtypes}
    dataset = kind(address, table, dtypes, shapes, max_in_flight_samples_per_worker=task.in_flight)
    if task.variant == "single":
        items = iter(dataset)
        return lambda: len((next(items).data["obs"],))
    batches = iter(dataset.batch(task.batch, drop_remainder=True))
    return lambda: int(next(batches).data["obs"].shape[0])


def step_bytes(step: str) -> int:
    """Bytes of one step, all columns."""
    shape, dtype = OBS[step]
    return int(np.prod(shape)) * np.dtype(dtype).itemsize + 3 * 4


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


def rate(
    block: Block,
    seconds: float,
    finish: Callable[[], object] | None = None,
    begin: Callable[[], object] | None = None,
    warm: int = 1,
) -> float:
    """Things per second: calls `block` (which returns how many it did) for `seconds`.

    `finish` (a flush) is part of the measured time: what was not yet taken was not yet done. `begin` comes
    between the warm-up, in which at least `warm` things are done, and the clock.
    """
    while warm > 0:  # caches, connections and lazy imports
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


def until_full(task: Task) -> int:
    """Steps of a warm-up: sequences fill their table, as large as it is, so that its memory is used again."""
    return task.items * task.every if task.every > 1 else 1


def rate_in_threads(threads: int, block: Block, seconds: float) -> float:
    """Things per second that so many threads do together."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: rate(block, seconds), range(threads)))


def latency(call: Callable[[], object], seconds: float, percentile: int) -> float:
    """Microseconds of one call, one after the other."""
    for _ in range(50):  # as in `rate`
        call()
    taken = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        taken.append(time.perf_counter() - start)
    return float(np.percentile(taken, percentile)) * 1e6


def balanced_rate(block: Block, seconds: float, ratio: float, counts: Callable[[], tuple[int, int]]) -> float:
    """Samples per second in the steady state: `counts` gives the table's inserts and samples so far.

    What lies ready when we begin is used up first; a window in which the ratio is not kept gives no figure.
    """
    before: list[tuple[int, int]] = []

    def begin() -> None:
        rate(block, 2.0)
        before.append(counts())

    value = rate(block, seconds, begin=begin)
    inserts, samples = (now - then for now, then in zip(counts(), before[0], strict=True))
    if abs(samples / max(inserts, 1) - ratio) > 0.1 * ratio:
        msg = f"no steady state: {samples} samples and {inserts} inserts should be {ratio:g} to 1"
        raise RuntimeError(msg)
    return value


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of a process; of this one without `pid`."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def priorities(n: int) -> np.ndarray:
    """Positive, uneven priorities."""
    return np.random.default_rng(1).uniform(0.1, 10.0, n)


def serve(packages: list[str], jobs: Mapping[str, Callable[[Task], float | Answer]]) -> None:
    """Do the task given as JSON in `argv[1]`; the last line printed is `{"value": ...}` or `{"error": ...}`."""
    task = Task(**json.loads(sys.argv[1]))
    if task.child:
        processes.end_with_parent()
    answer: dict[str, object] = {"python": platform.python_version()}
    answer["versions"] = {name: importlib.metadata.version(name) for name in packages}
    try:
        found = jobs[task.job](task)
        answer |= asdict(found if isinstance(found, Answer) else Answer(found))
    except Exception as error:  # noqa: BLE001 - a failed run is a result: the harness reports it
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
    os._exit(0)  # a peer's server may take long to stop, or hang: nothing after the figure matters
