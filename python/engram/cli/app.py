"""The root command; each subcommand is in the file of its name."""

from typing import Annotated

import typer

import engram
from engram.cli.bench import bench
from engram.cli.checkpoint import checkpoint
from engram.cli.demo import demo
from engram.cli.import_reverb import import_reverb
from engram.cli.info import info
from engram.cli.inspect import inspect
from engram.cli.reshard import reshard
from engram.cli.serve import serve
from engram.cli.top import top
from engram.cli.train import app as train

app = typer.Typer(
    name="engram",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.add_typer(train, name="train")
app.command()(serve)
app.command()(info)
app.command()(top)
app.command()(bench)
app.command()(checkpoint)
app.command()(inspect)
app.command("import-reverb")(import_reverb)
app.command()(reshard)


def _print_version(*, requested: bool) -> None:
    if requested:
        typer.echo(f"engram {engram.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Engram, an experience-replay engine."""


def main() -> None:
    """Runs the command line: the console script `engram`."""
    app()
