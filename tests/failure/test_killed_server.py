"""A killed server: calls end in time, and unacknowledged items are not lost."""

import gc
import os
import re
import secrets
import threading
import time

import numpy as np
import pytest
from helpers.faults import ServerProcess
from helpers.support import BackgroundCall, wait_until

from engram import Client, Dataset, Pattern
from engram.errors import DeadlineExceededError, EngramError, UnavailableError

# Seed of all random choices, to repeat a failure as far as threads allow: `FAULT_SEED=... pytest`.
SEED = int(os.environ.get("FAULT_SEED") or secrets.randbits(32))
RNG = np.random.default_rng(SEED)

# Seconds that a call may take longer than its timeout, or than `reconnect_timeout` after the kill.
MARGIN = 1.0

TABLES = """[
    engram.Table.queue(name, max_size=1_000_000)
    for name in ("trajectory", "pattern", "batched", "single", "late", "empty")
] + [engram.Table("weighted", sampler=engram.selectors.Prioritized(1.0))]"""

# Timeout of calls that wait for a table, in seconds.
CALL_TIMEOUT = 0.05

# Maximum number of items per sample: a round can write more items than a server returns in one batch.
MAX_SAMPLE_SIZE = 1_000

# Abandoned writers warn about their pending items.
pytestmark = pytest.mark.filterwarnings("ignore:a .*Writer was garbage-collected:ResourceWarning")

# The first round freezes the server before it is killed, the second does not.
ROUNDS = [pytest.param(2), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


@pytest.fixture(autouse=True)
def collect_abandoned_writers():
    print(f"FAULT_SEED={SEED}")  # noqa: T201, shown by pytest if the test fails
    yield
    gc.collect()


class Worker(threading.Thread):
    """Repeats a call in a thread until `stop` is called. Without a `timeout`, a failed call also ends it."""

    def __init__(self, call, timeout=None):
        super().__init__(daemon=True)
        self._call, self._timeout = call, timeout
        self._stopping = threading.Event()
        self.calls = []  # (end time, seconds, error)
        self.start()

    def run(self):
        error = None
        while not self._stopping.is_set() and (error is None or self._timeout is not None):
            started, error = time.monotonic(), None
            try:
                self._call()
            except EngramError as raised:
                error = raised
            ended = time.monotonic()
            self.calls.append((ended, ended - started, error))

    def request_stop(self):
        self._stopping.set()

    def stop(self):
        self.request_stop()
        self.join(30.0)
        assert not self.is_alive(), "a call does not end"

    def check_failed(self, latest, address):
        """Checks that the last call failed because of the kill, at time `latest` or before; returns its error text."""
        self.join(30.0)
        assert not self.is_alive(), "a call does not end"
        ended, _, error = self.calls[-1]
        assert isinstance(error, UnavailableError), error
        assert f"the server at {address} cannot be reached" in str(error)
        assert ended <= latest, f"{ended - latest + MARGIN:.3f} s late: {error}"
        return str(error)

    def check_deadlines(self):
        """Checks that each call ended within its timeout."""
        self.stop()
        for _, seconds, error in self.calls:
            assert seconds <= self._timeout + MARGIN, f"{seconds:.3f} s: {error}"
            assert error is None or isinstance(error, DeadlineExceededError | UnavailableError), error


class WriterWorker(Worker):
    """Writes 0, 1, 2, ... with occasional flushes; records how many values had been acknowledged at which time."""

    def __init__(self, write, flush=lambda: None):
        self.written, self._flushed = 0, [(0.0, 0)]
        self._write, self._flush = write, flush
        (self._rng,) = RNG.spawn(1)  # for this thread
        super().__init__(self._write_some)

    def _write_some(self):
        for _ in range(self._rng.integers(1, 40)):
            self._write(self.written)
            self.written += 1
        # Rarely, so that there are unacknowledged items that could be lost.
        if self._rng.random() < 0.1:
            self._flush()
            self._flushed.append((time.monotonic(), self.written))

    def stop(self):
        super().stop()
        self._flush()

    def acknowledged_before(self, moment):
        """Returns how many values flushes had acknowledged before this time."""
        return max(count for when, count in self._flushed if when < moment)


def start_writers(client):
    """Starts one writer of each kind, for the table of its name."""
    trajectory = client.writer(chunk_length=4)
    pattern = client.pattern_writer([Pattern("pattern", num_steps=1)], chunk_length=4)
    batched = client.batched_writer(1, [Pattern("batched", num_steps=1)], chunk_length=4)

    def write_trajectory(value):
        trajectory.append({"x": value})
        trajectory.create_item("trajectory", num_steps=1)

    return {
        "trajectory": WriterWorker(write_trajectory, trajectory.flush),
        "pattern": WriterWorker(lambda value: pattern.append({"x": value}), pattern.flush),
        "batched": WriterWorker(lambda value: batched.append_batch({"x": np.array([value])}), batched.flush),
        "single": WriterWorker(lambda value: client.insert({"x": value}, {"single": 1.0})),
    }


def start_readers(client):
    """Starts samples and changes without a timeout; `wait` waits for an item that only a test inserts."""
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


def start_calls_with_timeout(client):
    """Starts calls with a timeout."""
    writer = client.writer(max_in_flight_items=1_000_000)

    def flush():
        writer.append({"x": 0})
        writer.create_item("late", num_steps=1)
        writer.flush(timeout=CALL_TIMEOUT)

    return [
        Worker(lambda: client.sample("empty", 1, timeout=CALL_TIMEOUT), CALL_TIMEOUT),
        Worker(lambda: client.insert({"x": 0}, {"late": 1.0}, timeout=CALL_TIMEOUT), CALL_TIMEOUT),
        Worker(flush, CALL_TIMEOUT),
    ]


def fill_weighted(client):
    return [client.insert({"x": value}, {"weighted": 1.0}) for value in range(10)]


def sleep_randomly():
    time.sleep(RNG.uniform(0.01, 0.3))


def kill(server):
    """Kills the server; returns the times right before and after."""
    before = time.monotonic()
    server.kill()
    return before, time.monotonic()


ERROR_ENDINGS = {
    "sample": "; 5 items were requested from table `weighted`",
    "wait": "; 1 item was requested from table `empty`",
    "dataset": "",
    "update": "; an update of the priorities of 10 items of table `weighted` is not acknowledged",
    "delete": "; a deletion of 1 item of table `weighted` is not acknowledged",
    "info": "",
}


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_calls_end_if_a_killed_server_is_not_restarted(rounds):
    timeout = 1.0
    with ServerProcess(TABLES) as server:
        for _ in range(rounds):
            # The calls with a timeout have a much longer reconnect_timeout.
            slow_client = Client(server.address, reconnect_timeout=60.0)
            with slow_client, Client(server.address, reconnect_timeout=timeout) as client:
                timed_workers, workers = start_calls_with_timeout(slow_client), start_readers(client)
                writers = start_writers(client)
                sleep_randomly()
                _, killed = kill(server)
                for name, worker in workers.items():
                    text = worker.check_failed(killed + timeout + MARGIN, server.address)
                    assert text.endswith(ERROR_ENDINGS[name]), text
                for name, worker in writers.items():
                    text = worker.check_failed(killed + timeout + MARGIN, server.address)
                    # A single insert may fail before it has sent anything.
                    queued = r"; \d+ items? not acknowledged; (it|they) stays? queued, and `flush` sends \w+ again$"
                    assert name == "single" or re.search(queued, text), text
                for worker in timed_workers:
                    worker.check_deadlines()
            server.start()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_nothing_is_lost_or_duplicated_if_a_killed_server_is_restarted(rounds):
    with ServerProcess(TABLES) as server:
        for number in range(rounds):
            with Client(server.address, reconnect_timeout=20.0) as client:
                workers, writers = start_readers(client), start_writers(client)
                sleep_randomly()
                sent = None
                if number % 2 == 0:
                    server.freeze()
                    # The most that the server can have received, including the items that are being written.
                    sent = {name: writer.written + 1 for name, writer in writers.items()}
                    sleep_randomly()
                killed, _ = kill(server)
                time.sleep(RNG.uniform(0.0, 0.2))
                server.start()
                fill_weighted(client)
                sleep_randomly()
                workers["wait"].request_stop()
                client.insert({"x": 0}, {"empty": 1.0})
                for worker in (*workers.values(), *writers.values()):
                    worker.stop()
                    assert [error for *_, error in worker.calls if error is not None] == []
                for name, writer in writers.items():
                    first = check_content(client, name, writer, killed)
                    assert sent is None or first <= sent[name]


def check_content(client, table, writer, killed):
    """Checks that the new server has exactly the items that the old one had not acknowledged, once and in order.

    Returns the first of them.
    """
    size = client.info()[table].size
    values = []
    while len(values) < size:
        batch = client.sample(table, min(size - len(values), MAX_SAMPLE_SIZE), timeout=20)
        values += batch.data["x"].ravel().tolist()
    first = writer.written - size
    assert values == list(range(first, writer.written))
    assert first >= writer.acknowledged_before(killed)
    return first


def test_a_batch_that_is_interrupted_names_the_items_that_were_inserted(tmp_path):
    x = np.arange(3_000_000)
    tables = "[engram.Table('t', max_size=10_000_000)]"
    with ServerProcess(tables, tmp_path) as server, Client(server.address, reconnect_timeout=0.3) as client:
        inserting = BackgroundCall(lambda: client.insert_batch("t", {"x": x, "y": x, "z": x}))
        with Client(server.address) as other:
            wait_until(lambda: other.info()["t"].size > 100_000)
        server.kill()
        with pytest.raises(UnavailableError) as raised:
            inserting.result()
        server.start()
        size = client.info()["t"].size
    text = (
        r"; the server has acknowledged the first (\d+) of 3000000 items, and perhaps inserted some of the next (\d+)$"
    )
    found = re.search(text, str(raised.value))
    assert found, str(raised.value)
    first, uncertain = map(int, found.groups())
    assert 0 < first <= size <= first + uncertain
