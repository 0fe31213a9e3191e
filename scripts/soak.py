"""Runs ten client processes that use one server for long; prints the server's memory and every error.

    .venv/bin/python scripts/soak.py --minutes 30

All tables but the queue must have been full once after a sixth of the time. The server's memory in the second sixth is
compared with that in the last sixth: minutes 5 to 10 and 25 to 30 of 30. Exits with 1 if a call failed, if the tables
filled too slowly, or if memory grew by more than 2 %.
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

CAPACITY = 40_000  # items
OBSERVATION = 1_024  # bytes
ALLOWED_GROWTH = 1.02  # memory at the end, divided by that at the beginning

TABLES = [
    engram.Table("uniform", max_size=CAPACITY),
    engram.Table("weighted", max_size=CAPACITY, sampler=engram.selectors.Prioritized(0.6)),
    engram.Table("reset", max_size=CAPACITY),
    engram.Table.queue("queue", max_size=CAPACITY // 10),
]


def serve(address: Connection, stop: Event) -> None:
    """Runs the server alone in its process, whose memory is then the server's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with engram.Server(TABLES) as server:
        address.send(server.address)
        stop.wait()


def step(rng: Generator, envs: int | None = None) -> dict[str, Any]:
    """Returns a step, or a step of `envs` environments; half of it can be compressed."""
    rows = () if envs is None else (envs,)
    observation = np.zeros((*rows, OBSERVATION), np.uint8)
    observation[..., : OBSERVATION // 2] = rng.integers(0, 256, (*rows, OBSERVATION // 2), dtype=np.uint8)
    return {"observation": observation, "reward": rng.random(rows, dtype=np.float32)}


def work_trajectory(client: engram.Client, rng: Generator) -> None:
    """Writes episodes, with items of different lengths."""
    with client.writer(history=8) as writer:
        for _ in range(4):
            length = int(rng.integers(5, 40))
            for index in range(length):
                writer.append(step(rng))
                if index >= 3:
                    writer.create_item("weighted", float(rng.random()) + 0.1, num_steps=int(rng.integers(1, 5)))
            writer.end_episode(timeout=60)


def work_pattern(client: engram.Client, rng: Generator) -> None:
    """Writes transitions with a pattern writer."""
    with client.pattern_writer([engram.Pattern("uniform", num_steps=2)]) as writer:
        for _ in range(200):
            writer.append(step(rng))
        writer.end_episode(timeout=60)


def work_batched(client: engram.Client, rng: Generator) -> None:
    """Writes steps of many environments."""
    with client.batched_writer(16, [engram.Pattern("reset", num_steps=2)]) as writer:
        for _ in range(20):
            writer.append_batch(step(rng, 16), episode_ends=rng.random(16) < 0.05)


def work_queue_in(client: engram.Client, rng: Generator) -> None:
    """Inserts single items into a queue that other clients empty."""
    for _ in range(20):
        client.insert(step(rng), {"queue": 1.0}, timeout=60)


def work_queue_out(client: engram.Client, rng: Generator) -> None:
    """Reads batches from a queue, each of which must be full, then a sample of up to three items."""
    with engram.Dataset(client, "queue", 5, prefetch=3, max_batches=int(rng.integers(1, 20)), timeout=0.5) as batches:
        for batch in batches:
            if len(batch) != 5:
                raise RuntimeError(f"{len(batch)} items of 5")
    with contextlib.suppress(DeadlineExceededError):  # the queue may be empty
        client.sample("queue", 3, timeout=0.2, partial=True)


def work_sample(client: engram.Client, rng: Generator) -> None:
    """Samples batches of many sizes."""
    for table in ("uniform", "reset"):
        for _ in range(5):
            try:
                client.sample(table, int(rng.integers(1, 300)), timeout=5 if table == "reset" else 60, pad=True)
            except DeadlineExceededError:
                if table != "reset":  # another client may just have emptied it
                    raise


def work_dataset(client: engram.Client, rng: Generator) -> None:
    """A learner: reads batches, updates priorities, deletes some items."""
    with engram.Dataset(client, "weighted", 128, max_batches=20, timeout=5, pad=True) as batches:
        for batch in batches:
            keys = batch.info.key
            client.update_priorities("weighted", keys, rng.random(len(keys)) + 0.1)
            client.delete("weighted", keys[: len(keys) // 16])


def work_manage(client: engram.Client, rng: Generator) -> None:
    """Rare calls: `info`, resetting, creating and dropping tables."""
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
    """Repeats one kind of work until the time `end` or 20 errors, over a new connection every few seconds."""
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
        except Exception:  # noqa: BLE001, every error is reported
            errors.append(f"{work.__name__}: {traceback.format_exc()}")
    report.put((work.__name__, calls, errors))


def resident(pid: int | None) -> int:
    """Returns the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def watch(pid: int | None, address: str, began: float, minutes: float) -> tuple[list[tuple[float, int]], float]:
    """Samples the server's memory once a second.

    Returns the samples, each with its time, and the time at which all tables but the queue had been full once. Times
    are fractions of the whole run.
    """
    samples, reported, full_at, not_full = [], -1.0, 1.0, {"uniform", "weighted", "reset"}
    with engram.Client(address) as client:
        while (now := (time.monotonic() - began) / (60 * minutes)) < 1:
            samples.append((now, resident(pid)))
            if not_full or now - reported >= 1 / 30:
                sizes = {name: info.size for name, info in client.info().items()}
                if not_full and not (not_full := {name for name in not_full if sizes[name] < CAPACITY}):
                    full_at = now
            if now - reported >= 1 / 30:
                reported = now
                print(f"{now * minutes:6.1f} min  {samples[-1][1] / 2**20:8.1f} MiB  {sizes}", flush=True)
            time.sleep(1)
    return samples, full_at


def median(samples: list[tuple[float, int]], low: float, high: float) -> float:
    """Returns the median memory in MiB between two times."""
    return statistics.median(size for fraction, size in samples if low <= fraction <= high) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    minutes = parser.parse_args().minutes
    spawn = mp.get_context("spawn")
    address_in, address_out = spawn.Pipe()
    stop, report = spawn.Event(), spawn.Queue()
    # Daemon processes end with this one.
    server = spawn.Process(target=serve, args=(address_out, stop), daemon=True)
    server.start()
    address_out.close()
    address = address_in.recv()
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
    print("tables at the end (items, items on lease):", sizes)
    errors = [error for *_, found in reports for error in found]
    for error in errors:
        print(error)
    early, late = median(samples, 1 / 6, 2 / 6), median(samples, 5 / 6, 1)
    print(f"errors: {len(errors)}")
    print(
        f"all tables but the queue had been full after minute {full_at * minutes:.1f} of {minutes:g}, "
        f"expected at most {minutes / 6:.1f}"
    )
    print(
        f"server memory: {early:.1f} MiB (median of minutes {minutes / 6:.1f} to {minutes / 3:.1f}), "
        f"{late:.1f} MiB ({minutes * 5 / 6:.1f} to {minutes:.1f}), ratio {late / early:.4f}"
    )
    return 1 if errors or full_at > 1 / 6 or late > ALLOWED_GROWTH * early else 0


if __name__ == "__main__":
    sys.exit(main())
