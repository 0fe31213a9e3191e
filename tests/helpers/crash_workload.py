"""The workload of a store that is killed: its tables, and the calls that change them.

An operation is one call or several, which depend only on a seed, the operation's number and the state of the tables, so
that the same calls can be made on another store in the same state. Other threads insert a stream of items, use a queue,
and write checkpoints at the same time.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from engram import Client, Dataset, Pattern, Server, Store, Table, rate_limiters, selectors
from engram.errors import DeadlineExceededError

STREAM, QUEUE, LATE = "stream", "queue", "late"
STREAM_SIZE = 3_000
"""Maximum number of items of the stream's table."""

FLUSH_INTERVAL = 20
"""Number of items of the stream, or of the queue, between two flushes."""

MAX_STEPS_PER_OPERATION = 16
"""Maximum number of steps that an operation writes."""


def modeled_tables():
    """Returns the tables whose whole state is compared with a model."""
    return [
        Table("uniform", max_size=40, sampler=selectors.Uniform(), remover=selectors.Fifo()),
        Table("weighted", max_size=40, sampler=selectors.Prioritized(0.6), remover=selectors.MinHeap()),
        Table("twice", max_size=40, sampler=selectors.Fifo(), remover=selectors.Uniform(), max_times_sampled=2),
        Table("heaps", max_size=20, sampler=selectors.MaxHeap(), remover=selectors.Lifo()),
    ]


NAMES = [table.name for table in modeled_tables()]
"""Names of the modeled tables, except `LATE`, which calls create and drop."""


def open_store(path, seed, durability):
    """Opens the store, and creates the tables that do not exist yet."""
    unmodeled = [Table(STREAM, max_size=STREAM_SIZE), Table.queue(QUEUE, max_size=200)]
    return Store.open(path, [*modeled_tables(), *unmodeled], durability=durability, seed=seed)


def steps(numbers):
    """Returns steps whose content depends on their numbers; one step for one number."""
    numbers = np.asarray(numbers, np.uint64)
    mixed = numbers[..., None] * np.uint64(2654435761)
    return {"n": numbers, "x": (mixed >> np.arange(0, 48, 2, np.uint64)).astype(np.uint8)}


def table_states(store):
    """Returns the state of each modeled table as text, without the keys of items.

    Of an item's content, the text has only the sum of the bytes of its first chunk.
    """
    return {name: store._native.snapshot(name).describe() for name in store.tables if name not in (STREAM, QUEUE)}


def all_values(store, name):
    """Samples each item of a queue; returns their numbers in order, with -1 for an item with wrong content."""
    size = store.info()[name].size
    if not size:
        return []
    data = store.sample(name, size, timeout=10).data
    numbers = data["n"].reshape(-1)
    is_correct = (data["x"].reshape(len(numbers), -1) == steps(numbers)["x"]).all(axis=1)
    return np.where(is_correct, numbers.astype(np.int64), -1).tolist()


@dataclass(frozen=True)
class Change:
    """What a call has changed."""

    inserted: Mapping[str, list] = field(default_factory=dict)
    """For each table, the numbers of the steps of each inserted item."""

    key: int | None = None
    """Key of the inserted item; `None` if there is none, or if its writer does not return keys."""

    table: str | None = None
    """The created table."""

    is_durable: bool = True
    """True if the call waited until the change was durable."""


class Calls:
    """The calls of operation `number`. Iteration makes them, and yields a `Change` after each.

    With `only`, `insert_into_several` inserts only into these tables: a kill can leave it with a part of its changes.
    """

    def __init__(self, store, seed, number, only=()):
        self.store, self.number, self.only = store, number, only
        self.rng = np.random.default_rng([seed, number])
        self.step_numbers = range(MAX_STEPS_PER_OPERATION * number, MAX_STEPS_PER_OPERATION * (number + 1))
        self.name = str(self.rng.choice(NAMES))

    def __iter__(self):
        weights = {
            self.insert: 30,
            self.insert_into_several: 10,
            self.write: 6,
            self.write_patterns: 5,
            self.write_batches: 5,
            self.sample_and_update: 20,
            self.sample_and_delete: 8,
            self.replace_rate_limiter: 5,
            self.reset: 1,
            self.create_use_or_drop: 10,
        }
        values = np.array(list(weights.values()))
        index = self.rng.choice(len(values), p=values / values.sum())
        return list(weights)[index]()

    def priority(self):
        return float(self.rng.random() * 9)

    def insert(self):
        numbers = self.step_numbers[: self.rng.integers(1, 4)]
        key = self.store.insert(steps(numbers), {self.name: self.priority()}, time_axis=True)
        yield Change({self.name: [numbers]}, key)

    def insert_into_several(self):
        numbers = self.step_numbers[:2]
        priorities = {name: self.priority() for name in NAMES}
        if self.only:
            priorities = {name: priority for name, priority in priorities.items() if name in self.only}
        key = self.store.insert(steps(numbers), priorities, time_axis=True)
        yield Change({name: [numbers] for name in priorities}, key)

    def write(self):
        """Inserts items that share chunks and span several of them."""
        with self.store.writer(history=3, chunk_length=2) as writer:
            for index, number in enumerate(self.step_numbers[:6]):
                writer.append(steps(number))
                length = min(index + 1, 3)
                key = writer.create_item(self.name, self.priority(), num_steps=length)
                writer.flush()
                yield Change({self.name: [self.step_numbers[index + 1 - length : index + 1]]}, key)

    def write_patterns(self):
        with self.store.pattern_writer([Pattern(self.name, num_steps=3, priority=self.priority())]) as writer:
            for index, number in enumerate(self.step_numbers[:5]):
                writer.append(steps(number))
                writer.flush()
                if index > 1:
                    yield Change({self.name: [self.step_numbers[index - 2 : index + 1]]})

    def write_batches(self):
        with self.store.batched_writer(2, [Pattern(self.name, num_steps=2, priority=self.priority())]) as writer:
            first, second = self.step_numbers[:2], self.step_numbers[2:4]
            writer.append_batch(steps(first))
            writer.append_batch(steps(second))
            writer.flush()
            yield Change({self.name: list(zip(first, second, strict=True))})

    def sample(self):
        """Samples up to three items; returns their keys, or `None` if there is nothing to sample."""
        size = self.store.info()[self.name].size
        if size == 0:
            return None
        try:
            keys = self.store.sample(self.name, min(3, size), at_least=1, timeout=0.0).info.key
        except DeadlineExceededError:  # the rate limiter blocks
            return None
        # Each key once: only the last of several changes to one item could be checked.
        return list(dict.fromkeys(keys.tolist()))

    def sampling_is_durable(self):
        """True if samples are durable when the call returns, as they remove items."""
        return self.name == "twice"

    def sample_and_update(self):
        keys = self.sample()
        if keys is not None:
            yield Change(is_durable=self.sampling_is_durable())
            self.store.update_priorities(self.name, keys, self.rng.random(len(keys)) * 9)
            yield Change()

    def sample_and_delete(self):
        keys = self.sample()
        if keys is not None:
            yield Change(is_durable=self.sampling_is_durable())
            self.store.delete(self.name, keys)
            yield Change()

    def replace_rate_limiter(self):
        min_size = int(self.rng.integers(1, 4))
        limiters = [
            rate_limiters.MinSize(min_size),
            rate_limiters.RateLimiter(0.5 + self.rng.random(), min_size, -1e9, 1e9),
            rate_limiters.SampleToInsertRatio(1.5, min_size, 1e6),
        ]
        self.store.set_rate_limiter(self.name, limiters[self.rng.integers(3)])
        yield Change()

    def reset(self):
        self.store.reset(self.name)
        yield Change()

    def create_use_or_drop(self):
        """Creates, uses or drops a table."""
        if LATE not in self.store.tables:
            self.store.create_table(Table(LATE, max_size=3, seed=self.number))
            yield Change(table=LATE)
        elif self.rng.random() < 0.7:
            self.name = LATE
            yield from self.insert()
        else:
            self.store.drop_table(LATE)
            yield Change()


class Workload:
    """The program that is killed. It makes the operations from number `first` on, and prints what was acknowledged."""

    def __init__(self, path, seed, first, durability):
        self.print_lock = threading.Lock()
        self.report("opening")
        self.store = open_store(path, seed, durability)
        self.report("ready")
        for task in (self.stream, self.fill_queue, self.use_queue, self.checkpoints):
            threading.Thread(target=task, daemon=True).start()
        for number in itertools.count(first):
            for part, change in enumerate(Calls(self.store, seed, number)):
                if change.is_durable:
                    self.report("call", number, part, change.key or 0)

    def report(self, *fields):
        with self.print_lock:
            print(*fields, flush=True)  # noqa: T201, the parent reads it

    def insert_numbers(self, table):
        """Inserts consecutive numbers."""
        with self.store.writer() as writer:
            for value in itertools.count(self.store.info()[table].inserts):
                writer.append(steps(value))
                writer.create_item(table, num_steps=1)
                if value % FLUSH_INTERVAL == 0:
                    writer.flush()
                    self.report(table, value + 1)

    def stream(self):
        self.insert_numbers(STREAM)

    def fill_queue(self):
        self.insert_numbers(QUEUE)

    def use_queue(self):
        """Samples items in order, in process and over the network.

        Reports how many items it may have sampled, and how many are durably removed.
        """
        rng = np.random.default_rng()
        server = Server(self.store)
        client = Client(server.address)
        removed = self.store.info()[QUEUE].deletes
        while True:
            store = self.store if rng.random() < 0.5 else client
            if rng.random() < 0.3:
                self.report("sampled", removed + 5)
                removed = store.sample(QUEUE, 5).data["n"].max() + 1
            else:
                # Items fetched after the last batch are returned.
                num_batches = rng.integers(1, 5)
                dataset = Dataset(store, QUEUE, 4, prefetch=3, max_batches=int(rng.integers(num_batches, 6)))
                batches = iter(dataset)
                for _ in range(num_batches):
                    self.report("sampled", removed + 4)
                    batch = next(batches)
                    # The batch before is durably removed.
                    self.report("removed", removed)
                    removed = batch.data["n"].max() + 1
                dataset.close()
            self.report("removed", removed)

    def checkpoints(self):
        rng = np.random.default_rng()
        while True:
            time.sleep(rng.random() * 0.04)
            self.store.checkpoint()


def exit_after_thread_error(error):
    """Ends the process if a thread fails."""
    sys.__excepthook__(error.exc_type, error.exc_value, error.exc_traceback)
    os._exit(3)


def warm_up():
    """Imports everything in advance, as the workload runs only briefly."""
    with Store([*modeled_tables(), Table.queue(QUEUE, max_size=9)]) as store:
        for number in range(30):
            list(Calls(store, 0, number))
        store.insert(steps([1, 2]), {QUEUE: 1.0}, time_axis=True)
        with Dataset(store, QUEUE, 1, max_batches=1) as batches:
            list(batches)
        with Server(store) as server, Client(server.address) as client:
            client.info()


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # so that all threads make progress
    threading.excepthook = exit_after_thread_error
    path, seed, first, durability = sys.argv[1:]
    warm_up()
    Workload(path, int(seed), int(first), durability)
