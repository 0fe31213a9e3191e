"""`engram train curves`: the learning curves of several runs in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engram._extras import importing_extra
from engram.cli.output import echo, fail
from engram.cli.train_ftw import describe_failure
from engram.errors import EngramError


def curves(
    directories: Annotated[list[Path], typer.Argument(help="Directories of runs (--out of `engram train ftw`).")],
    *,
    out: Annotated[Path, typer.Option(help="The picture, such as a PNG or SVG.")] = Path("curves.png"),
) -> None:
    """Draw the learning curves of runs side by side."""
    try:
        with importing_extra("agents", "`engram train`"):
            from engram.agents.ftw.curves import plot_curves  # noqa: PLC0415, an extra
        echo(str(plot_curves(directories, out)))
    except (ModuleNotFoundError, EngramError, OSError) as error:
        fail(Console(stderr=True), describe_failure(error))
