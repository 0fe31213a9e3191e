"""The command line, `engram ...`: parses, calls the library, prints. The only place that imports Typer and Rich."""

from engram.cli.app import app, main

__all__ = ["app", "main"]
