"""`engram import-reverb`: takes a checkpoint of dm-reverb into a store's directory."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

import engram
from engram.cli.server_options import exit_on_error

Source = Annotated[
    Path, typer.Argument(help="A checkpoint of dm-reverb, or a directory of them: the newest.", show_default=False)
]
Into = Annotated[
    Path,
    typer.Option("--into", help="The directory of a store; it is made if it is not there.", show_default=False),
]


def import_reverb(checkpoint: Source, *, into: Into) -> None:
    """Add the tables of a checkpoint of dm-reverb to a store's directory, which `engram serve --path` then serves."""
    was_there = into.exists()
    try:
        with exit_on_error(), engram.Store.open(into) as store:
            imported = engram.import_reverb(checkpoint, store)
    except BaseException:
        if not was_there:
            shutil.rmtree(into, ignore_errors=True)
        raise
    items = sum(imported.tables.values())
    typer.echo(f"{imported.path}: {items:,} items of {len(imported.tables):,} tables")
    for table, size in imported.tables.items():
        typer.echo(f"  {table}: {size:,} items")
    for note in imported.notes:
        typer.echo(f"note: {note}", err=True)
