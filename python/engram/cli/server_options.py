"""Options and arguments that several subcommands share, and their handling of errors."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli.output import describe_error, echo
from engram.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Iterator

Address = Annotated[str, typer.Argument(help="Address of the server, host:port.", envvar="ENGRAM_ADDRESS")]
Token = Annotated[
    str | None,
    typer.Option(
        help="The token that the server requires. Default: none.",
        envvar="ENGRAM_TOKEN",
        show_default=False,
        show_envvar=True,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(help="PEM file of the certificate authority of the server; enables TLS, which is off by default."),
]
Certificate = Annotated[
    Path | None,
    typer.Option(help="PEM file of this client's certificate, if the server requires one; needs --key. Default: none."),
]
Key = Annotated[Path | None, typer.Option(help="PEM file of the private key of --certificate. Default: none.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@contextmanager
def exit_on_error(*, convert_arguments: bool = True) -> Iterator[None]:
    """Ends the command with exit status 1 and one line on stderr if Engram raises an error; see `describe_error`."""
    try:
        yield
    except EngramError as error:
        echo(f"error: {describe_error(error, convert_arguments=convert_arguments)}", err=True)
        raise typer.Exit(1) from error
