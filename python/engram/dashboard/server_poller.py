"""Reads the state of one server regularly, in a thread of its own, for all open pages together."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from engram import TableInfo, TableStore
from engram.errors import EngramError

__all__ = ["ServerPoller", "ServerState", "TableHistory", "TablePoint"]

INTERVAL_S = 1.0
"""Pause between two reads. Longer if a read takes long, as one of thousands of tables does."""

HISTORY_S = 600
"""How far back the curves reach."""

MAX_HISTORIES = 500
"""Number of tables whose history is kept."""

MAX_SHARED_S = 60.0
"""How long the result of a shared call is kept."""

T = TypeVar("T")


class TablePoint(NamedTuple):
    """Counters of a table at one time."""

    time: float
    inserts: int
    samples: int
    inserts_per_s: float
    samples_per_s: float


@dataclass
class TableHistory:
    """The last ten minutes of a table.

    Attributes:
        points: Counters, oldest first.
        waiting_since: Time since which calls wait without a pause; `None` if none waits.
    """

    points: deque[TablePoint] = field(default_factory=lambda: deque(maxlen=int(HISTORY_S / INTERVAL_S)))
    waiting_since: float | None = None

    def add(self, now: float, info: TableInfo) -> None:
        """Adds the counters of a table."""
        if self.points and info.inserts < self.points[-1].inserts:
            self.points.clear()  # the table was reset
        self.points.append(TablePoint(now, info.inserts, info.samples, info.inserts_per_s, info.samples_per_s))
        if not info.waiting_inserts and not info.waiting_samples:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = now


@dataclass(frozen=True)
class ServerState:
    """What is known of a server.

    Attributes:
        infos: State of its tables as of the last successful read.
        read_at: Time of this read; `None` before the first one.
        error: Why the last read failed; `None` if it did not.
    """

    infos: Mapping[str, TableInfo]
    read_at: float | None
    error: str | None


class ServerPoller:
    """Reads the state of one server regularly. A slow or dead server delays only its own thread.

    Args:
        name: How pages name the server: its address.
        connect: Returns the store to read. Called again after an error until it succeeds.
    """

    def __init__(self, name: str, connect: Callable[[], TableStore]) -> None:
        self.name = name
        self.state = ServerState({}, None, "connecting")
        self.histories: dict[str, TableHistory] = {}
        self._connect = connect
        self._store: TableStore | None = None
        self._shared: dict[Hashable, tuple[float, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._calls = ThreadPoolExecutor(2, thread_name_prefix=f"engram-dashboard-{name}")
        self._thread = threading.Thread(target=self._run, name=f"engram-dashboard-{name}", daemon=True)

    def start(self) -> None:
        """Starts to read."""
        self._thread.start()

    def close(self) -> None:
        """Stops reading. Calls in progress end in the background."""
        self._stopped.set()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def submit(self, call: Callable[[TableStore], T]) -> "Future[T]":
        """Makes a call to the server in a thread of this poller; others wait until it returns."""
        return self._calls.submit(lambda: call(self._connected()))

    def submit_shared(self, key: Hashable, max_age: float, call: Callable[[TableStore], T]) -> "Future[T]":
        """Like `submit`, but all pages share the result of a call with the same key for `max_age` seconds."""
        now = time.monotonic()
        with self._lock:
            begun, shared = self._shared.get(key, (-math.inf, None))
            if shared is None or now - begun > max_age:
                self._shared = {each: value for each, value in self._shared.items() if now - value[0] < MAX_SHARED_S}
                shared = self.submit(call)
                self._shared[key] = (now, shared)
        return shared

    def history(self, table: str) -> TableHistory:
        """Returns the history of a table; one that begins now if it was not kept."""
        found = self.histories.get(table)
        if found is None:
            found = TableHistory()
            self.histories[table] = found
        return found

    def _connected(self) -> TableStore:
        if self._store is None:
            self._store = self._connect()
        return self._store

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = time.monotonic()
            self.poll()
            self._stopped.wait(max(INTERVAL_S, 10 * (time.monotonic() - started)) if self.state.error is None else 1.0)

    def poll(self) -> None:
        """Reads the state once."""
        try:
            infos = self._connected().info()
        except (EngramError, OSError) as error:
            self.state = ServerState(self.state.infos, self.state.read_at, str(error))
            return
        now = time.time()
        for name, info in infos.items():
            if name in self.histories or len(self.histories) < MAX_HISTORIES:
                self.history(name).add(now, info)
        for name in self.histories.keys() - infos.keys():
            del self.histories[name]
        self.state = ServerState(infos, now, None)
