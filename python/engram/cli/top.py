"""`engram top`: a server's tables, live."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from engram.cli.info import overview
from engram.cli.remote import Address, Ca, Token, connect, failures


def top(
    address: Address,
    *,
    token: Token = None,
    ca: Ca = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after so many looks.", min=1)] = None,
) -> None:
    """Watch sizes, rates, and why calls wait; Ctrl-C ends it."""
    console = Console()
    looks = 0
    with failures():
        client = connect(address, token, ca)
        try:
            with Live(console=console, auto_refresh=False, screen=False) as live:
                while count is None or looks < count:
                    head = Text(f"{address}, {time.strftime('%H:%M:%S')}", style="dim")
                    live.update(Group(head, overview(client.info())), refresh=True)
                    looks += 1
                    if looks != count:
                        time.sleep(interval)
        except KeyboardInterrupt:
            pass
