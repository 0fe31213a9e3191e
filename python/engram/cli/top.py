"""`engram top`: a server's tables, live."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

import engram
from engram.cli.info import overview
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
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after so many looks.", min=1)] = None,
) -> None:
    """Watch sizes, rates, and why calls wait; Ctrl-C ends it. Without a terminal, looks follow each other."""
    console = Console()
    looks = 0
    with exit_on_error(), suppress(KeyboardInterrupt), _display(console) as show:
        client = engram.Client(address, token=token, ca=ca, certificate=certificate, key=key)
        while count is None or looks < count:
            head = Text(f"{address}, {time.strftime('%H:%M:%S')}", style="dim")
            show(Group(head, overview(client.info())))
            looks += 1
            if looks != count:
                time.sleep(interval)


@contextmanager
def _display(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Shows something in place of what it showed before, where there is a terminal."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield lambda look: live.update(look, refresh=True)
