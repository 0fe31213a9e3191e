"""`python -m benchmarks.vector_writer`: compares a `VectorWriter` with a `BatchedWriter` of equal rows and items.

Both write 3-step transitions of environments with 4 numbers per observation and episodes of about 25 steps, as CartPole
with random actions has, into one table. The `BatchedWriter`, or bare writer, receives what the `VectorWriter` computes:
the returns, the discounts and when an episode ends. Its patterns create as many items as a `VectorWriter` in the mode
NEXT_STEP, also at the end of an episode; in SAME_STEP, an episode has one transition more. The environments are not
stepped: their results are prepared. Runs alternate, and the figures are medians of processor time, which depends less
on what else the machine does.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import engram
from engram.gymnasium import Transitions, VectorWriter
from engram.patterns import end_of_episode

N_STEP = 3
PREPARED = 256  # distinct steps, which repeat


def open_store() -> engram.Store:
    """Returns a store with an empty table."""
    return engram.Store([engram.Table("replay", max_size=100_000)], seed=0)


def pattern(k: int) -> engram.Pattern:
    """Returns the pattern of transitions over `k` steps; those shorter than `N_STEP` are at the end of an episode."""
    return engram.Pattern(
        "replay",
        lambda s: {
            "obs": s["obs"][-k - 1],
            "action": s["action"][-k],
            "reward": s["return"][-1],
            "discount": s["discount"][-1],
            "next_obs": s["obs"][-1],
        },
        when=[] if k == N_STEP else [end_of_episode()],
    )


def prepare(envs: int) -> list[tuple[np.ndarray, ...]]:
    """Returns steps: actions, observations, rewards, terminated, truncated. No two in a row end an episode."""
    rng = np.random.default_rng(0)
    steps, ended = [], np.ones(envs, bool)
    for step in range(PREPARED):
        # Nothing ends in the first step (`ended` was True before it), nor in the last one, which the first one follows.
        ended = (rng.random(envs) < 1 / 25) & ~ended & (step < PREPARED - 1)
        obs = rng.normal(size=(envs, 4)).astype(np.float32)
        steps.append((rng.integers(0, 2, envs), obs, np.ones(envs), ended, np.zeros(envs, bool)))
    return steps


def time_bare(envs: int, calls: int) -> float:
    """Returns the seconds per call of a bare writer."""
    rows = [
        (
            {
                "obs": obs,
                "action": actions,
                "return": rewards.astype(np.float32),
                "discount": rewards.astype(np.float32),
            },
            ended,
        )
        for actions, obs, rewards, ended, _ in prepare(envs)
    ]
    store = open_store()
    with store.batched_writer(envs, [pattern(k) for k in range(N_STEP, 0, -1)]) as writer:
        writer.append_batch(rows[0][0])
        start = time.process_time()
        for call in range(calls):
            row, ended = rows[call % PREPARED]
            writer.append_batch(row, episode_ends=ended)
        return (time.process_time() - start) / calls


def time_vector(envs: int, calls: int, mode: str) -> float:
    """Returns the seconds per call of a `VectorWriter`."""
    steps = []
    for step in prepare(envs):
        final = np.full(envs, None, object)
        for env in np.flatnonzero(step[3]):
            final[env] = step[1][env]
        steps.append(
            (*step, {"final_obs": final, "_final_obs": step[3]} if mode == "SAME_STEP" and step[3].any() else {})
        )
    store = open_store()
    with VectorWriter(
        store, envs, [Transitions("replay", n_step=N_STEP, discount=0.99)], autoreset_mode=mode
    ) as writer:
        writer.reset(steps[-1][1])
        writer.step(*steps[-1])
        start = time.process_time()
        for call in range(calls):
            writer.step(*steps[call % PREPARED])
        return (time.process_time() - start) / calls


def main() -> None:
    """Prints a table of microseconds per call and of ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vector_writer", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="runs of each writer (default: 7)")
    parser.add_argument("--calls", type=int, default=10_000, help="calls per run (default: 10,000)")
    arguments = parser.parse_args()
    print("| environments | bare writer | NEXT_STEP | SAME_STEP |")
    print("| ---: | ---: | ---: | ---: |")
    for envs in (8, 64, 256):
        writers: list[Callable[[], float]] = [
            lambda envs=envs: time_bare(envs, arguments.calls),
            *(
                lambda envs=envs, mode=mode: time_vector(envs, arguments.calls, mode)
                for mode in ("NEXT_STEP", "SAME_STEP")
            ),
        ]
        runs = [[measure() for measure in writers] for _ in range(arguments.runs)]
        bare, *vector = (1e6 * statistics.median(run) for run in zip(*runs, strict=True))
        ratios = [statistics.median(run[0] / run[number] for run in runs) for number in (1, 2)]
        cells = (f"{us:.1f} us ({ratio:.2f}x)" for us, ratio in zip(vector, ratios, strict=True))
        print(f"| {envs} | {bare:.1f} us | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
