"""`engram import-reverb`: takes a checkpoint of dm-reverb into a store's directory."""

from pathlib import Path
from typing import Annotated

import typer

import engram
from engram.cli.remote import failures

Source = Annotated[
    Path, typer.Argument(help="A checkpoint of dm-reverb, or a directory of them: the newest.", show_default=False)
]
Into = Annotated[
    Path,
    typer.Option("--into", help="The directory of a store; it is made if it is not there.", show_default=False),
]


def import_reverb(checkpoint: Source, *, into: Into) -> None:
    """Add the tables of a checkpoint of dm-reverb to a store's directory, which `engram serve --path` then serves."""
    with failures(), engram.Store.open(into) as store:
        imported = engram.import_reverb(checkpoint, store)
        sizes = {name: info.size for name, info in store.info().items()}
    typer.echo(f"{imported.path}: {imported.items:,} items of {len(imported.tables):,} tables")
    for table in imported.tables:
        typer.echo(f"  {table}: {sizes[table]:,} items")
