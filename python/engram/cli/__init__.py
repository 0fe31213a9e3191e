"""The command line, `engram ...`: parses arguments, calls the library, prints.

Only this package imports Typer. It also imports Rich, like `engram._progress`.
"""

from engram.cli.app import app, main

__all__ = ["app", "main"]
