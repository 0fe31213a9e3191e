"""Serves the pages over HTTP."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

from engram._extras import importing_extra
from engram.dashboard.options import DashboardOptions
from engram.dashboard.server_poller import ServerPoller
from engram.dashboard.state import DashboardState
from engram.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from engram import TableStore

__all__ = ["DashboardServer"]

START_TIMEOUT_S = 30.0


class DashboardServer:
    """A running dashboard. A process can have one.

    with DashboardServer({"localhost:7077": lambda: Client("localhost:7077")}) as dashboard:
        print(dashboard.url)
        dashboard.wait()
    """

    def __init__(
        self,
        servers: Mapping[str, Callable[[], TableStore]],
        options: DashboardOptions | None = None,
        *,
        port_name: str = "`port`",
    ) -> None:
        """Starts the dashboard.

        Args:
            servers: What connects to each server, by the name that pages show. Called again after each error. It may
                raise an OSError whose text states why there is no store now.
            options: What the dashboard shows, and who may open it. Default: `DashboardOptions()`.
            port_name: What the error of a port in use names.

        Raises:
            InvalidArgumentError: The address is not available.
            ModuleNotFoundError: NiceGUI is not installed.
        """
        with importing_extra("dashboard", "the dashboard"):
            import uvicorn  # noqa: PLC0415, an extra

            from engram.dashboard.pages import create_app  # noqa: PLC0415, an extra

        self._options = options or DashboardOptions()
        listener = _listen(self._options, port_name)
        self.port: int = listener.getsockname()[1]
        """The port that the dashboard listens on."""
        self._pollers = [ServerPoller(name, connect) for name, connect in servers.items()]
        app = create_app(DashboardState(self._options, self._pollers), secrets.token_urlsafe(32))
        config = uvicorn.Config(
            app, log_level="warning", lifespan="on", ws_max_size=1 << 20, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="engram-dashboard", daemon=True
        )
        for poller in self._pollers:
            poller.start()
        self._thread.start()
        end = time.monotonic() + START_TIMEOUT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)

    @property
    def url(self) -> str:
        """Address of the page."""
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"http://{host}:{self.port}"

    def wait(self) -> None:
        """Waits until the dashboard is closed. Ctrl-C interrupts the wait."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stops the dashboard. Can be called more than once."""
        self._server.should_exit = True
        self._thread.join(10)
        for poller in self._pollers:
            poller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(options: DashboardOptions, port_name: str) -> socket.socket:
    try:
        return socket.create_server(
            (options.host, options.port), family=socket.AF_INET6 if ":" in options.host else socket.AF_INET
        )
    except OSError as error:
        # `create_server` adds the address to the text.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise InvalidArgumentError(
                f"`host` must be a name or an address of this machine; got {options.host!r}: {reason}"
            ) from None
        advice = "choose a port from 1024 on" if error.errno == errno.EACCES else "choose another port"
        raise InvalidArgumentError(
            f"{port_name}: cannot listen on {options.host}:{options.port}: {reason}; {advice}, or 0 for any free one"
        ) from None
