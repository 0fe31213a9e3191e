"""The command line, `engram ...`: parses arguments, calls the library, prints.

Only this package imports Typer and Rich.
"""

from engram.cli.app import app, main

__all__ = ["app", "main"]
