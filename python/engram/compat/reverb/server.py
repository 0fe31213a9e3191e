"""The server: tables that clients in this and other processes reach."""

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

_LEASE = 86_400.0
"""Seconds that a reader may take over a sample until others get it: Reverb has no such bound."""

_POLL_INTERVAL = 0.25
"""Seconds between two looks of `wait`; signals do not wait for them."""


class Server:
    """Serves tables over the network until it is stopped.

        server = reverb.Server([reverb.Table.queue("queue", 100)], port=8000)
        client = reverb.Client("localhost:8000")

    Whoever reaches the port may use it: there is no password. It listens to other machines, too, unless told otherwise.
    A server that is dropped is stopped.
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
        *,
        host: str | None = None,
    ) -> None:
        """Starts to serve, with the newest checkpoint if there is one.

        A table that a checkpoint holds has its items and counters from there; its options are those given here.

        Args:
            tables: At least one, of different names. They belong to this server until it is stopped.
            port: To listen on, up to 65535; None or 0: any free one, see `port`.
            checkpointer: Where checkpoints are, one of `reverb.checkpointers`; None: in a temporary directory.
            host: Name or address to listen on, such as "localhost" for this machine alone; None: all there are.

        Raises:
            TypeError: An argument has another type.
            ValueError: There are no tables, names are used twice, a table is another server's, the port is taken or
                none, the host is no address of this machine, or a checkpoint has a table that is not given here.
            RuntimeError: The directory of checkpoints cannot be used: another server has it, or it is damaged.
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
        place = checkpointer.internal_checkpointer()
        _arguments.instance(
            "checkpointer.internal_checkpointer()", place, CheckpointPaths, "what reverb.checkpointers return"
        )
        self._stopping = threading.Lock()
        self._stopped = threading.Event()
        self._tables = tables
        with translated():
            self._server_store = ServerStore(place, tables)
            try:
                self._server = engram.Server(
                    self._server_store.store,
                    host=_everywhere() if host is None else host,
                    port=port or 0,
                    insecure=True,
                    lease_timeout=_LEASE,
                )
            except BaseException:
                self._server_store.abandon()
                raise
        for table in tables:
            table._bind(self._server_store.store)  # noqa: SLF001, this package's

    @property
    def port(self) -> int:
        """The port it listens on, from 1 to 65535; also after `stop`."""
        return self._server.port

    def stop(self) -> None:
        """Frees the port and all items. May be called again.

        Calls of clients go on waiting, for the next server at its address. What was not written with
        `Client.checkpoint` is lost. Tables may be given to another server then.
        """
        with self._stopping:
            if self._stopped.is_set():
                return
            try:
                with translated():
                    self._server.close()
                    self._server_store.close()
            finally:
                for table in self._tables:
                    table._release()  # noqa: SLF001, this package's
                self._stopped.set()

    def wait(self) -> None:
        """Waits until it is stopped.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed while the main thread waits here, whatever handler it has else.
        """
        with _interruptible():
            while not self._stopped.wait(_POLL_INTERVAL):
                pass

    def localhost_client(self) -> Client:
        """A client of this server, for this machine."""
        return Client(f"localhost:{self.port}")

    def in_process_client(self) -> Client:
        """A client of this server: `localhost_client`, by its name in older releases of Reverb."""
        return self.localhost_client()

    def __del__(self) -> None:
        if hasattr(self, "_server") and not sys.is_finalizing():  # the end of the process stops it, too
            with contextlib.suppress(Exception):  # as in a forked child
                self.stop()

    def __repr__(self) -> str:
        return f"Server(port={self.port}, tables={self._tables})"


def _checked(tables: Sequence[Table] | None) -> list[Table]:
    if isinstance(tables, Table):
        raise TypeError(f"`tables` must be a sequence of tables; got table '{tables.name}' itself")
    found = list(tables or ())
    if not found:
        raise ValueError("At least one table must be provided")
    for table in found:
        _arguments.instance("each of tables", table, Table, "a reverb.Table")
    twice = [name for name, count in Counter(table.name for table in found).items() if count > 1]
    if twice:
        raise ValueError(f"Multiple items in tables have the same name: {', '.join(twice)}")
    for table in found:
        table._check_free()  # noqa: SLF001, this package's
    return found


def _everywhere() -> str:
    """All addresses: those of both kinds, where the machine has both."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::", 0))
    except OSError:
        return "0.0.0.0"  # noqa: S104, as Reverb listens
    return "::"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Within it, Ctrl-C is a `KeyboardInterrupt` in the main thread, as Python has it by default."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
