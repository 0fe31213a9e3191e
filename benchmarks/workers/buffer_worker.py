"""Measures one kind of replay buffer in process: `python -m benchmarks.workers.buffer_worker ENGINE STEPS CALLS`.

Prints a JSON object with the microseconds of processor time per call of each workload. The steps are small transitions:
two observations of 4 float32, an action, a reward and two flags.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BATCHES = (32, 256, 4096)
ENVS = 64
PREPARED = 64  # distinct arguments of a workload, which repeat
Workloads = dict[str, Callable[[], object] | tuple[Callable[[], Any], Callable[[Any], object]]]
"""Calls to measure; of a pair, only the second one, which is given the result of the first."""


def steps(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random steps with these leading axes."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((*shape, 4), np.float32),
        "next_obs": rng.standard_normal((*shape, 4), np.float32),
        "action": rng.integers(0, 4, shape),
        "reward": rng.standard_normal(shape, np.float32),
        "terminated": rng.random(shape) < 0.01,
        "truncated": np.zeros(shape, bool),
    }


def prepared(shape: tuple[int, ...]) -> Any:  # noqa: ANN401, an iterator of steps
    """Repeats distinct steps with these leading axes without end."""
    columns = steps((PREPARED, *shape))
    return itertools.cycle([{name: column[i] for name, column in columns.items()} for i in range(PREPARED)])


def priorities(n: int) -> np.ndarray:
    """Unequal priorities."""
    return np.random.default_rng(1).random(n) + 0.1


def engram_workloads(n: int) -> Workloads:
    """Workloads of `engram.buffers`."""
    from engram import selectors  # noqa: PLC0415, the peers' environments do not have it
    from engram.buffers import ReplayBuffer  # noqa: PLC0415

    uniform = ReplayBuffer(n, seed=0)
    prioritized = ReplayBuffer(n, sampler=selectors.Prioritized(0.6), seed=0)
    for buffer in (uniform, prioritized):
        buffer.add_steps({name: column[None] for name, column in steps((n,)).items()})
    for batch in prioritized.epoch(4096):
        prioritized.update_priorities(batch.info.key, priorities(len(batch)))
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
    }
    for size in BATCHES:
        workloads[f"uniform {size}"] = lambda size=size: uniform.sample(size)
    return workloads


def numpy_workloads(n: int) -> Workloads:
    """`numpy.take` of given rows into given arrays: copying alone."""
    columns = steps((n,))
    rng = np.random.default_rng(0)
    workloads: Workloads = {}
    for size in BATCHES:
        rows = itertools.cycle([rng.integers(0, n, size) for _ in range(PREPARED)])
        out = {name: column[:size].copy() for name, column in columns.items()}

        def take(rows: Any = rows, out: Any = out) -> None:  # noqa: ANN401, an iterator and arrays
            chosen = next(rows)
            for name, column in columns.items():
                np.take(column, chosen, axis=0, out=out[name], mode="clip")

        workloads[f"uniform {size} into `out`"] = take
    return workloads


WORKLOADS = {"engram": engram_workloads, "cpprb": cpprb_workloads, "numpy": numpy_workloads}


def measure(workload: Any, calls: int) -> float:  # noqa: ANN401, a value of `Workloads`
    """Returns the microseconds of processor time per call, the median of five parts."""
    parts = []
    for _ in range(5):
        spent = 0.0
        if isinstance(workload, tuple):
            for _ in range(calls // 5):
                argument = workload[0]()
                start = time.process_time()
                workload[1](argument)
                spent += time.process_time() - start
        else:
            start = time.process_time()
            for _ in range(calls // 5):
                workload()
            spent = time.process_time() - start
        parts.append(spent / (calls // 5))
    return 1e6 * sorted(parts)[2]


def main() -> None:
    """Measures all workloads of one engine."""
    engine, n, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    workloads = WORKLOADS[engine](n)
    print(json.dumps({name: measure(workload, calls) for name, workload in workloads.items()}))


if __name__ == "__main__":
    main()
