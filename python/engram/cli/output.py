"""Printing. `echo` and `text` escape control characters in text from a server, a directory or a file."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from engram._text import printable
from engram.errors import EngramError, HandshakeError, InvalidArgumentError, UnavailableError

_OPTIONS = (
    "token",
    "ca",
    "certificate",
    "key",
    "client_ca",
    "insecure",
    "host",
    "port",
    "metrics_port",
    "shard_id",
    "page_token",
)
"""Python arguments that are options of the command line."""

_ARGUMENT = re.compile(rf"(?<!table )(?<!column )`({'|'.join(_OPTIONS)})`")
"""Matches one of these arguments in an error text. What follows the word `table` or `column` is a name instead."""

_WITHOUT_OPTION = {
    " (`reconnect_timeout`)": "",
    "pass one of the names in its subjectAltName as `server_name`": (
        "use an address with one of the names in its subjectAltName"
    ),
}
"""Replacements for parts of error texts that name arguments for which the command line has no option."""


_UNLIMITED_WIDTH = 2**20
"""Width of a console without a terminal, in characters; longer lines would be wrapped."""


def stdout_console() -> Console:
    """Returns a console that prints to stdout. Unless stdout is a terminal, it cuts and wraps nothing."""
    return Console(width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH)


def echo(line: str, *, err: bool = False) -> None:
    """Prints a line to stdout, or to stderr."""
    typer.echo(printable(line), err=err)


def text(content: str, style: str = "") -> Text:
    """Returns text for a Rich table or console."""
    return Text(printable(content), style=style)


def fail(console: Console, message: str) -> NoReturn:
    """Prints an error and ends the command with exit status 1."""
    console.print(text(f"error: {message}"), soft_wrap=True)
    raise typer.Exit(1)


def describe_error(error: EngramError, *, convert_arguments: bool = True) -> str:
    """Returns the text of an error, with options of the command line in place of Python arguments.

    With `convert_arguments=False`, the text is returned unchanged: the names in it are not those of Python arguments.
    """
    described = str(error)
    if convert_arguments and isinstance(error, InvalidArgumentError | HandshakeError | UnavailableError):
        for argument, replacement in _WITHOUT_OPTION.items():
            described = described.replace(argument, replacement)
        described = _ARGUMENT.sub(lambda match: f"--{match[1].replace('_', '-')}", described)
    return described
