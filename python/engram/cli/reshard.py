"""`engram reshard`: distributes the tables of closed stores to another number of stores."""

from pathlib import Path
from typing import Annotated

import typer

from engram import resharding
from engram._text import counted
from engram.cli.directory import directory
from engram.cli.load_progress import load_progress
from engram.cli.output import echo
from engram.cli.server_options import exit_on_error

Directories = Annotated[
    list[Path],
    typer.Argument(
        parser=directory,
        metavar="DIR...",
        help="Directories of closed stores, with the same tables and options.",
        show_default=False,
    ),
]
Into = Annotated[int, typer.Option("--into", metavar="N", help="Number of new directories.", show_default=False)]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        parser=directory,
        metavar="PARENT",
        help="Parent of the new directories, shard-0 and so on; must not exist yet, or be empty.",
        show_default=False,
    ),
]


def reshard(directories: Directories, *, into: Into, output: Output) -> None:
    """Distribute the tables of closed stores to another number of directories, for `engram serve --path`."""
    with exit_on_error(), load_progress(output, "resharding to") as progress:
        resharded = resharding.reshard(directories, into=into, output=output, progress=progress)
    echo(f"{output}: {counted(len(resharded.directories), 'shard')}")
    for table, sizes in resharded.tables.items():
        shards = ", ".join(f"{size:,}" for size in sizes)
        echo(f"  {table}: {counted(sum(sizes), 'item')} ({shards})")
    for note in resharded.notes:
        echo(f"note: {note}", err=True)
