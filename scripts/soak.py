"""Ten processes work on one server for a while; prints its memory and every error.

    .venv/bin/python scripts/soak.py --minutes 30

The tables are full after a sixth of the time. The server's memory in the sixth part from there on is
compared with that in the last sixth: minutes 5 to 10 and 25 to 30 of 30. Ends with 1 where anything failed, where
the tables filled too slowly, or where memory grew by more than 2 %.
"""

import argparse
import contextlib
import multiprocessing as mp
import os
import signal
import statistics
import sys
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

import engram
from engram.errors import DeadlineExceededError

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

CAPACITY = 40_000
OBSERVATION = 1_024  # bytes
ALLOWED = 1.02

TABLES = [
    engram.Table("uniform", max_size=CAPACITY),
    engram.Table("weighted", max_size=CAPACITY, sampler=engram.selectors.Prioritized(0.6)),
    engram.Table("reset", max_size=CAPACITY),
    engram.Table.queue("queue", max_size=CAPACITY // 10),
]


def serve(address: Connection, stop: Event) -> None:
    """The server, alone in its process: its memory is the process's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with engram.Server(TABLES) as server:
        address.send(server.address)
        stop.wait()


def step(rng: Generator, envs: int | None = None) -> dict[str, Any]:
    """A step, or one of many environments: half of it compresses."""
    rows = () if envs is None else (envs,)
    observation = np.zeros((*rows, OBSERVATION), np.uint8)
    observation[..., : OBSERVATION // 2] = rng.integers(0, 256, (*rows, OBSERVATION // 2), dtype=np.uint8)
    return {"observation": observation, "reward": rng.random(rows, dtype=np.float32)}


def work_trajectory(client: engram.Client, rng: Generator) -> None:
    """Episodes of single steps, as items of different lengths."""
    with client.writer(history=8) as writer:
        for _ in range(4):
            length = int(rng.integers(5, 40))
            for at in range(length):
                writer.append(step(rng))
                if at >= 3:
                    writer.create_item("weighted", float(rng.random()) + 0.1, num_steps=int(rng.integers(1, 5)))
            writer.end_episode(timeout=60)


def work_pattern(client: engram.Client, rng: Generator) -> None:
    """Transitions, made by a pattern."""
    with client.pattern_writer([engram.Pattern("uniform", num_steps=2)]) as writer:
        for _ in range(200):
            writer.append(step(rng))
        writer.end_episode(timeout=60)


def work_batched(client: engram.Client, rng: Generator) -> None:
    """Steps of many environments."""
    with client.batched_writer(16, [engram.Pattern("reset", num_steps=2)]) as writer:
        for _ in range(20):
            writer.append_batch(step(rng, 16), episode_ends=rng.random(16) < 0.05)


def work_queue_in(client: engram.Client, rng: Generator) -> None:
    """Single inserts into a queue that others empty."""
    for _ in range(20):
        client.insert(step(rng), {"queue": 1.0}, timeout=60)


def work_queue_out(client: engram.Client, rng: Generator) -> None:
    """Batches of a queue, each item once; what is left over stays for the next."""
    with engram.Dataset(client, "queue", 5, prefetch=3, max_batches=int(rng.integers(1, 20)), timeout=0.5) as batches:
        for batch in batches:
            if len(batch) != 5:
                raise RuntimeError(f"{len(batch)} items of 5")
    with contextlib.suppress(DeadlineExceededError):  # there may be nothing
        client.sample("queue", 3, timeout=0.2, partial=True)


def work_sample(client: engram.Client, rng: Generator) -> None:
    """Single samples of all sizes."""
    for table in ("uniform", "reset"):
        for _ in range(5):
            try:
                client.sample(table, int(rng.integers(1, 300)), timeout=5 if table == "reset" else 60, pad=True)
            except DeadlineExceededError:
                if table != "reset":  # that one may just have been emptied
                    raise


def work_dataset(client: engram.Client, rng: Generator) -> None:
    """A learner: batches, priorities back, some items deleted."""
    with engram.Dataset(client, "weighted", 128, max_batches=20, timeout=5, pad=True) as batches:
        for batch in batches:
            keys = batch.info.key
            client.update_priorities("weighted", keys, rng.random(len(keys)) + 0.1)
            client.delete("weighted", keys[: len(keys) // 16])


def work_manage(client: engram.Client, rng: Generator) -> None:
    """What is done once in a while, the reset of a table among it."""
    client.info()
    time.sleep(0.2)
    if rng.random() < 0.02:
        client.reset("reset")
    if rng.random() < 0.1:
        name = f"short-{rng.integers(1 << 60)}"
        client.create_table(engram.Table(name))
        client.insert(step(rng), {name: 1.0}, timeout=60)
        client.sample(name, 4, timeout=60)
        client.drop_table(name)


WORK = [
    work_trajectory,
    work_trajectory,
    work_pattern,
    work_batched,
    work_queue_in,
    work_queue_out,
    work_sample,
    work_dataset,
    work_dataset,
    work_manage,
]


def client_process(number: int, address: str, end: float, report: "Queue[Any]") -> None:
    """Does one kind of work again and again, each few seconds over a new connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work, rng = WORK[number], np.random.default_rng(number)
    calls, errors = 0, list[str]()
    while time.monotonic() < end and len(errors) < 20:
        try:
            with engram.Client(address) as client:
                until = min(end, time.monotonic() + rng.uniform(2, 10))
                while time.monotonic() < until:
                    work(client, rng)
                    calls += 1
        except Exception:  # noqa: BLE001, all of them are to be seen
            errors.append(f"{work.__name__}: {traceback.format_exc()}")
    report.put((work.__name__, calls, errors))


def resident(pid: int | None) -> int:
    """Bytes of memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def watch(pid: int | None, address: str, began: float, minutes: float) -> tuple[list[tuple[float, int]], float]:
    """Samples the server's memory once a second; returns it with the times, in parts of the whole.

    And when all tables had been full once.
    """
    samples, told, full_at, empty = [], -1.0, 1.0, {"uniform", "weighted", "reset"}
    with engram.Client(address) as client:
        while (part := (time.monotonic() - began) / (60 * minutes)) < 1:
            samples.append((part, resident(pid)))
            if empty or part - told >= 1 / 30:
                sizes = {name: info.size for name, info in client.info().items()}
                if empty and not (empty := {name for name in empty if sizes[name] < CAPACITY}):
                    full_at = part
            if part - told >= 1 / 30:
                told = part
                print(f"{part * minutes:6.1f} min  {samples[-1][1] / 2**20:8.1f} MiB  {sizes}", flush=True)
            time.sleep(1)
    return samples, full_at


def median(samples: list[tuple[float, int]], low: float, high: float) -> float:
    """MiB of memory between two parts of the time."""
    return statistics.median(size for part, size in samples if low <= part <= high) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    minutes = parser.parse_args().minutes
    spawn = mp.get_context("spawn")
    near, far = spawn.Pipe()
    stop, report = spawn.Event(), spawn.Queue()
    # Daemons end with us, whatever goes wrong.
    server = spawn.Process(target=serve, args=(far, stop), daemon=True)
    server.start()
    far.close()
    address = near.recv()
    began = time.monotonic()
    end = began + 60 * minutes
    clients = [
        spawn.Process(target=client_process, args=(n, address, end, report), daemon=True) for n in range(len(WORK))
    ]
    for process in clients:
        process.start()
    samples, full_at = watch(server.pid, address, began, minutes)
    reports = [report.get(timeout=120) for _ in clients]
    for process in clients:
        process.join()
    with engram.Client(address) as client:
        sizes = {name: (info.size, info.leased_out) for name, info in client.info().items()}
    stop.set()
    server.join()

    print("calls:", dict(sum((Counter({name: calls}) for name, calls, _ in reports), Counter())))
    print("tables at the end (items, on lease):", sizes)
    errors = [error for *_, found in reports for error in found]
    for error in errors:
        print(error)
    early, late = median(samples, 1 / 6, 2 / 6), median(samples, 5 / 6, 1)
    print(f"errors: {len(errors)}")
    print(f"all tables were full by minute {full_at * minutes:.1f} of {minutes:g}, {minutes / 6:.1f} are allowed")
    print(
        f"server memory: {early:.1f} MiB (median of minutes {minutes / 6:.1f} to {minutes / 3:.1f}), "
        f"{late:.1f} MiB ({minutes * 5 / 6:.1f} to {minutes:.1f}), ratio {late / early:.4f}"
    )
    return 1 if errors or full_at > 1 / 6 or late > ALLOWED * early else 0


if __name__ == "__main__":
    sys.exit(main())
