"""Paths of directories, as arguments of commands."""

from pathlib import Path

import typer

__all__ = ["directory"]


def directory(text: str) -> Path:
    """Returns the path of a directory.

    Raises:
        typer.BadParameter: It is empty. Python would use the working directory, but a script's variable is not set.
    """
    if not text:
        raise typer.BadParameter("must not be empty; give a directory (. is the working directory)")
    return Path(text)
