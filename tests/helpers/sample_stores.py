"""Stores for tests that damage files. Their logs and checkpoints have records of every kind except `unlogged`."""

import shutil
from pathlib import Path
from typing import NamedTuple

from engram import Client, Pattern, Server, Store, Table, selectors
from helpers.crash_workload import all_values, steps, table_states

QUEUE = "queue"


class State(NamedTuple):
    """What opening a store shows: the state of its tables, the numbers in the queue, and the store's notes."""

    tables: dict[str, object]
    queue: list[int]
    notes: tuple[str, ...]


class SampleStore(NamedTuple):
    """The directory of a store, and its state."""

    path: Path
    state: State


def tables():
    return [
        Table.queue(QUEUE, max_size=1_000),
        Table("uniform", max_size=30),
        Table("weighted", max_size=30, sampler=selectors.Prioritized(0.7), remover=selectors.MinHeap()),
    ]


def open_sample(path, **options):
    return Store.open(path, tables(), seed=5, **options)


def make_changes(store, first, count):
    """Makes changes of every kind; inserts the `count` numbers from `first` on into the queue."""
    numbers = range(first, first + count)
    with Server(store) as server, Client(server.address) as client, client.writer() as writer:
        # Only remote writers have sessions.
        for number in numbers:
            writer.append(steps(number))
            writer.create_item(QUEUE, num_steps=1)
            writer.flush()
    with store.pattern_writer([Pattern("uniform", num_steps=3)], chunk_length=2) as writer:
        for number in numbers:
            writer.append(steps(number))
    with store.writer(history=3, chunk_length=2) as writer:
        for index, number in enumerate(numbers):
            writer.append(steps(number))
            if index:
                writer.create_item("weighted", 1.0 + index, {"n": writer.history["n"][-2:]})
    keys = store.sample("weighted", 5).info.key
    store.update_priorities("weighted", keys, [2.0] * 5)
    store.delete("uniform", store.sample("uniform", 1).info.key)
    store.create_table(Table("short"))
    store.insert(steps(first), {"short": 1.0})
    store.drop_table("short")


def logged(path):
    """Makes a store with one log and no checkpoint."""
    with open_sample(path) as store:
        make_changes(store, 0, 8)


def logged_twice(path):
    """Makes a store with two logs and no checkpoint."""
    logged(path)
    with open_sample(path) as store:
        make_changes(store, 8, 4)


def checkpointed(path):
    """Makes a store with two checkpoints, and changes after each."""
    with open_sample(path) as store:
        for number in (1, 2):
            make_changes(store, 8 * (number - 1), 8)
            assert store.checkpoint().number == number
        make_changes(store, 16, 4)


def copied(path, to):
    """Copies a store's directory, so that opening the copy leaves the original unchanged."""
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(path, to)


def state(path):
    """Opens a copy of the directory; returns its `State`."""
    copy = copied(path, path.with_name("state"))
    with open_sample(copy) as store:
        return State(table_states(store), all_values(store, QUEUE), store.notes)
