"""The server: tables that clients in this and other processes reach."""

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import engram
from engram.compat.reverb import _interim
from engram.compat.reverb._errors import translated
from engram.compat.reverb.client import Client
from engram.compat.reverb.table import Table, TableExtensionBase

__all__ = ["Server", "Table", "TableExtensionBase"]


class Server:
    """Serves tables over the network until it is stopped."""

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: Any = None,  # noqa: ANN401, for now
        *,
        host: str = "::",
    ) -> None:
        """Starts to serve."""
        tables = list(tables or ())
        if not tables:
            raise ValueError("At least one table must be provided")
        counts = Counter(table.name for table in tables)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(f"Multiple items in tables have the same name: {', '.join(twice)}")
        for table in tables:
            table._check_free()
        self._tables = tables
        self._stopped = threading.Event()
        with translated():
            self._store = engram.Store([table._native for table in tables])
            self._server = engram.Server(self._store, host=host, port=port or 0, insecure=True)
        for table in tables:
            table._bind(self, self._store)
            _interim.KNOWN[self.port, table.name] = table._interim()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    def stop(self) -> None:
        """Ends every call that waits, and frees the port. May be called again."""
        if self._stopped.is_set():
            return
        self._server.stop()
        self._store.close()
        self._stopped.set()
        for table in self._tables:
            table._release()

    def wait(self) -> None:
        """Waits until it is stopped."""
        while not self._stopped.wait(0.25):
            pass

    def localhost_client(self) -> Client:
        """A client of this server."""
        return Client(f"localhost:{self.port}")

    in_process_client = localhost_client

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.stop()
