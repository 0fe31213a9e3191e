"""`engram dashboard`: a live page of servers, tables and training runs."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import engram
from engram._extras import importing_extra
from engram.cli.output import echo
from engram.cli.server_options import Ca, Certificate, Key, Token, exit_on_error

Addresses = Annotated[
    list[str] | None, typer.Argument(help="Addresses of servers, host:port. Default: 127.0.0.1:7077.")
]

RECONNECT_TIMEOUT_S = 2.0
"""How long a page waits for a server before it states that there is no reply."""


def dashboard(
    addresses: Addresses = None,
    *,
    token: Token = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    host: Annotated[str, typer.Option(help="IP address or host name that the page listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any free port.", min=0, max=65_535)] = 7078,
    page_token: Annotated[
        str | None,
        typer.Option(
            help="Token that a browser must send before it sees anything. Needed for a --host that other machines can "
            "reach. Default: none.",
            envvar="ENGRAM_DASHBOARD_TOKEN",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Open the page without a token to all programs that can reach --host.")
    ] = False,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Show the view that changes rate limiters, writes checkpoints, and resets and drops tables.",
        ),
    ] = False,
    runs: Annotated[Path, typer.Option(help="Directory with the log directories of training runs.")] = Path("runs"),
) -> None:
    """Show servers, tables and training runs on a live page, until Ctrl-C."""
    with exit_on_error():
        try:
            page_module = import_dashboard("`engram dashboard`")
            options = page_module.DashboardOptions(
                host=host, port=port, page_token=page_token, insecure=insecure, allow_changes=allow_changes, runs=runs
            )
            clients = {
                address: engram.Client(
                    address,
                    token=token,
                    ca=ca,
                    certificate=certificate,
                    key=key,
                    reconnect_timeout=RECONNECT_TIMEOUT_S,
                )
                for address in addresses or ["127.0.0.1:7077"]
            }
            servers = {address: lambda client=client: client for address, client in clients.items()}
            with page_module.DashboardServer(servers, options, port_name="--port") as page:
                echo(page.url)
                page.wait()
        except ModuleNotFoundError as error:
            echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            pass


def import_dashboard(feature: str) -> ModuleType:
    """Returns the module `engram.dashboard`, with all that it needs imported.

    Raises:
        ModuleNotFoundError: NiceGUI is not installed; the text names `feature` and the extra to install.
    """
    with importing_extra("dashboard", feature):
        importlib.import_module("engram.dashboard.pages")
        return importlib.import_module("engram.dashboard")
