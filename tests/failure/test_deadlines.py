"""Calls end in time when their server is killed, frozen or cut off."""

import contextlib
import os
import threading
import time
from functools import partial

import numpy as np
import pytest
from helpers.faults import Proxy, ServerProcess
from helpers.support import BackgroundCall

import engram
from engram import Client, Dataset, Pattern, Server, Table
from engram.data import numpy as data
from engram.errors import BackpressureError, DeadlineExceededError, UnavailableError
from engram.rate_limiters import Queue

MARGIN = float(os.environ.get("DEADLINE_MARGIN", "4"))
"""Seconds that a call may take longer than its limit; 1 is what is promised, on an idle machine."""

RECONNECT_TIMEOUT = 5.0
"""Seconds. It can take half of this time or more to detect that a server is frozen; calls must still end in time.

Longer than `MARGIN`, so that a call that waits twice as long is late.
"""

TIMEOUT = 0.5
"""Seconds."""

TABLES = """[
    engram.Table("t"),
    engram.Table.queue("full", max_size=1),
    engram.Table.queue("empty", max_size=10),
    engram.Table.queue("queue", max_size=20),
    engram.Table.queue("held", max_size=10),
    *(engram.Table(f"new{number}") for number in range(10)),
]"""

# Abandoned writers warn about their pending items.
pytestmark = [
    pytest.mark.filterwarnings("ignore:a .*Writer was garbage-collected:ResourceWarning"),
    pytest.mark.timeout(240),
]


class TimedCall(threading.Thread):
    """A call in a thread, with its time limit in seconds, its error, and when it began and ended."""

    def __init__(self, name, limit, call):
        super().__init__(name=name, daemon=True)
        self._call = call
        self._limit = limit
        self.error = self.began = self.ended = None
        self.start()

    def run(self):
        self.began = time.monotonic()
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001, `check` fails for other errors than those of Engram
            self.error = error
        self.ended = time.monotonic()

    def lateness(self, failed_at):
        """Returns by how many seconds the call exceeded its limit, counted from its begin or, if later, the failure."""
        return self.ended - max(self.began, failed_at) - self._limit


class Killed:
    """A server that is killed."""

    def __init__(self, path=None):
        self._server = ServerProcess(TABLES, path)
        self.is_durable = path is not None
        self.address = self._server.address

    def fail(self):
        self._server.kill()

    def end(self):
        self._server.__exit__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Frozen(Killed):
    """A server whose process is stopped; its connections stay open."""

    def fail(self):
        self._server.freeze()


class CutOff:
    """A server behind a proxy that stops forwarding its responses."""

    is_durable = False

    def __init__(self):
        self._server = Server(eval(TABLES, {"engram": engram}))  # noqa: S307, the text above
        self._proxy = Proxy(self._server.port)
        self.address = self._proxy.address

    def fail(self):
        self._proxy.mute()

    def end(self):
        self._proxy.close()
        self._server.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


KINDS = {
    "killed": lambda _: Killed(),
    "frozen": lambda _: Frozen(),
    "cut off": lambda _: CutOff(),
    "frozen and durable": Frozen,
}
"""Servers, by how they fail; each takes the path of a store."""


@pytest.fixture
def for_each_server(tmp_path):
    """Returns `for_each_server(test)`, which calls a test with a server of each kind, two at a time.

    Most of the time, they only wait.
    """

    def run(test):
        def run_one(name):
            with KINDS[name](tmp_path / "store") as server:
                test(server)

        names, errors = list(KINDS), []
        for pair in (names[:2], names[2:]):
            calls = {name: BackgroundCall(partial(run_one, name)) for name in pair}
            for name, call in calls.items():
                try:
                    call.result(100.0)
                except Exception as error:  # noqa: BLE001, raised below with those of the other servers
                    error.add_note(f"The server was {name}.")
                    errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("several servers", errors)

    return run


def check(server, calls, failed_at, errors):
    """Waits for calls, and checks when and how they ended; ends the server, so that its clients close quickly."""
    late = {}
    for call in calls:
        call.join(60.0)
        assert call.ended is not None, f"{call.name} does not end"
    server.end()
    for call in calls:
        lateness = call.lateness(failed_at)
        began = call.began - failed_at
        print(f"{call.name}: began {began:+.2f} s, {lateness:+.2f} s, {call.error}")  # noqa: T201, shown if the test fails
        if lateness > MARGIN:
            late[call.name] = lateness
        assert call.error is None or isinstance(call.error, errors), (call.name, call.error)
    assert late == {}


def written(writer, table="full"):
    """Writes two items, of which table `full` accepts none; returns the writer."""
    for _ in range(2):
        writer.append({"x": 0})
        writer.create_item(table, num_steps=1)
    return writer


def next_of(iterator):
    """Returns a call that reads the next batch; the end of the iteration is not an error."""
    return lambda: next(iterator, None)


def after_first(dataset):
    """Returns an iterator that has yielded one element; begins again if that arrived too late, on a busy machine."""
    while True:
        with contextlib.suppress(DeadlineExceededError):
            iterator = iter(dataset)
            if next(iterator, None) is not None:
                return iterator


def started(client, **options):
    """Returns an iterator that has yielded one batch of table `t`."""
    return after_first(Dataset(client, "t", 2, **options))


def started_data(client, table, **options):
    """Returns an iterator of `engram.data` that has yielded one element."""
    return after_first(data.dataset(client, table, **options))


def started_queue(client, **options):
    """Returns an iterator that has yielded one item of table `queue` and fetches more."""
    return after_first(Dataset(client, "queue", **options))


def test_calls_with_a_timeout_end_in_time(for_each_server):
    for_each_server(check_calls_with_a_timeout)


def check_calls_with_a_timeout(server):
    clients = []  # keeps them open

    def connect():
        clients.append(Client(server.address, reconnect_timeout=60.0))
        return clients[-1]

    client = connect()
    for _ in range(4):
        client.insert({"x": 0}, {"t": 1.0})
    client.insert({"x": 0}, {"full": 1.0})
    for _ in range(20):
        client.insert({"x": 0}, {"queue": 1.0})
    for _ in range(2):
        client.insert({"x": np.zeros(1)}, {"held": 1.0}, time_axis=True)
    limited = client.writer(max_in_flight_items=1, timeout=TIMEOUT)
    # These calls begin `TIMEOUT` before the failure, when half of their timeout is left.
    waiting = {
        "sample": lambda: client.sample("empty", 1, timeout=2 * TIMEOUT),
        "insert": lambda: client.insert({"x": 0}, {"full": 1.0}, timeout=2 * TIMEOUT),
        "flush": lambda: written(client.writer()).flush(timeout=2 * TIMEOUT),
        "next": lambda: list(Dataset(client, "empty", 1, timeout=2 * TIMEOUT)),
        "next of steps that fill no batch": lambda: list(
            data.dataset(client, "held", steps=True, batch_size=100, timeout=2 * TIMEOUT)
        ),
    }
    later = {
        "sample": lambda: client.sample("t", 1, timeout=TIMEOUT),
        "insert": lambda: client.insert({"x": 0}, {"t": 1.0}, timeout=TIMEOUT),
        "insert into a new table": lambda: client.insert({"x": 0}, {"new0": 1.0}, timeout=TIMEOUT),
        "insert into two tables": lambda: client.insert({"x": 0}, {"t": 1.0, "empty": 1.0}, timeout=TIMEOUT),
        "append": lambda: written(limited),
        "create_item": lambda: written(client.writer(timeout=TIMEOUT), "new1"),
        "append of a pattern writer": lambda: client.pattern_writer(
            [Pattern("new2", num_steps=1)], timeout=TIMEOUT
        ).append({"x": 0}),
        "flush": partial(written(client.writer()).flush, timeout=TIMEOUT),
        "end_episode": partial(written(client.writer()).end_episode, timeout=TIMEOUT),
        "close of a writer": partial(written(client.writer()).close, timeout=TIMEOUT),
        "a new dataset": lambda: list(Dataset(client, "t", 2, timeout=TIMEOUT)),
        "a new dataset without a wait": lambda: list(Dataset(client, "t", 2, timeout=0)),
        "next": next_of(started(client, timeout=TIMEOUT, prefetch=1)),
        "next without a wait": next_of(started(client, timeout=0.0, prefetch=1)),
        "last next": partial(list, started(client, timeout=TIMEOUT)),
        "last next of a queue": partial(list, started_queue(client, timeout=TIMEOUT, prefetch=1)),
        "last next of a queue without a wait": partial(list, started_queue(client, timeout=0, prefetch=1)),
        "a new dataset of engram.data": lambda: list(data.dataset(client, "t", batch_size=2, timeout=TIMEOUT)),
        "a new dataset of single items": lambda: list(data.dataset(client, "t", timeout=TIMEOUT)),
        "a new dataset of steps": lambda: list(data.dataset(client, "t", steps=True, timeout=TIMEOUT)),
        "last next of single items": partial(list, started_data(client, "queue", timeout=TIMEOUT)),
    }
    closing = {
        "close of a client": connect().close,
        "break": started(client).close,
        "close of a dataset": closing_dataset(client),
    }
    if (
        not server.is_durable
    ):  # otherwise closing waits until the acknowledgements are durable, up to `reconnect_timeout`
        closing["close of a client with unsent acknowledgements"] = sampled(connect()).close
    calls = [TimedCall(f"waiting {name}", TIMEOUT, call) for name, call in waiting.items()]
    time.sleep(TIMEOUT)
    server.fail()
    failed_at = time.monotonic()
    calls += [TimedCall(name, TIMEOUT, call) for name, call in (later | closing).items()]
    check(server, calls, failed_at, (DeadlineExceededError, UnavailableError, BackpressureError))


def sampled(client):
    """Samples an item of a queue; returns the client, whose acknowledgement may not be sent yet."""
    client.insert({"x": 0}, {"empty": 1.0})
    client.sample("empty", 1)
    return client


def closing_dataset(client):
    """Returns a call that closes a dataset with several iterators."""
    dataset = Dataset(client, "t", 2)
    iterators = [iter(dataset) for _ in range(3)]
    for iterator in iterators:
        next(iterator)

    def close():
        dataset.close()
        iterators.clear()  # until here, they are referenced and open

    return close


def test_calls_without_a_timeout_end_within_the_reconnect_timeout(for_each_server):
    for_each_server(check_calls_without_a_timeout)


def check_calls_without_a_timeout(server):
    clients = []  # keeps them open

    def connect():
        clients.append(Client(server.address, reconnect_timeout=RECONNECT_TIMEOUT))
        return clients[-1]

    client = connect()
    keys = [client.insert({"x": 0}, {"t": 1.0}) for _ in range(4)]
    client.insert({"x": 0}, {"full": 1.0})
    unawaited = connect()
    unawaited.tables  # noqa: B018, connects
    waiting = {
        "sample": lambda: client.sample("empty", 1),
        "insert": lambda: client.insert({"x": 0}, {"full": 1.0}),
        "flush": lambda: written(client.writer()).flush(),
        "next": lambda: list(Dataset(client, "empty", 1)),
    }

    def change_without_waiting():
        unawaited.update_priorities("t", keys, np.ones(4), wait=False)
        unawaited.close()

    def use_with_block():
        with client.writer() as writer:
            written(writer, "t")

    impatient = Client(server.address, reconnect_timeout=1.0)
    assert "t" in impatient.tables

    def call_twice():
        with pytest.raises(UnavailableError):
            impatient.info()
        begin = time.monotonic()
        with pytest.raises(UnavailableError):
            impatient.info()
        # It counts from the begin of each call, not from the moment when the server failed.
        assert time.monotonic() - begin > 0.5

    later = {
        "info": client.info,
        "tables": lambda: client.tables,
        "create_table": lambda: client.create_table(Table("created")),
        "drop_table": lambda: client.drop_table("new5"),
        "reset": lambda: client.reset("new6"),
        "set_rate_limiter": lambda: client.set_rate_limiter("empty", Queue(7)),
        "checkpoint": client.checkpoint,
        "sample": lambda: client.sample("t", 1),
        "insert": lambda: client.insert({"x": 0}, {"t": 1.0}),
        "insert into a new table": lambda: client.insert({"x": 0}, {"new0": 1.0}),
        "insert after a sample": partial(sampled(connect()).insert, {"x": 0}, {"t": 1.0}),
        "info after a sample": sampled(connect()).info,
        "update_priorities": lambda: client.update_priorities("t", keys, np.ones(4)),
        "update_priorities after a sample": partial(sampled(connect()).update_priorities, "t", keys, np.ones(4)),
        "delete": lambda: client.delete("t", keys),
        "change without waiting, and close": change_without_waiting,
        "create_item": lambda: written(client.writer(), "new1"),
        "flush": written(client.writer()).flush,
        "end_episode": written(client.writer()).end_episode,
        "close of a writer": written(client.writer()).close,
        "with block": use_with_block,
        "a new dataset": lambda: list(Dataset(client, "t", 2)),
        "next": partial(list, started(client)),
    }
    calls = [TimedCall(f"waiting {name}", RECONNECT_TIMEOUT, call) for name, call in waiting.items()]
    time.sleep(1.0)
    server.fail()
    failed_at = time.monotonic()
    calls += [TimedCall(name, RECONNECT_TIMEOUT, call) for name, call in later.items()]
    calls.append(TimedCall("two calls with another reconnect_timeout", 2.0, call_twice))
    check(server, calls, failed_at, UnavailableError)
    address = server.address
    texts = [str(call.error) for call in calls if call.error is not None]
    assert all(f"the server at {address} cannot be reached: " in text for text in texts), texts
