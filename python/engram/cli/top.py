"""`engram top`: the state of a server's tables, updated continuously."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live

import engram
from engram.cli.info import render
from engram.cli.keyboard import wait_for_q
from engram.cli.output import stdout_console, text
from engram.cli.server_options import Address, Ca, Certificate, Key, Token, exit_on_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType


def top(
    address: Address,
    *,
    token: Token = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.05)] = 1.0,
    count: Annotated[
        int | None, typer.Option(help="Number of updates after which to exit; no limit by default.", min=1)
    ] = None,
) -> None:
    """Watch the sizes and rates of a server's tables, and why calls wait; q or Ctrl-C exits.

    Without a terminal, updates are printed one after the other, and only Ctrl-C exits.
    """
    console = stdout_console()
    updates = 0
    with exit_on_error(), suppress(KeyboardInterrupt), wait_for_q() as wait, _display(console) as show:
        client = engram.Client(address, token=token, ca=ca, certificate=certificate, key=key)
        while count is None or updates < count:
            heading = text(f"{address}, {time.strftime('%H:%M:%S')}", style="dim")
            show(Group(heading, render(client.info())))
            updates += 1
            if updates != count and wait(interval):
                break


@contextmanager
def _display(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yields a function that prints a renderable; on a terminal it replaces the one before."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield lambda content: live.update(content, refresh=True)
