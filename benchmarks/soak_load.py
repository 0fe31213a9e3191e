"""The processes of the soak test: a server, and clients that make many kinds of calls at once.

Each call's latency is recorded. A ticker in each process records when the process could not run: while the machine was
busy or paused, or while another thread held the interpreter lock.
"""

import itertools
import json
import os
import random
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import engram

TICK = 5e-3
"""Seconds between two ticks."""

LONG = 20e-3
"""Seconds. Calls that last longer, and ticks that are later by more, are reported with their times."""

REPORT_EVERY = 10.0
"""Seconds between two reports of a client. The server reports up to ten times as often."""

SHAPE = (84, 84)
MAX_ITEMS = 5_000
CHECKPOINT_EVERY = 10.0  # seconds
CLIENT_EVERY = 1.0  # seconds between two new clients
TABLE_EVERY = 1.0  # seconds between two new tables
DELETE_EVERY = 10  # rounds of `deletions` per delete; there is a pause after each round
METRICS_EVERY = 1.0  # seconds
EPISODE = 200  # steps

BOUNDS = np.geomspace(1e-5, 100.0, 281)
"""Upper bounds of the latency buckets, in seconds; each is 6 % above the one before."""


def report(**values: object) -> None:
    """Writes one line of JSON for the parent process."""
    print(json.dumps(values), flush=True)


class Ticker(threading.Thread):
    """A thread that records the gaps in which it could not run, each from one tick to the next one, which is late."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._gaps: list[tuple[float, float]] = []
        self.start()

    def run(self) -> None:
        """Ticks until the process ends."""
        before = time.monotonic()
        while True:
            time.sleep(TICK)
            now = time.monotonic()
            if now - before > TICK + LONG:
                self._gaps.append((before, now))
            before = now

    def take(self) -> list[tuple[float, float]]:
        """Removes and returns the gaps so far."""
        gaps, self._gaps = self._gaps, []
        return gaps


class Calls:
    """Latencies of all calls, by name, since the last report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, np.ndarray] = {}
        self._long: list[tuple[str, float, float]] = []  # name, begin and end of calls above `LONG`
        self._errors: list[str] = []

    def time(self, name: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401, the call's result
        """Makes a call and records how long it took."""
        begin = time.monotonic()
        try:
            return call()
        except engram.errors.EngramError as error:
            with self._lock:
                self._errors.append(f"{name}: {type(error).__name__}: {error}")
            return None
        finally:
            end = time.monotonic()
            with self._lock:
                counts = self._counts.setdefault(name, np.zeros(len(BOUNDS) + 1, np.int64))
                counts[np.searchsorted(BOUNDS, end - begin)] += 1
                if end - begin > LONG:
                    self._long.append((name, begin, end))

    def take(self) -> dict[str, Any]:
        """Removes and returns everything since the last report."""
        with self._lock:
            counts = {
                name: {int(bucket): int(histogram[bucket]) for bucket in histogram.nonzero()[0]}
                for name, histogram in self._counts.items()
            }
            taken = {"counts": counts, "long": self._long, "errors": self._errors}
            self._counts, self._long, self._errors = {}, [], []
        return taken


def steps() -> Iterator[dict[str, Any]]:
    """Yields steps with a frame of noise, which LZ4 does not compress."""
    random_numbers = np.random.default_rng(0)
    frames = random_numbers.integers(0, 16, (64, *SHAPE), np.uint8)
    for number in itertools.count():
        yield {"frame": frames[number % 64], "action": np.int32(number % 4), "reward": np.float32(number)}


def tables() -> list[engram.Table]:
    """The tables. All except the queues are full after a minute or two; memory should not grow after that."""
    prioritized = engram.selectors.Prioritized(exponent=0.6)
    return [
        engram.Table("prioritized", max_size=MAX_ITEMS, sampler=prioritized),
        engram.Table("uniform", max_size=MAX_ITEMS),
        engram.Table("batched", max_size=MAX_ITEMS),
        engram.Table.queue("queue", max_size=1_000),
        engram.Table.queue("single", max_size=100),
    ]


def server(directory: str) -> None:
    """Serves until stdin is closed; reports addresses, gaps, and when all tables except the queues have been full."""
    ticker = Ticker()
    not_full = {"prioritized", "uniform", "batched"}
    with (
        engram.Store.open(directory, tables(), checkpoint_interval=None, checkpoint_bytes=None) as store,
        engram.Server(store, metrics_port=0) as running,
    ):
        report(address=running.address, metrics=running.metrics_address, started=time.monotonic())
        threading.Thread(target=sys.stdin.read, daemon=True).start()
        while threading.active_count() > 2:  # once stdin is closed, only this thread and the ticker are left
            time.sleep(REPORT_EVERY / 10)
            if gaps := ticker.take():
                report(gaps=gaps)
            if not_full:
                not_full -= {name for name, info in store.info().items() if info.size == MAX_ITEMS}
                if not not_full:
                    report(full=time.monotonic())


def trajectories(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Writes items of several lengths, each episode with a new writer: a server must forget old writers' sessions."""
    data = steps()
    while True:
        with client.writer(history=4) as writer:
            for number in range(EPISODE):
                calls.time("append", lambda: writer.append(next(data)))
                if number >= 3:
                    num_steps = 1 + number % 4
                    calls.time("create_item", lambda: writer.create_item("prioritized", 1.0, num_steps=num_steps))  # noqa: B023, called at once
                if number % 20 == 19:
                    calls.time("flush", writer.flush)
                yield
            calls.time("end_episode", writer.end_episode)


def patterns(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Writes two tables by patterns."""
    data = steps()
    two_patterns = [engram.Pattern("uniform", num_steps=2), engram.Pattern("queue", num_steps=1)]
    with client.pattern_writer(two_patterns) as writer:
        while True:
            calls.time("append, patterns", lambda: writer.append(next(data)))
            yield


def batches(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Writes steps of 16 environments."""
    step = {"x": np.zeros((16, 32), np.float32), "reward": np.zeros(16, np.float32)}
    with client.batched_writer(16, [engram.Pattern("batched", num_steps=2)]) as writer:
        while True:
            calls.time("append_batch", lambda: writer.append_batch(step))
            yield


def single(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Inserts and consumes single items."""
    while True:
        calls.time("insert", lambda: client.insert({"x": np.float32(1)}, {"single": 1.0}, timeout=30))
        calls.time("sample, consuming", lambda: client.sample("single", 1, timeout=30))
        yield


def samples(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Samples uniformly."""
    while True:
        calls.time("sample, uniform", lambda: client.sample("uniform", 16, timeout=30))
        calls.time("sample, batched", lambda: client.sample("batched", 256, timeout=30))
        yield


def learner(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Samples by priority, and updates priorities."""
    generator = np.random.default_rng(1)
    while True:
        batch = calls.time("sample, prioritized", lambda: client.sample("prioritized", 32, timeout=30))
        if batch is not None:
            priorities = generator.random(32)
            keys = batch.info.key
            calls.time("update_priorities", lambda: client.update_priorities("prioritized", keys, priorities))  # noqa: B023
        yield


def consumer(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Consumes a queue with datasets that are opened again and again."""
    while True:
        with engram.Dataset(client, "queue", 8, max_batches=100, timeout=5) as dataset:
            iterator = iter(dataset)
            while calls.time("next of a dataset", lambda: next(iterator, None)) is not None:  # noqa: B023, called at once
                yield
        yield


def deletions(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Deletes sampled items, fewer than are inserted."""
    for number in itertools.count():
        if number % DELETE_EVERY:
            yield
            continue
        batch = calls.time("sample, to delete", lambda: client.sample("uniform", 1, timeout=30))
        if batch is not None:
            keys = batch.info.key
            calls.time("delete", lambda: client.delete("uniform", keys))  # noqa: B023, called at once
        yield


def infos(client: engram.Client, calls: Calls) -> Iterator[None]:
    """Reads the infos of the tables."""
    while True:
        calls.time("info", client.info)
        yield


def every(seconds: float, name: str, call: Callable[[], object], calls: Calls) -> Iterator[None]:
    """Makes a call every `seconds` seconds."""
    due = time.monotonic() + seconds * random.random()  # noqa: S311, not for cryptography
    while True:
        if time.monotonic() >= due:
            calls.time(name, call)
            due += seconds
        yield


def connect_once(address: str) -> None:
    """Connects, writes an item, samples, and disconnects."""
    with engram.Client(address) as client, client.writer(history=2) as writer:
        for reward in range(2):
            writer.append({"x": np.zeros(32, np.float32), "reward": np.float32(reward)})
        writer.create_item("batched", 1.0, num_steps=2)
        client.sample("uniform", 1, timeout=30)


def use_new_table(client: engram.Client, number: int) -> None:
    """Creates, fills, resets and drops a table."""
    name = f"short-{os.getpid()}-{number}"
    client.create_table(engram.Table(name))
    for value in range(10):
        client.insert({"x": np.float32(value)}, {name: 1.0}, timeout=30)
    client.sample(name, 20, timeout=30)
    client.reset(name)
    client.drop_table(name)


def scrape(metrics: str) -> None:
    """Reads the metrics once."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as response:
        response.read()


def repeat(work: Iterator[None], pause: float, stop: threading.Event) -> None:
    """Continues `work`, with pauses, until `stop` is set."""
    for _ in work:
        if stop.wait(pause):
            return


def client(address: str, metrics: str, seconds: float, pause: float, *, checkpoints: bool) -> None:
    """Makes calls of each kind for `seconds`, each kind in a thread of its own; only one client writes checkpoints."""
    ticker, calls, stop, numbers = Ticker(), Calls(), threading.Event(), itertools.count()
    kinds = (trajectories, patterns, batches, single, samples, learner, consumer, deletions, infos)
    clients = [engram.Client(address) for _ in kinds]
    report(counts={}, long=[], errors=[], gaps=[], threads=0, expected=0, started=time.monotonic())
    work = [kind(each, calls) for kind, each in zip(kinds, clients, strict=True)]
    work += [
        every(CLIENT_EVERY, "client that writes and samples once", lambda: connect_once(address), calls),
        every(TABLE_EVERY, "table from creation to drop", lambda: use_new_table(clients[0], next(numbers)), calls),
        every(METRICS_EVERY, "metrics", lambda: scrape(metrics), calls),
    ]
    if checkpoints:
        work.append(every(CHECKPOINT_EVERY, "checkpoint", clients[0].checkpoint, calls))
    threads = [threading.Thread(target=repeat, args=(each, pause, stop), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(REPORT_EVERY, max(0.0, end - time.monotonic())))
        alive = sum(thread.is_alive() for thread in threads)
        report(**calls.take(), gaps=ticker.take(), threads=alive, expected=len(threads))
    stop.set()
    for thread in threads:
        thread.join(60)
    # Latencies of calls that ended after the stop do not count: a dataset waits for items that nothing writes any more.
    report(counts={}, long=[], errors=calls.take()["errors"], gaps=ticker.take(), threads=0, expected=0, last=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        server(sys.argv[2])
    else:
        client(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]), checkpoints=sys.argv[6] == "1")
