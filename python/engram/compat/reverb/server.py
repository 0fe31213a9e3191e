"""The server: serves tables to clients in this process and others."""

import contextlib
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import engram
from engram.compat.reverb import _arguments
from engram.compat.reverb._errors import translated
from engram.compat.reverb._server_store import ServerStore
from engram.compat.reverb.client import Client
from engram.compat.reverb.platform.checkpointers_lib import CheckpointerBase, CheckpointPaths
from engram.compat.reverb.platform.default.checkpointers import default_checkpointer
from engram.compat.reverb.table import Table, TableExtensionBase

__all__ = ["Server", "Table", "TableExtensionBase"]

_LEASE_TIMEOUT = 86_400.0
"""Seconds after which sampled but unacknowledged items return to their table. Reverb has no limit."""

_POLL_INTERVAL = 0.25
"""Seconds between two checks in `wait`. Signals are handled immediately."""


class Server:
    """Serves tables over the network until it is stopped.

        server = reverb.Server([reverb.Table.queue("queue", 100)], port=8000)
        client = reverb.Client("localhost:8000")

    There is no authentication: every client that can reach the port has full access. By default, the server listens on
    all network interfaces. A garbage-collected server is stopped.
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
        *,
        host: str | None = None,
    ) -> None:
        """Loads the newest checkpoint, if there is one, and starts to serve.

        Items and counters of tables are loaded from the checkpoint. Table options are those of `tables`.

        Args:
            tables: At least one table; names must differ. They belong to this server until it is stopped.
            port: Port to listen on, up to 65535. None or 0 means any free port, see `port`.
            checkpointer: One of `reverb.checkpointers`. Default: checkpoints in a temporary directory.
            host: Name or address of the interface to listen on, for example "localhost". Default: all interfaces.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: There are no tables, a name is used twice, a table belongs to another server, the port is in use
                or invalid, the host is not an address of this machine, or a checkpoint has a table that is not in
                `tables`.
            RuntimeError: The checkpoint directory cannot be used: another server uses it, or it is corrupt.
        """
        tables = _checked(tables)
        if port is not None:
            port = _arguments.integer("port", port)
        if checkpointer is None:
            checkpointer = default_checkpointer()
        if isinstance(checkpointer, type) or not hasattr(checkpointer, "internal_checkpointer"):
            _arguments.instance("checkpointer", checkpointer, CheckpointerBase, "one of reverb.checkpointers")
        if host is not None:
            _arguments.text("host", host)
        paths = checkpointer.internal_checkpointer()
        _arguments.instance("checkpointer.internal_checkpointer()", paths, CheckpointPaths, "a CheckpointPaths")
        self._stopping = threading.Lock()
        self._stopped = threading.Event()
        self._tables = tables
        with translated():
            self._server_store = ServerStore(paths, tables)
            try:
                self._server = engram.Server(
                    self._server_store.store,
                    host=_any_address() if host is None else host,
                    port=port or 0,
                    insecure=True,
                    lease_timeout=_LEASE_TIMEOUT,
                )
            except BaseException:
                self._server_store.abandon()
                raise
        for table in tables:
            table._bind(self._server_store.store)  # noqa: SLF001, same package

    @property
    def port(self) -> int:
        """The port that the server listens on, or listened on before `stop`; from 1 to 65535."""
        return self._server.port

    def stop(self) -> None:
        """Stops the server and frees its port and items. May be called again.

        Waiting calls of clients continue to wait for another server at the same address. Changes after the last
        `Client.checkpoint` are lost. The tables can be passed to another server.
        """
        with self._stopping:
            if self._stopped.is_set():
                return
            try:
                with translated():
                    try:
                        self._server.close()
                    finally:
                        self._server_store.close()
            finally:
                for table in self._tables:
                    table._release()  # noqa: SLF001, same package
                self._stopped.set()

    def wait(self) -> None:
        """Blocks until the server is stopped.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed while the main thread waits here, even if another signal handler is
                installed.
        """
        with _interruptible():
            while not self._stopped.wait(_POLL_INTERVAL):
                pass

    def localhost_client(self) -> Client:
        """Returns a client of this server that connects to `localhost`."""
        return Client(f"localhost:{self.port}")

    def in_process_client(self) -> Client:
        """Returns `localhost_client()`; the name in older Reverb releases."""
        return self.localhost_client()

    def __del__(self) -> None:
        if hasattr(self, "_server") and not sys.is_finalizing():  # process exit stops the server anyway
            with contextlib.suppress(Exception):  # for example in a forked process
                self.stop()

    def __repr__(self) -> str:
        return f"Server(port={self.port}, tables={self._tables})"


def _checked(tables: Sequence[Table] | None) -> list[Table]:
    if isinstance(tables, Table):
        raise TypeError(f"`tables` must be a sequence of tables; got table '{tables.name}' itself")
    checked = list(tables or ())
    if not checked:
        raise ValueError("At least one table must be provided")
    for table in checked:
        _arguments.instance("each of tables", table, Table, "a reverb.Table")
    duplicates = [name for name, count in Counter(table.name for table in checked).items() if count > 1]
    if duplicates:
        raise ValueError(f"Multiple items in tables have the same name: {', '.join(duplicates)}")
    for table in checked:
        table._check_free()  # noqa: SLF001, same package
    return checked


def _any_address() -> str:
    """The address of all interfaces: IPv6, which includes IPv4, if the machine has IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"  # noqa: S104, as Reverb listens
    return "::"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Context manager: Ctrl-C raises a `KeyboardInterrupt` in the main thread, which is Python's default."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
