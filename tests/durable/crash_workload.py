"""The life of a store that is going to be killed: what it holds, and what is done with it.

The calls follow from a seed and their number alone, so that the same can be made with another store. Beside them,
a stream of items, a queue and checkpoints go on.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from engram import Dataset, Pattern, Store, Table, rate_limiters, selectors
from engram.errors import DeadlineExceededError

STREAM, QUEUE, LATE = "stream", "queue", "late"
STREAMED = 3_000
"""Items that the stream's table keeps: the newest."""

FLUSHED = 20
"""Items that the stream and the queue take at a time."""

TAGS = 16
"""Steps that one call may make, at most."""


def modelled():
    """Tables that come back exactly as they were."""
    return [
        Table("uniform", max_size=40, sampler=selectors.Uniform(), remover=selectors.Fifo()),
        Table("weighted", max_size=40, sampler=selectors.Prioritized(0.6), remover=selectors.MinHeap()),
        Table("twice", max_size=40, sampler=selectors.Fifo(), remover=selectors.Uniform(), max_times_sampled=2),
        Table("heaps", max_size=20, sampler=selectors.MaxHeap(), remover=selectors.Lifo()),
    ]


NAMES = [table.name for table in modelled()]


def open_store(path, seed, durability):
    """Opens the store, and makes the tables that it was killed too early to have."""
    beside = [Table(STREAM, max_size=STREAMED), Table.queue(QUEUE, max_size=200)]
    return Store.open(path, [*modelled(), *beside], durability=durability, seed=seed)


def steps(tags):
    """Steps whose content follows from their numbers; one where there is but one number."""
    tags = np.asarray(tags, np.uint64)
    mixed = tags[..., None] * np.uint64(2654435761)
    return {"n": tags, "x": (mixed >> np.arange(0, 48, 2, np.uint64)).astype(np.uint8)}


def words(store):
    """All that the tables are, but for the streams and what a copy has to be taken apart for."""
    return {name: store._native.snapshot(name).describe() for name in store.tables if name not in (STREAM, QUEUE)}


def all_values(store, name):
    """The numbers of a table's items, in order; -1 for those with other content."""
    size = store.info()[name].size
    if not size:
        return []
    data = store.sample(name, size, timeout=10).data
    numbers = data["n"].reshape(-1)
    good = (data["x"].reshape(len(numbers), -1) == steps(numbers)["x"]).all(axis=1)
    return np.where(good, numbers.astype(np.int64), -1).tolist()


@dataclass(frozen=True)
class Made:
    """What a call that has returned has done."""

    inserted: Mapping[str, list] = field(default_factory=dict)
    """For each table, the steps of each item, by their numbers."""

    key: int | None = None
    """That of the item, where it is known."""

    table: str | None = None
    """The table that was created."""

    is_safe: bool = True
    """Whether the call has waited for that."""


class Calls:
    """Calls that one number stands for. Each method makes some, and yields what each has made."""

    def __init__(self, store, seed, number, only=()):
        # Where an item goes into several tables, it may go into these alone.
        self.store, self.number, self.only = store, number, only
        self.rng = np.random.default_rng([seed, number])
        self.tags = range(TAGS * number, TAGS * (number + 1))
        self.name = str(self.rng.choice(NAMES))

    def __iter__(self):
        likely = {
            self.insert: 30,
            self.insert_into_several: 10,
            self.write: 6,
            self.write_patterns: 5,
            self.write_batches: 5,
            self.sample_and_update: 20,
            self.sample_and_delete: 8,
            self.limit: 5,
            self.reset: 1,
            self.come_and_go: 10,
        }
        odds = np.array(list(likely.values()))
        kind = self.rng.choice(len(odds), p=odds / odds.sum())
        return list(likely)[kind]()

    def priority(self):
        return float(self.rng.random() * 9)

    def insert(self):
        tags = self.tags[: self.rng.integers(1, 4)]
        key = self.store.insert(steps(tags), {self.name: self.priority()}, time_axis=True)
        yield Made({self.name: [tags]}, key)

    def insert_into_several(self):
        tags = self.tags[:2]
        priorities = {name: self.priority() for name in NAMES}
        if self.only:
            priorities = {name: priority for name, priority in priorities.items() if name in self.only}
        key = self.store.insert(steps(tags), priorities, time_axis=True)
        yield Made({name: [tags] for name in priorities}, key)

    def write(self):
        """Items that share chunks, and lie across them."""
        with self.store.writer(history=3, chunk_length=2) as writer:
            for at, tag in enumerate(self.tags[:6]):
                writer.append(steps(tag))
                length = min(at + 1, 3)
                key = writer.create_item(self.name, self.priority(), num_steps=length)
                writer.flush()
                yield Made({self.name: [self.tags[at + 1 - length : at + 1]]}, key)

    def write_patterns(self):
        with self.store.pattern_writer([Pattern(self.name, num_steps=3, priority=self.priority())]) as writer:
            for at, tag in enumerate(self.tags[:5]):
                writer.append(steps(tag))
                writer.flush()
                if at > 1:
                    yield Made({self.name: [self.tags[at - 2 : at + 1]]})

    def write_batches(self):
        with self.store.batched_writer(2, [Pattern(self.name, num_steps=2, priority=self.priority())]) as writer:
            before, now = self.tags[:2], self.tags[2:4]
            writer.append_batch(steps(before))
            writer.append_batch(steps(now))
            writer.flush()
            yield Made({self.name: list(zip(before, now, strict=True))})

    def sample(self):
        size = self.store.info()[self.name].size
        if size == 0:
            return None
        try:
            keys = self.store.sample(self.name, min(3, size), partial=True, timeout=0.0).info.key
        except DeadlineExceededError:  # the limiter wants more items
            return None
        # Each once: of changes to one item, the first ones would not be seen in the end.
        return list(dict.fromkeys(keys.tolist()))

    def uses_up(self):
        """Whether samples do: nobody waits for the others."""
        return self.name == "twice"

    def sample_and_update(self):
        keys = self.sample()
        if keys is not None:
            yield Made(is_safe=self.uses_up())
            self.store.update_priorities(self.name, keys, self.rng.random(len(keys)) * 9)
            yield Made()

    def sample_and_delete(self):
        keys = self.sample()
        if keys is not None:
            yield Made(is_safe=self.uses_up())
            self.store.delete(self.name, keys)
            yield Made()

    def limit(self):
        least = int(self.rng.integers(1, 4))
        kinds = [
            rate_limiters.MinSize(least),
            rate_limiters.RateLimiter(0.5 + self.rng.random(), least, -1e9, 1e9),
            rate_limiters.SampleToInsertRatio(1.5, least, 1e6),
        ]
        self.store.set_rate_limiter(self.name, kinds[self.rng.integers(3)])
        yield Made()

    def reset(self):
        self.store.reset(self.name)
        yield Made()

    def come_and_go(self):
        """A table that is created, used a little and dropped."""
        if LATE not in self.store.tables:
            self.store.create_table(Table(LATE, max_size=3, seed=self.number))
            yield Made(table=LATE)
        elif self.rng.random() < 0.7:
            self.name = LATE
            yield from self.insert()
        else:
            self.store.drop_table(LATE)
            yield Made()


class Life:
    """The program that is killed. It says what was acknowledged."""

    def __init__(self, path, seed, first, durability):
        self.say = threading.Lock()
        self.tell("opening")
        self.store = open_store(path, seed, durability)
        self.tell("ready")
        for beside in (self.stream, self.fill_queue, self.use_queue, self.checkpoints):
            threading.Thread(target=beside, daemon=True).start()
        for number in itertools.count(first):
            for part, made in enumerate(Calls(self.store, seed, number)):
                if made.is_safe:
                    self.tell("call", number, part, made.key or 0)

    def tell(self, *what):
        with self.say:
            print(*what, flush=True)  # noqa: T201, the parent reads it

    def count(self, table):
        """Inserts numbers, each once."""
        with self.store.writer() as writer:
            for value in itertools.count(self.store.info()[table].inserts):
                writer.append(steps(value))
                writer.create_item(table, num_steps=1)
                if value % FLUSHED == 0:
                    writer.flush()
                    self.tell(table, value + 1)

    def stream(self):
        self.count(STREAM)

    def fill_queue(self):
        self.count(QUEUE)

    def use_queue(self):
        """Takes items in order, each once; says how many it may have had, and how many do not come again."""
        rng = np.random.default_rng()
        used = self.store.info()[QUEUE].deletes
        while True:
            if rng.random() < 0.3:
                self.tell("taken", used + 5)
                used = self.store.sample(QUEUE, 5).data["n"].max() + 1
            else:
                # What it has fetched beyond the last one goes back.
                wanted = rng.integers(1, 5)
                with Dataset(self.store, QUEUE, 4, prefetch=3, max_batches=int(rng.integers(wanted, 6))) as batches:
                    for batch in itertools.islice(batches, wanted):
                        used = batch.data["n"].max() + 1
                        self.tell("taken", used)
                self.store.update_priorities(QUEUE, [], [])
            self.tell("used", used)

    def checkpoints(self):
        rng = np.random.default_rng()
        while True:
            time.sleep(rng.random() * 0.04)
            self.store.checkpoint()


def die(error):
    """Nothing beside may end unseen."""
    sys.__excepthook__(error.exc_type, error.exc_value, error.exc_traceback)
    os._exit(3)


def warm_up():
    """Loads what would be loaded during a life, which is short."""
    with Store([*modelled(), Table.queue(QUEUE, max_size=9)]) as store:
        for number in range(30):
            list(Calls(store, 0, number))
        store.insert(steps([1, 2]), {QUEUE: 1.0}, time_axis=True)
        with Dataset(store, QUEUE, 1, max_batches=1) as batches:
            list(batches)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # they all should get on
    threading.excepthook = die
    path, seed, first, durability = sys.argv[1:]
    warm_up()
    Life(path, int(seed), int(first), durability)
