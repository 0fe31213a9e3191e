"""Measures one kind of replay buffer in process: `python -m benchmarks.workers.buffer_worker ENGINE STEPS CALLS CORES`.

Prints a JSON object with the microseconds per call of each workload: of processor time on one core, of elapsed time on
more. With more than one core, only the workloads with frames are measured.
"""

import itertools
import json
import os
import sys
import time
from typing import Any

import numpy as np

from benchmarks.workers.buffer_data import (
    ATARI_STEPS,
    BATCHES,
    ENVS,
    LENGTH,
    PREPARED,
    SEQUENCES,
    Workloads,
    frames,
    prepared,
    priorities,
    steps,
)
from benchmarks.workers.buffer_peers import flashbax_workloads, torchrl_workloads


def engram_workloads(n: int) -> Workloads:
    """Workloads of `engram.buffers`."""
    from engram import selectors  # noqa: PLC0415, the peers' environments do not have it
    from engram.buffers import ReplayBuffer, Sequences  # noqa: PLC0415

    uniform = ReplayBuffer(n, seed=0)
    prioritized = ReplayBuffer(n, sampler=selectors.Prioritized(0.6), seed=0)
    for buffer in (uniform, prioritized):
        buffer.add_steps({name: column[None] for name, column in steps((n,)).items()})
    for batch in prioritized.epoch(4096):
        prioritized.update_priorities(batch.info.key, priorities(len(batch)))
    sequences = ReplayBuffer(n, items=Sequences(length=LENGTH, at_end="continue"), seed=0)
    sequences.add_steps({name: column[None] for name, column in steps((n,)).items()})
    atari = ReplayBuffer(ATARI_STEPS, seed=0)
    atari.add_steps({name: column[None] for name, column in frames(ATARI_STEPS).items()})
    sequence_out, atari_out = sequences.sample(SEQUENCES).data, atari.sample(256).data
    vector = ReplayBuffer(n, ENVS)
    one, many = prepared(()), prepared((ENVS,))
    new = priorities(256)

    def sample() -> Any:  # noqa: ANN401, keys
        return prioritized.sample(256).info.key

    sampled = itertools.cycle([sample() for _ in range(PREPARED)])

    def sample_and_update() -> None:
        batch = prioritized.sample(256)
        batch.importance_weights(0.4)
        prioritized.update_priorities(batch.info.key, new)

    workloads: Workloads = {
        "add one": lambda: uniform.add(next(one)),
        f"add {ENVS}": lambda: vector.add_batch(next(many)),
        "sample and update 256": sample_and_update,
        "update 256 after a sample": (sample, lambda keys: prioritized.update_priorities(keys, new)),
        "update 256 without samples": lambda: prioritized.update_priorities(next(sampled), new),
        f"sequences {SEQUENCES} x {LENGTH}": lambda: sequences.sample(SEQUENCES),
        f"sequences {SEQUENCES} x {LENGTH} into `out`": lambda: sequences.sample(SEQUENCES, out=sequence_out),
        "Atari 256": lambda: atari.sample(256),
        "Atari 256 into `out`": lambda: atari.sample(256, out=atari_out),
    }
    for size in BATCHES:
        out = uniform.sample(size).data
        workloads[f"uniform {size}"] = lambda size=size: uniform.sample(size)
        workloads[f"uniform {size} into `out`"] = lambda size=size, out=out: uniform.sample(size, out=out)
    return workloads


def cpprb_workloads(n: int) -> Workloads:
    """Workloads of cpprb."""
    import cpprb  # noqa: PLC0415, in an environment of its own

    columns = {
        name: {"dtype": column.dtype} | ({"shape": column.shape[1:]} if column.ndim > 1 else {})
        for name, column in steps((1,)).items()
    }
    uniform = cpprb.ReplayBuffer(n, columns)
    prioritized = cpprb.PrioritizedReplayBuffer(n, columns, alpha=0.6)
    uniform.add(**steps((n,)))
    prioritized.add(**steps((n,)), priorities=priorities(n))
    screens = frames(ATARI_STEPS)
    atari = cpprb.ReplayBuffer(ATARI_STEPS, {"obs": {"shape": screens["obs"].shape[1:], "dtype": np.uint8}})
    atari.add(**screens)
    one, many = prepared(()), prepared((ENVS,))
    new = priorities(256)

    def sample() -> Any:  # noqa: ANN401, indexes
        return prioritized.sample(256, beta=0.4)["indexes"]

    sampled = itertools.cycle([sample() for _ in range(PREPARED)])

    def sample_and_update() -> None:
        batch = prioritized.sample(256, beta=0.4)
        prioritized.update_priorities(batch["indexes"], new)

    workloads: Workloads = {
        "add one": lambda: uniform.add(**next(one)),
        f"add {ENVS}": lambda: uniform.add(**next(many)),
        "sample and update 256": sample_and_update,
        "update 256 after a sample": (sample, lambda indexes: prioritized.update_priorities(indexes, new)),
        "update 256 without samples": lambda: prioritized.update_priorities(next(sampled), new),
        "Atari 256": lambda: atari.sample(256),
    }
    for size in BATCHES:
        workloads[f"uniform {size}"] = lambda size=size: uniform.sample(size)
    return workloads


def numpy_workloads(n: int) -> Workloads:
    """`numpy.take` of given rows into given arrays: copying alone."""
    rng = np.random.default_rng(0)

    def taking(columns: dict[str, np.ndarray], shape: tuple[int, ...], length: int = 1) -> Any:  # noqa: ANN401
        """Returns a function that takes `shape[0]` rows, or with a shape `(number, 1)` windows of `length` rows."""
        size = len(next(iter(columns.values())))
        offsets = np.arange(length) if length > 1 else 0
        rows = itertools.cycle([rng.integers(0, size - length + 1, shape) + offsets for _ in range(PREPARED)])
        first = next(rows)
        out = {name: column[first] for name, column in columns.items()}

        def take() -> None:
            chosen = next(rows)
            for name, column in columns.items():
                np.take(column, chosen, axis=0, out=out[name], mode="clip")

        return take

    columns = steps((n,))
    workloads: Workloads = {f"uniform {size} into `out`": taking(columns, (size,)) for size in BATCHES}
    workloads[f"sequences {SEQUENCES} x {LENGTH} into `out`"] = taking(columns, (SEQUENCES, 1), LENGTH)
    workloads["Atari 256 into `out`"] = taking(frames(ATARI_STEPS), (256,))
    return workloads


WORKLOADS = {
    "engram": engram_workloads,
    "cpprb": cpprb_workloads,
    "torchrl": torchrl_workloads,
    "flashbax": flashbax_workloads,
    "numpy": numpy_workloads,
}


def measure(workload: Any, calls: int, clock: Any) -> float:  # noqa: ANN401, a value of `Workloads` and a function
    """Returns the microseconds per call, the median of five parts."""
    parts = []
    for _ in range(5):
        spent = 0.0
        if isinstance(workload, tuple):
            for _ in range(calls // 5):
                argument = workload[0]()
                start = clock()
                workload[1](argument)
                spent += clock() - start
        else:
            start = clock()
            for _ in range(calls // 5):
                workload()
            spent = clock() - start
        parts.append(spent / (calls // 5))
    return 1e6 * sorted(parts)[2]


def main() -> None:
    """Measures all workloads of one engine."""
    engine, n, calls, cores = sys.argv[1], *map(int, sys.argv[2:])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    workloads = WORKLOADS[engine](n)
    figures = {}
    for name, workload in workloads.items():
        # Large batches take a millisecond or more.
        large = name.startswith(("Atari", "sequences", "uniform 4096"))
        if cores == 1:
            figures[name] = measure(workload, calls // 10 if large else calls, time.process_time)
        elif name.startswith("Atari"):
            figures[f"{name}, {cores} cores"] = measure(workload, calls // 10, time.perf_counter)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
