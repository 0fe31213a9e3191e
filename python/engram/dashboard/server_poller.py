"""Reads the state of one server regularly, in a thread of its own, for all open pages together; not without pages."""

import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from engram import TableInfo, TableStore
from engram.dashboard.table_history import TableHistory
from engram.dashboard.texts import error_text
from engram.errors import EngramError

__all__ = ["ServerPoller", "ServerState"]

INTERVAL_S = 1.0
"""Pause between two reads. Longer if a read takes long, as one of thousands of tables does."""

READ_SHARE = 10
"""A pause is at least this many times as long as the read before it."""

WATCHED_S = 5.0
"""How long a server is read after a page last asked for it."""

MAX_HISTORIES = 500
"""Number of tables whose history is kept."""

MAX_SHARED_S = 60.0
"""How long the result of a shared call is kept."""

T = TypeVar("T")


@dataclass(frozen=True)
class ServerState:
    """What is known of a server.

    Attributes:
        infos: State of its tables as of the last successful read.
        read_at: Time of this read, as `time.time()` returns it; `None` before the first one.
        error: Why the last read failed; `None` if it did not.
    """

    infos: Mapping[str, TableInfo]
    read_at: float | None
    error: str | None


class ServerPoller:
    """Reads the state of one server regularly. A slow or dead server delays only its own thread.

    Args:
        name: How pages name the server: its address.
        connect: Returns the store to read. Called again after each error. It may raise an OSError whose text states why
            there is no store now.
    """

    def __init__(self, name: str, connect: Callable[[], TableStore]) -> None:
        self.name = name
        self.state = ServerState({}, None, None)
        self.histories: dict[str, TableHistory] = {}
        self._connect = connect
        self._store: TableStore | None = None
        self._shared: dict[Hashable, tuple[float, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watched_until = -math.inf
        self._watched = threading.Event()
        self._calls = ThreadPoolExecutor(2, thread_name_prefix=f"engram-dashboard-{name}")
        self._thread = threading.Thread(target=self._run, name=f"engram-dashboard-{name}", daemon=True)

    def start(self) -> None:
        """Starts the thread that reads; it waits for `watch`."""
        self._thread.start()

    def watch(self) -> None:
        """Reads the server for 5 seconds. Each open page calls this regularly; without pages, nothing is read."""
        self._watched_until = time.monotonic() + WATCHED_S
        self._watched.set()

    def close(self) -> None:
        """Stops reading. Calls in progress end in the background."""
        self._stopped.set()
        self._watched.set()
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
            self._watched.clear()  # before the comparison: a call of `watch` from now on sets it again
            started = time.monotonic()
            if started > self._watched_until:
                self._pause()
                continue
            self.poll()
            took = time.monotonic() - started
            self._stopped.wait(INTERVAL_S if self.state.error is not None else max(INTERVAL_S, READ_SHARE * took))

    def _pause(self) -> None:
        """Waits until a page is open; the curves have a gap."""
        self._watched.wait()
        self.state = ServerState(self.state.infos, self.state.read_at, None)  # an old error may be over
        for history in list(self.histories.values()):
            history.add_gap()

    def poll(self) -> None:
        """Reads the state once."""
        try:
            infos = self._connected().info()
        except (EngramError, OSError) as error:
            self._store = None
            self.state = ServerState(self.state.infos, self.state.read_at, error_text(error))
            return
        now = time.time()
        for name, info in infos.items():
            if name in self.histories or len(self.histories) < MAX_HISTORIES:
                self.history(name).add(now, info)
        for name in list(self.histories):
            if name not in infos:
                del self.histories[name]
        self.state = ServerState(infos, now, None)
