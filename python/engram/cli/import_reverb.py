"""`engram import-reverb`: imports a checkpoint of dm-reverb into a store's directory."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import engram
from engram import _engram
from engram.cli.directory import directory
from engram.cli.output import echo
from engram.cli.server_options import exit_on_error

Source = Annotated[
    Path,
    typer.Argument(
        help="A checkpoint of dm-reverb, or a directory of checkpoints, of which the newest complete one is imported.",
        show_default=False,
    ),
]
Into = Annotated[
    Path,
    typer.Option(
        "--into",
        parser=directory,
        metavar="PATH",
        help="Directory of the store; created if it does not exist.",
        show_default=False,
    ),
]


def import_reverb(checkpoint: Source, *, into: Into) -> None:
    """Import the tables of a dm-reverb checkpoint into a store's directory, for `engram serve --path`."""
    existed = into.exists()
    try:
        with exit_on_error(), engram.Store.open(into) as store:
            imported = engram.import_reverb(checkpoint, store)
    except BaseException:
        if not existed:  # the directory was created by this call, unless another process has it open
            with suppress(engram.errors.StorageError):
                _engram.check_unused(into)
                shutil.rmtree(into, ignore_errors=True)
        raise
    items = sum(imported.tables.values())
    echo(f"{imported.path}: {items:,} items in {len(imported.tables):,} tables")
    for table, size in imported.tables.items():
        echo(f"  {table}: {size:,} items")
    for note in imported.notes:
        echo(f"note: {note}", err=True)
