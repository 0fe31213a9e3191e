"""`python -m benchmarks.vector_writer`: compares a `VectorWriter` with a `BatchedWriter` of equal rows and items.

Both write 3-step transitions of environments with 4 numbers per observation and episodes of about 25 steps, as CartPole
with random actions has, into one table. The `BatchedWriter`, or bare writer, receives what the `VectorWriter` computes:
the returns, the discounts and when an episode ends. Its patterns create as many items as a `VectorWriter` in the mode
NEXT_STEP, also at the end of an episode; in SAME_STEP, an episode has one transition more. Each call receives new
arrays, as environments return them. Runs alternate, and the figures are medians.

The first table has the time of calls of the writers alone, the second one that of a step of a whole loop: CartPole in
Gymnasium's `SyncVectorEnv`, random actions and a writer. In the loop the bare writer has less to do: no returns are
computed for it, and in SAME_STEP it stores the first observations of episodes as last ones.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

import engram
from benchmarks import build
from engram.gymnasium import Transitions, VectorWriter
from engram.patterns import end_of_episode

MODES = ("NEXT_STEP", "SAME_STEP")
N_STEP = 3
PREPARED = 256  # distinct steps, which repeat

Arrays = tuple[npt.NDArray[Any], ...]
Results = tuple[Any, Any, Any, Any, Any, dict[str, Any]]
"""Actions, and what a step returns: observations, rewards, terminated, truncated, info."""


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


def bare_writer(store: engram.Store, envs: int) -> engram.BatchedWriter:
    """Returns a bare writer."""
    return store.batched_writer(envs, [pattern(k) for k in range(N_STEP, 0, -1)])


def vector_writer(store: engram.Store, envs: Any, mode: str) -> VectorWriter:  # noqa: ANN401, see `VectorWriter`
    """Returns the writer that is compared with a bare one."""
    return VectorWriter(store, envs, [Transitions("replay", n_step=N_STEP, discount=0.99)], autoreset_mode=mode)


def row(actions: engram.Nest, obs: engram.Nest, rewards: engram.Nest) -> dict[str, Any]:
    """Returns a step of a bare writer."""
    return {"obs": obs, "action": actions, "return": rewards.astype(np.float32), "discount": np.ones(len(obs), "f4")}


def prepare(envs: int) -> list[Arrays]:
    """Returns steps: actions, observations, rewards, terminated. No two in a row end an episode."""
    rng = np.random.default_rng(0)
    steps, ended = [], np.ones(envs, bool)
    for step in range(PREPARED):
        # Nothing ends in the first step (`ended` was True before it), nor in the last one, which the first one follows.
        ended = (rng.random(envs) < 1 / 25) & ~ended & (step < PREPARED - 1)
        steps.append((rng.integers(0, 2, envs), rng.normal(size=(envs, 4)).astype("f4"), np.ones(envs), ended))
    return steps


def results(envs: int, calls: int, mode: str) -> Iterator[Results]:
    """Yields the results of `calls` steps, in new arrays."""
    steps = prepare(envs)
    for call in range(calls):
        actions, obs, rewards, terminated = (array.copy() for array in steps[call % PREPARED])
        info: dict[str, Any] = {}
        if mode == "SAME_STEP" and terminated.any():
            final = np.full(envs, None, object)
            for env in np.flatnonzero(terminated):
                final[env] = obs[env].copy()
            info = {"final_obs": final, "_final_obs": terminated.copy()}
        yield actions, obs, rewards, terminated, np.zeros(envs, bool), info


def time_bare(envs: int, calls: int) -> float:
    """Returns the seconds per call of a bare writer."""
    seconds = 0.0
    with bare_writer(open_store(), envs) as writer:
        writer.append_batch(row(*prepare(envs)[-1][:3]))
        for actions, obs, rewards, ended, _, _ in results(envs, calls, "NEXT_STEP"):
            step = row(actions, obs, rewards)
            start = time.perf_counter()
            writer.append_batch(step, episode_ends=ended)
            seconds += time.perf_counter() - start
    return seconds / calls


def time_vector(envs: int, calls: int, mode: str) -> float:
    """Returns the seconds per call of a `VectorWriter`."""
    seconds = 0.0
    with vector_writer(open_store(), envs, mode) as writer:
        writer.reset(prepare(envs)[-1][1])
        for step in results(envs, calls, mode):
            start = time.perf_counter()
            writer.step(*step)
            seconds += time.perf_counter() - start
    return seconds / calls


def time_loop(envs: int, calls: int, mode: str, *, bare: bool) -> float:
    """Returns the seconds per step of a loop with CartPole, with a bare writer or a `VectorWriter`."""
    kwargs = {"autoreset_mode": {"NEXT_STEP": "NextStep", "SAME_STEP": "SameStep"}[mode]}
    vector_env = gymnasium.make_vec("CartPole-v1", envs, vectorization_mode="sync", vector_kwargs=kwargs)
    vector_env.action_space.seed(0)
    obs, _ = vector_env.reset(seed=0)
    with bare_writer(open_store(), envs) if bare else vector_writer(open_store(), vector_env, mode) as writer:
        if isinstance(writer, VectorWriter):
            writer.reset(obs)
        else:
            writer.append_batch(row(np.zeros(envs, int), obs, np.zeros(envs)))
        start = time.perf_counter()
        for _ in range(calls):
            actions = vector_env.action_space.sample()
            obs, rewards, terminated, truncated, info = vector_env.step(actions)
            if isinstance(writer, VectorWriter):
                writer.step(actions, obs, rewards, terminated, truncated, info)
            else:
                writer.append_batch(row(actions, obs, rewards), episode_ends=terminated | truncated)
        return (time.perf_counter() - start) / calls


def print_row(envs: int, runs: int, baselines: list[Callable[[], float]], measured: list[Callable[[], float]]) -> None:
    """Prints medians of alternating runs, and the ratio of each baseline to what is measured."""
    seconds = [[(first(), second()) for first, second in zip(baselines, measured, strict=True)] for _ in range(runs)]
    cells = []
    for pairs in zip(*seconds, strict=True):
        baseline, own = (1e6 * statistics.median(run) for run in zip(*pairs, strict=True))
        ratio = statistics.median(first / second for first, second in pairs)
        cells.append(f"{own:.1f} us, {baseline:.1f} us ({ratio:.2f}x)")
    print(f"| {envs} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints two tables of microseconds: of a `VectorWriter`, of the bare writer, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vector_writer", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="runs of each writer (default: 7)")
    parser.add_argument("--calls", type=int, default=5_000, help="calls per run (default: 5,000)")
    arguments = parser.parse_args()
    build.require_release()
    runs, calls = arguments.runs, arguments.calls
    header = f"{' | '.join(f'{mode}: `VectorWriter`, bare writer' for mode in MODES)} |\n| ---: | ---: | ---: |"
    print(f"| environments, writer alone | {header}")
    for envs in (8, 64, 256):
        measured = [lambda envs=envs, mode=mode: time_vector(envs, calls, mode) for mode in MODES]
        print_row(envs, runs, 2 * [lambda envs=envs: time_bare(envs, calls)], measured)
    print(f"\n| environments, whole loop | {header}")
    for envs in (8, 64, 256):
        loops = [
            [lambda envs=envs, mode=mode, bare=bare: time_loop(envs, calls // 10, mode, bare=bare) for mode in MODES]
            for bare in (True, False)
        ]
        print_row(envs, runs, *loops)


if __name__ == "__main__":
    main()
