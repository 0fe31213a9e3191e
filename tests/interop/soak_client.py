"""Starts processes that write and read with dm-reverb's client; prints their ids, then their exit statuses.

Each process logs the numbers of the items that were confirmed, and of the items that it sampled.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import reverb

TABLES = ("queue", "log")

ROUND = 50
"""Number of items per log entry."""


def step(number):
    """A unique step. The second column depends on the first."""
    return [np.int64(number), np.full(100, number % 1000, np.float32)]


def trajectories(client, start):
    """Writes items of one step each."""
    with client.trajectory_writer(1) as writer:
        while True:
            for number in range(start, start + ROUND):
                writer.append(step(number))
                columns = [column[-1:] for column in writer.history]
                for table in TABLES:
                    writer.create_item(table, 1.0, columns)
            writer.flush()
            start += ROUND
            yield start


def shared(client, start):
    """Writes items in groups of ten that share a chunk."""
    with client.trajectory_writer(10) as writer:
        while True:
            for number in range(start, start + ROUND):
                writer.append(step(number))
                if (number + 1) % 10 == 0:
                    for index in range(-10, 0):
                        columns = [column[index : index + 1 or None] for column in writer.history]
                        for table in TABLES:
                            writer.create_item(table, 1.0, columns)
            writer.flush()
            start += ROUND
            yield start


def single(client, start):
    """Inserts items one by one."""
    while True:
        for number in range(start, start + ROUND):
            client.insert(step(number), dict.fromkeys(TABLES, 1.0))
        start += ROUND
        yield start


def legacy(client, start):
    """Writes items with the legacy writer."""
    with client.writer(1, chunk_length=1, delta_encoded=True) as writer:
        while True:
            for number in range(start, start + ROUND):
                writer.append(step(number))
                for table in TABLES:
                    writer.create_item(table, 1, 1.0)
            writer.flush()
            start += ROUND
            yield start


KINDS = (trajectories, shared, single, legacy)


def sample_numbers(client, table, count):
    """Samples items, checks them, and returns their numbers."""
    numbers = []
    for (sample,) in client.sample(table, count):
        number, rest = sample.data
        np.testing.assert_array_equal(rest, np.full(100, number % 1000, np.float32))
        numbers.append(int(number))
    return numbers


def work(address, log, kind, seconds):
    """Writes items, and reads fewer than it writes. The process of kind 0 only writes, until it is killed."""
    client = reverb.Client(address)
    start = before = (kind + 1) * 10**9
    end = time.monotonic() + seconds
    with Path(log).open("w", encoding="utf-8") as file:
        for now in KINDS[kind % len(KINDS)](client, start):
            entry = {"written": [before, now]}
            if kind > 0:
                entry["sampled"] = sample_numbers(client, "queue", 2 * ROUND // 5)
                sample_numbers(client, "log", 5)
            file.write(json.dumps(entry) + "\n")
            file.flush()
            before = now
            if kind > 0 and time.monotonic() > end:
                return


def main(address, folder, processes, seconds):
    """Forks the processes after the imports, because importing dm-reverb takes seconds."""
    children = []
    for kind in range(int(processes)):
        child = os.fork()
        if child == 0:
            work(address, Path(folder) / f"{kind}.json", kind, float(seconds))
            os._exit(0)
        children.append(child)
    sys.stdout.write(json.dumps(children) + "\n")
    sys.stdout.flush()
    statuses = [os.waitpid(child, 0)[1] for child in reversed(children)]
    sys.stdout.write(json.dumps(statuses[::-1]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
