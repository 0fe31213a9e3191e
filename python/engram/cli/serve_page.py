"""The live page of `engram serve --dashboard-port`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

from engram.cli.dashboard import import_dashboard
from engram.cli.output import echo
from engram.errors import InvalidArgumentError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from engram import Server
    from engram.dashboard import DashboardServer

__all__ = ["check_page", "server_page"]


def check_page(port: int | None, token: str | None, client_ca: Path | None) -> None:
    """Checks, before tables are loaded, that a page can be opened; exits with status 1 if its extra is missing.

    Does nothing without a port.

    Raises:
        InvalidArgumentError: Clients need certificates, which the page would not require from a browser.
    """
    if port is None:
        return
    if client_ca is not None and token is None:
        raise InvalidArgumentError(
            "--dashboard-port with --client-ca needs --token: the page cannot check certificates, so it would be open "
            "to all programs of this machine"
        )
    try:
        import_dashboard("`engram serve --dashboard-port`")
    except ModuleNotFoundError as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def server_page(server: Server, port: int | None, token: str | None) -> AbstractContextManager[DashboardServer | None]:
    """Opens a page of a server of this process on 127.0.0.1; `None` without a port.

    Args:
        server: The server.
        port: Port of the page; 0 for any free port. `None`: no page.
        token: Token of the server, which the page requires too. `None`: no token.

    Raises:
        InvalidArgumentError: The port is in use.
    """
    if port is None:
        return nullcontext()
    dashboard = import_dashboard("`engram serve --dashboard-port`")
    page: DashboardServer = dashboard.DashboardServer(
        {server.address: lambda: server.store},
        dashboard.DashboardOptions(port=port, page_token=token),
        port_name="--dashboard-port",
    )
    return page
