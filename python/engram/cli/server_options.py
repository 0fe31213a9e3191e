"""What all subcommands that talk to a server have in common: options, and how a failure ends them."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Iterator

Address = Annotated[str, typer.Argument(help="The server's host:port.", envvar="ENGRAM_ADDRESS")]
Token = Annotated[
    str | None,
    typer.Option(help="What the server asks for.", envvar="ENGRAM_TOKEN", show_default=False, show_envvar=True),
]
Ca = Annotated[Path | None, typer.Option(help="PEM file with who signed the server's certificate; turns TLS on.")]
Certificate = Annotated[
    Path | None, typer.Option(help="PEM file with our certificate, if the server asks for one; with --key.")
]
Key = Annotated[Path | None, typer.Option(help="PEM file with its private key.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the command with status 1 and the error's text, without a traceback, when Engram says no."""
    try:
        yield
    except EngramError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
