"""What the workloads of replay buffers store: small transitions, and frames of Atari games."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

BATCHES = (32, 256, 4096)
ENVS = 64
SEQUENCES, LENGTH = 64, 80  # sequences of a batch, and their steps
ATARI_STEPS = 20_000
PREPARED = 64  # distinct arguments of a workload, which repeat
Workloads = dict[str, Callable[[], object] | tuple[Callable[[], Any], Callable[[Any], object]]]
"""Calls to measure; of a pair, only the second one, which is given the result of the first."""


def steps(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random transitions with these leading axes: 42 bytes each, without alignment."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((*shape, 4), np.float32),
        "next_obs": rng.standard_normal((*shape, 4), np.float32),
        "action": rng.integers(0, 4, shape),
        "reward": rng.standard_normal(shape, np.float32),
        "terminated": rng.random(shape) < 0.01,
        "truncated": np.zeros(shape, bool),
    }


def frames(n: int) -> dict[str, np.ndarray]:
    """`n` observations of an Atari game: four noisy screens, 28 kB."""
    return {"obs": np.random.default_rng(0).integers(0, 256, (n, 84, 84, 4), np.uint8)}


def prepared(shape: tuple[int, ...]) -> Any:  # noqa: ANN401, an iterator of steps
    """Repeats distinct steps with these leading axes without end."""
    columns = steps((PREPARED, *shape))
    return itertools.cycle([{name: column[i] for name, column in columns.items()} for i in range(PREPARED)])


def priorities(n: int) -> np.ndarray:
    """Unequal priorities."""
    return np.random.default_rng(1).random(n) + 0.1
