"""Stores whose files have every kind of record, and what is in them."""

import shutil

from crash_workload import all_values, steps, words

from engram import Client, Pattern, Server, Store, Table, selectors

QUEUE = "queue"


def tables():
    return [
        Table.queue(QUEUE, max_size=1_000),
        Table("uniform", max_size=30),
        Table("weighted", max_size=30, sampler=selectors.Prioritized(0.7), remover=selectors.MinHeap()),
    ]


def open_sample(path, **options):
    return Store.open(path, tables(), seed=5, **options)


def work(store, first, count):
    """Changes of every kind; the queue gets the numbers from `first` on."""
    with Server(store) as server, Client(server.address) as client, client.writer() as writer:
        # Only what comes from elsewhere has sessions.
        for value in range(first, first + count):
            writer.append(steps(value))
            writer.create_item(QUEUE, num_steps=1)
            writer.flush()
    tags = range(first, first + count)
    with store.pattern_writer([Pattern("uniform", num_steps=3)], chunk_length=2) as writer:
        for tag in tags:
            writer.append(steps(tag))
    with store.writer(history=3, chunk_length=2) as writer:
        for at, tag in enumerate(tags):
            writer.append(steps(tag))
            if at:
                writer.create_item("weighted", 1.0 + at, {"n": writer.history["n"][-2:]})
    keys = store.sample("weighted", 5).info.key
    store.update_priorities("weighted", keys, [2.0] * 5)
    store.delete("uniform", store.sample("uniform", 1).info.key)
    store.create_table(Table("short"))
    store.insert(steps(first), {"short": 1.0})
    store.drop_table("short")


def logged(path):
    """A log and no checkpoint; the log is the newest."""
    with open_sample(path) as store:
        work(store, 0, 8)


def logged_twice(path):
    """Two logs and no checkpoint."""
    logged(path)
    with open_sample(path) as store:
        work(store, 8, 4)


def checkpointed(path):
    """Two checkpoints, and changes after each."""
    with open_sample(path) as store:
        for number in (1, 2):
            work(store, 8 * (number - 1), 8)
            assert store.checkpoint().number == number
        work(store, 16, 4)


def copied(path, to):
    """A copy, so that opening it leaves the first as it was."""
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(path, to)


def state(path):
    """All that is there, the numbers in the queue, and what was said at opening; the directory is left alone."""
    copy = copied(path, path.with_name("state"))
    with open_sample(copy) as store:
        return words(store), all_values(store, QUEUE), store.notes
