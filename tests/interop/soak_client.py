"""Writers and readers that use dm-reverb's client, each a process: says which, and what became of them.

Each keeps a diary: items that it knows to be in, and items that it was given.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import reverb

TABLES = ("queue", "log")

# Items between two entries of the diary.
ROUND = 50


def step(number):
    """A step that can be told from all others, and whose parts belong together."""
    return [np.int64(number), np.full(100, number % 1000, np.float32)]


def trajectories(client, start):
    """Items of one step each, as they are made."""
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
    """Items that share chunks, ten at a time."""
    with client.trajectory_writer(10) as writer:
        while True:
            for number in range(start, start + ROUND):
                writer.append(step(number))
                if (number + 1) % 10 == 0:
                    for at in range(-10, 0):
                        columns = [column[at : at + 1 or None] for column in writer.history]
                        for table in TABLES:
                            writer.create_item(table, 1.0, columns)
            writer.flush()
            start += ROUND
            yield start


def single(client, start):
    """Items each of which waits for the one before."""
    while True:
        for number in range(start, start + ROUND):
            client.insert(step(number), dict.fromkeys(TABLES, 1.0))
        start += ROUND
        yield start


def legacy(client, start):
    """Items of the old writer."""
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


def given(client, table, count):
    """The numbers of some items, each checked."""
    numbers = []
    for (sample,) in client.sample(table, count):
        number, rest = sample.data
        np.testing.assert_array_equal(rest, np.full(100, number % 1000, np.float32))
        numbers.append(int(number))
    return numbers


def work(address, diary, kind, seconds):
    """Writes, and reads less than it writes. The first only writes, for ever."""
    client = reverb.Client(address)
    start = before = (kind + 1) * 10**9
    end = time.monotonic() + seconds
    with Path(diary).open("w", encoding="utf-8") as book:
        for now in KINDS[kind % len(KINDS)](client, start):
            entry = {"wrote": [before, now]}
            if kind > 0:
                entry["given"] = given(client, "queue", 2 * ROUND // 5)
                given(client, "log", 5)
            book.write(json.dumps(entry) + "\n")
            book.flush()
            before = now
            if kind > 0 and time.monotonic() > end:
                return


def main(address, folder, processes, seconds):
    """Starts them together: dm-reverb takes seconds to import."""
    children = []
    for kind in range(int(processes)):
        child = os.fork()
        if child == 0:
            work(address, Path(folder) / f"{kind}.json", kind, float(seconds))
            os._exit(0)
        children.append(child)
    sys.stdout.write(json.dumps(children) + "\n")
    sys.stdout.flush()
    ends = [os.waitpid(child, 0)[1] for child in reversed(children)]
    sys.stdout.write(json.dumps(ends[::-1]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
