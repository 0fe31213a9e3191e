"""Paths of directories, as arguments of commands."""

from pathlib import Path

import typer

__all__ = ["directory"]


def directory(text: str) -> Path:
    """Returns the path of a directory.

    Raises:
        typer.BadParameter: The text is empty, for example because a script did not set a variable. Python would use the
            working directory.
    """
    if not text:
        raise typer.BadParameter("must not be empty; give a directory (. is the working directory)")
    return Path(text)
