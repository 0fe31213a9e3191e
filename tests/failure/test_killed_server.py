"""A server is killed in the middle of everything: calls end in time, and what was not acknowledged is not lost."""

import gc
import os
import re
import secrets
import threading
import time

import numpy as np
import pytest
from faults import ServerProcess

from engram import Client, Dataset, Pattern
from engram.errors import DeadlineExceededError, EngramError, UnavailableError

# Of all pauses, so that a failure can be looked at again, as far as threads allow: `FAULT_SEED=... pytest`.
SEED = int(os.environ.get("FAULT_SEED") or secrets.randbits(32))
RNG = np.random.default_rng(SEED)

# Seconds that a call may take beyond its deadline, or beyond `reconnect_timeout` after the server is gone.
MARGIN = 1.0

TABLES = """[
    engram.Table.queue(name, max_size=1_000_000)
    for name in ("trajectory", "pattern", "batched", "single", "late", "empty")
] + [engram.Table("weighted", sampler=engram.selectors.Prioritized(1.0))]"""

WRITERS = ("trajectory", "pattern", "batched", "single")
LATE = 0.05

# Read at once: a fast machine writes more in a round than a server gives.
MOST = 1_000

# Writers that are given up say so.
pytestmark = pytest.mark.filterwarnings("ignore:a .*Writer was dropped:ResourceWarning")

ROUNDS = [pytest.param(3), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


@pytest.fixture(autouse=True)
def given_up():
    print(f"FAULT_SEED={SEED}")  # noqa: T201, pytest shows it of a test that fails
    yield
    gc.collect()


class Worker(threading.Thread):
    """Makes one call again and again, until it fails or is told to stop; with a deadline, until it is told to."""

    def __init__(self, call, timeout=None):
        super().__init__(daemon=True)
        self._call, self._timeout = call, timeout
        self._stopping = threading.Event()
        self.calls = []  # when it ended, seconds, error
        self.start()

    def run(self):
        error = None
        while not self._stopping.is_set() and (error is None or self._timeout is not None):
            began, error = time.monotonic(), None
            try:
                self._call()
            except EngramError as raised:
                error = raised
            ended = time.monotonic()
            self.calls.append((ended, ended - began, error))

    def call_no_more(self):
        self._stopping.set()

    def stop(self):
        self.call_no_more()
        self.join(30.0)
        assert not self.is_alive(), "a call does not end"

    def check_failed(self, latest, address):
        """It failed by then, as its server was gone."""
        self.join(30.0)
        assert not self.is_alive(), "a call does not end"
        ended, _, error = self.calls[-1]
        assert isinstance(error, UnavailableError), error
        assert f"the server at {address} cannot be reached" in str(error)
        assert ended <= latest, f"{ended - latest + MARGIN:.3f} s late: {error}"
        return str(error)

    def check_deadlines(self):
        """Each call ended at its deadline or before."""
        self.stop()
        for _, seconds, error in self.calls:
            assert seconds <= self._timeout + MARGIN, f"{seconds:.3f} s: {error}"
            assert error is None or isinstance(error, DeadlineExceededError | UnavailableError), error


class Writing(Worker):
    """Writes 0, 1, 2, ... and flushes now and then; remembers how many were acknowledged, and when."""

    def __init__(self, write, flush=lambda: None):
        self.written, self._flushed = 0, [(0.0, 0)]
        self._write, self._flush = write, flush
        (self._rng,) = RNG.spawn(1)  # of the thread's own
        super().__init__(self._some)

    def _some(self):
        for _ in range(self._rng.integers(1, 40)):
            self._write(self.written)
            self.written += 1
        # Rarely: what is not waited for yet is what may be lost.
        if self._rng.random() < 0.1:
            self._flush()
            self._flushed.append((time.monotonic(), self.written))

    def stop(self):
        super().stop()
        self._flush()

    def acknowledged_before(self, moment):
        return max(count for when, count in self._flushed if when < moment)


def start_writers(client):
    """One of each kind, to the table of its name."""
    trajectory = client.writer(chunk_length=4)
    pattern = client.pattern_writer([Pattern("pattern", num_steps=1)], chunk_length=4)
    batched = client.batched_writer(1, [Pattern("batched", num_steps=1)], chunk_length=4)

    def write_trajectory(value):
        trajectory.append({"x": value})
        trajectory.create_item("trajectory", num_steps=1)

    return {
        "trajectory": Writing(write_trajectory, trajectory.flush),
        "pattern": Writing(lambda value: pattern.append({"x": value}), pattern.flush),
        "batched": Writing(lambda value: batched.append_batch({"x": np.array([value])}), batched.flush),
        "single": Writing(lambda value: client.insert({"x": value}, {"single": 1.0})),
    }


def start_readers(client):
    """Samples and changes without a deadline; one waits for what never comes."""
    keys = fill_weighted(client)
    (rng,) = RNG.spawn(1)
    return {
        "sample": Worker(lambda: client.sample("weighted", 5)),
        "wait": Worker(lambda: client.sample("empty", 1)),
        "dataset": Worker(lambda: next(iter(Dataset(client, "weighted", 2, max_batches=1)))),
        "update": Worker(lambda: client.update_priorities("weighted", keys, rng.random(10))),
        "delete": Worker(lambda: client.delete("weighted", [1 << 60])),
        "info": Worker(client.info),
    }


def start_late(client):
    """Calls with a deadline."""
    writer = client.writer(max_in_flight_items=1_000_000)

    def flush():
        writer.append({"x": 0})
        writer.create_item("late", num_steps=1)
        writer.flush(timeout=LATE)

    return [
        Worker(lambda: client.sample("empty", 1, timeout=LATE), LATE),
        Worker(lambda: client.insert({"x": 0}, {"late": 1.0}, timeout=LATE), LATE),
        Worker(flush, LATE),
    ]


def fill_weighted(client):
    return [client.insert({"x": value}, {"weighted": 1.0}) for value in range(10)]


def work_a_while():
    time.sleep(RNG.uniform(0.01, 0.3))


def kill(server):
    """Kills it; returns from when on nothing was acknowledged any more, and from when on it was gone."""
    before = time.monotonic()
    server.kill()
    return before, time.monotonic()


UNACKNOWLEDGED = {
    "sample": "; 5 items were requested from table `weighted`",
    "wait": "; 1 item was requested from table `empty`",
    "dataset": "",
    "update": "; an update of the priorities of 10 items of table `weighted` is not acknowledged",
    "delete": "; a deletion of 1 items of table `weighted` is not acknowledged",
    "info": "",
}


@pytest.mark.parametrize("rounds", ROUNDS)
def test_calls_end_when_a_killed_server_stays_away(rounds):
    timeout = 1.0
    with ServerProcess(TABLES) as server:
        for _ in range(rounds):
            # Those with a deadline would wait much longer for the server than that.
            patient = Client(server.address, reconnect_timeout=60.0)
            with patient, Client(server.address, reconnect_timeout=timeout) as client:
                late, working = start_late(patient), start_readers(client)
                writing = start_writers(client)
                work_a_while()
                _, gone = kill(server)
                for name, worker in working.items():
                    text = worker.check_failed(gone + timeout + MARGIN, server.address)
                    assert text.endswith(UNACKNOWLEDGED[name]), text
                for name, worker in writing.items():
                    text = worker.check_failed(gone + timeout + MARGIN, server.address)
                    # A single insert may fail before it has sent anything.
                    assert name == "single" or re.search(r"; \d+ items are not acknowledged$", text), text
                for worker in late:
                    worker.check_deadlines()
            server.start()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_nothing_is_lost_or_doubled_when_a_killed_server_comes_back(rounds):
    with ServerProcess(TABLES) as server:
        for number in range(rounds):
            with Client(server.address, reconnect_timeout=20.0) as client:
                working, writing = start_readers(client), start_writers(client)
                work_a_while()
                heard = None
                if number % 2 == 0:
                    server.freeze()
                    # It has heard of these at most, and of those that are being written.
                    heard = {name: writer.written + 1 for name, writer in writing.items()}
                    work_a_while()
                killed, _ = kill(server)
                time.sleep(RNG.uniform(0.0, 0.2))
                server.start()
                fill_weighted(client)
                work_a_while()
                working["wait"].call_no_more()
                client.insert({"x": 0}, {"empty": 1.0})
                for worker in (*working.values(), *writing.values()):
                    worker.stop()
                    assert [error for *_, error in worker.calls if error is not None] == []
                for name, writer in writing.items():
                    first = check_content(client, name, writer, killed)
                    assert heard is None or first <= heard[name]


def check_content(client, table, writer, killed):
    """The new server has what the old one had not acknowledged, once and in order, and nothing else.

    Returns the first that it has.
    """
    size = client.info()[table].size
    found = []
    while len(found) < size:
        batch = client.sample(table, min(size - len(found), MOST), timeout=20)
        found += batch.data["x"].ravel().tolist()
    first = writer.written - size
    assert found == list(range(first, writer.written))
    assert first >= writer.acknowledged_before(killed)
    return first
