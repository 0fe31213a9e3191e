"""A store that is killed again and again at random moments, and a model of what it had acknowledged.

The child does one call after the other and says so after each; checkpoints and a stream of items go on beside. The
calls follow from a seed alone, so that the parent can make them too, with a store in memory.
"""

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from engram import Store, Table, rate_limiters, selectors
from engram.errors import DeadlineExceededError

STREAM = "stream"


def modelled():
    return [
        Table("uniform", max_size=40, sampler=selectors.Uniform(), remover=selectors.Fifo()),
        Table("weighted", max_size=40, sampler=selectors.Prioritized(0.6), remover=selectors.MinHeap()),
        Table("twice", max_size=40, sampler=selectors.Fifo(), remover=selectors.Uniform(), max_times_sampled=2),
    ]


def calls(store, seed, number):
    """Makes a few calls, and yields after each."""
    rng = np.random.default_rng([seed, number])
    name = str(rng.choice([table.name for table in modelled()]))
    size = store.info()[name].size
    kind = rng.integers(20)
    if kind < 11 or size == 0:
        store.insert({"x": np.full(20, number % 251, np.uint8)}, {name: float(rng.random() * 9)})
        yield
    elif kind < 17:
        try:
            keys = store.sample(name, min(3, size), partial=True, timeout=0.0).info.key
        except DeadlineExceededError:
            return  # the limiter wants more items
        yield
        if kind < 15:
            store.update_priorities(name, keys, rng.random(len(keys)) * 9)
        else:
            store.delete(name, keys)
        yield
    elif kind < 19:
        store.set_rate_limiter(name, rate_limiters.MinSize(int(rng.integers(1, 3))))
        yield
    elif rng.random() < 0.2:
        store.reset(name)
        yield


def work(path, seed, first, durability):
    """The child: says "ready", then each call that was acknowledged, and how much of the stream."""
    say = threading.Lock()

    def tell(*what):
        with say:
            print(*what, flush=True)  # noqa: T201, the parent reads it

    store = Store.open(path, [*modelled(), Table(STREAM, max_size=1_000_000)], durability=durability, seed=seed)

    def stream():
        writer = store.writer()
        for value in itertools.count(store.info()[STREAM].size):
            writer.append({"x": value})
            writer.create_item(STREAM, num_steps=1)
            if value % 20 == 0:
                writer.flush()
                tell("stream", value + 1)

    def checkpoints():
        while True:
            time.sleep(0.02)
            store.checkpoint()

    tell("ready")
    for beside in (stream, checkpoints):
        threading.Thread(target=beside, daemon=True).start()
    for number in itertools.count(first):
        for part, _ in enumerate(calls(store, seed, number)):
            tell("call", number, part)


def words(store):
    return {table.name: store._native.snapshot(table.name).words() for table in modelled()}


class Killing:
    """One store's lives."""

    def __init__(self, path, seed, durability="process"):
        self.path, self.seed, self.durability = path, seed, durability
        self.rng = np.random.default_rng(seed)
        self.model = Store(modelled(), seed=seed)
        self.next, self.streamed, self.acknowledged, self.in_flight = 0, 0, 0, 0

    def round(self):
        """Lets it live a while, kills it, and compares."""
        command = [sys.executable, __file__, str(self.path), str(self.seed), str(self.next), self.durability]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(self.rng.uniform(0.0, 0.3))
        child.kill()
        said = [line.split() for line in child.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
        done = [(int(number), int(part)) for what, number, *rest in said if what == "call" for part in rest]
        for what, number, *_ in said:
            if what == "stream":
                self.streamed = max(self.streamed, int(number))
        under_way = iter(())
        for number, parts in itertools.groupby(done, key=lambda call: call[0]):
            under_way = calls(self.model, self.seed, number)
            for _ in parts:
                next(under_way)
                self.acknowledged += 1
            self.next = number + 1
        self.compare(under_way)

    def compare(self, under_way):
        with Store.open(self.path, durability=self.durability) as store:
            found = words(store)
            if found != words(self.model):
                # One call may have been made and not said.
                following = itertools.chain(under_way, calls(self.model, self.seed, self.next))
                begun_next = next(under_way, self) is self
                if begun_next:
                    following = calls(self.model, self.seed, self.next)
                    next(following, None)
                    self.next += 1
                self.in_flight += 1
                expected = words(self.model)
                for name, each in expected.items():
                    assert found[name] == each, f"seed {self.seed}, call {self.next}, table {name}"
            size = store.info()[STREAM].size
            assert size >= self.streamed, f"{self.streamed} were acknowledged, {size} are there"
            if size:
                values = (
                    store.sample(STREAM, 4 * size + 100, timeout=30).data["x"] if size < 10_000 else np.arange(size)
                )
                assert values.max() < size
            self.streamed = size


if __name__ == "__main__":
    path, seed, first, durability = sys.argv[1:]
    work(Path(path), int(seed), int(first), durability)
