"""`python -m benchmarks.bulk_insert`: the rates of inserting recorded steps in one call, and step by step.

The steps are small: an observation of 4 numbers, an action and a reward. Writers create items of two steps, and
`insert_batch` inserts transitions, whose `next_obs` repeats `obs`: only its size matters here. The steps are one long
episodes, or those of several environments; they are inserted into an empty table, in process and on a server in a
process of its own. Rates are medians of the steps per second until all items are in the table, and, in parentheses, per
second of processor time of this process, which depends less on what else the machine does.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np

import engram
from benchmarks import build

if TYPE_CHECKING:
    from collections.abc import Iterator

Steps = dict[str, np.ndarray]
Insert = Callable[[engram.Store | engram.Client, Steps], None]

PATTERN = engram.Pattern("replay", num_steps=2)
EPISODES = 1_000
ENVS = 8


def prepare(*leading_shape: int) -> Steps:
    """Returns random steps `[*leading_shape, ...]`."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((*leading_shape, 4)).astype(np.float32),
        "action": rng.integers(0, 2, leading_shape),
        "reward": rng.random(leading_shape).astype(np.float32),
    }


def split(steps: Steps) -> list[Steps]:
    """Splits steps along their first axis."""
    return [{name: column[row] for name, column in steps.items()} for row in range(len(steps["obs"]))]


def insert_batch(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Inserts transitions; `next_obs` repeats `obs`, since only its size matters."""
    store.insert_batch("replay", steps | {"next_obs": steps["obs"]})


def append_steps(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Writes one episode in one call."""
    with store.pattern_writer([PATTERN]) as writer:
        writer.append_steps(steps)


def append(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Writes one episode step by step."""
    with store.pattern_writer([PATTERN]) as writer:
        for step in split(steps):
            writer.append(step)


def append_episodes(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Writes episodes, each in one call."""
    with store.pattern_writer([PATTERN]) as writer:
        for episode in split(steps):
            writer.append_steps(episode)
            writer.end_episode()


def append_episodes_by_step(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Writes episodes step by step."""
    with store.pattern_writer([PATTERN]) as writer:
        for episode in split(steps):
            for step in split(episode):
                writer.append(step)
            writer.end_episode()


def append_envs(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Writes the steps of several environments in one call."""
    with store.batched_writer(ENVS, [PATTERN]) as writer:
        writer.append_steps(steps)


def append_batches(store: engram.Store | engram.Client, steps: Steps) -> None:
    """Writes the steps of several environments, one step of each at a time."""
    with store.batched_writer(ENVS, [PATTERN]) as writer:
        for step in range(steps["obs"].shape[1]):
            writer.append_batch({name: column[:, step] for name, column in steps.items()})


def serve(connection: Connection) -> None:
    """Serves an empty table until the other process closes `connection`; sends the server's address to it."""
    with engram.Server([table()]) as server:
        connection.send(server.address)
        try:
            connection.recv()
        except EOFError:
            return


def table() -> engram.Table:
    """Returns the table."""
    return engram.Table("replay", max_size=10_000_000)


@contextmanager
def open_store(*, remote: bool) -> "Iterator[engram.Store | engram.Client]":
    """Opens an empty table in this process or in another one."""
    if not remote:
        with engram.Store([table()], seed=0) as store:
            yield store
        return
    parent_end, child_end = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(child_end,))
    process.start()
    child_end.close()
    try:
        with engram.Client(parent_end.recv()) as client:
            client.info()
            yield client
    finally:
        parent_end.close()
        process.join()


def measure(insert: Insert, steps: Steps, runs: int, *, remote: bool) -> str:
    """Returns the rates per second and per second of processor time, as text."""
    count = steps["reward"].size
    rates = []
    for _ in range(runs):
        with open_store(remote=remote) as store:
            wall_begin, cpu_begin = time.perf_counter(), time.process_time()
            insert(store, steps)
            wall, cpu = time.perf_counter() - wall_begin, time.process_time() - cpu_begin
            rates.append((count / wall, count / cpu))
    per_second, per_cpu_second = (statistics.median(rate) for rate in zip(*rates, strict=True))
    return f"{per_second / 1e6:.2f} M/s ({per_cpu_second / 1e6:.2f})"


def main() -> None:
    """Prints a table of rates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk_insert", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="runs of each call (default: 7)")
    parser.add_argument(
        "--steps", type=int, default=200_000, help="steps per run, a multiple of 1,000 (default: 200,000)"
    )
    arguments = parser.parse_args()
    build.require_release()
    shapes: dict[str, tuple[tuple[int, ...], list[tuple[str, Insert]]]] = {
        "transitions": ((arguments.steps,), [("`insert_batch`", insert_batch)]),
        "one episode": ((arguments.steps,), [("`append_steps`", append_steps), ("`append`", append)]),
        f"{EPISODES:,} episodes": (
            (EPISODES, arguments.steps // EPISODES),
            [("`append_steps`", append_episodes), ("`append`", append_episodes_by_step)],
        ),
        f"{ENVS} environments": (
            (ENVS, arguments.steps // ENVS),
            [("`append_steps`", append_envs), ("`append_batch`", append_batches)],
        ),
    }
    print(f"{arguments.steps:,} steps, {os.cpu_count()} processors")
    print("| steps | call | in process | to a server |")
    print("| --- | --- | ---: | ---: |")
    for name, (leading_shape, inserts) in shapes.items():
        steps = prepare(*leading_shape)
        for call, insert in inserts:
            rates = [measure(insert, steps, arguments.runs, remote=remote) for remote in (False, True)]
            print(f"| {name} | {call} | {' | '.join(rates)} |", flush=True)


if __name__ == "__main__":
    main()
