"""`engram inspect`: the files of a store's directory, and what is damaged or lost."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import engram
from engram._text import bytes_text, counted
from engram.cli.directory import directory
from engram.cli.output import stdout_console, text
from engram.cli.server_options import JsonFlag, exit_on_error
from engram.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from engram.inspection import InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection

Directory = Annotated[Path, typer.Argument(parser=directory, help="The store's directory.", show_default=False)]

STYLES = {"torn": "yellow", "unfinished": "yellow", "set aside": "yellow", "damaged": "red", "unusable": "red"}


def inspect(path: Directory, *, as_json: JsonFlag = False) -> None:
    """Print the files of a store's directory, without changing them.

    The exit status is 1 if data is damaged or lost, or if there is no store.
    """
    with exit_on_error():
        inspection = engram.inspect_directory(path)
        if inspection.ok and not inspection.files:
            raise StorageError(
                f"{path} has no store: it has neither logs nor checkpoints; give the directory of a store"
            )
    if as_json:
        typer.echo(json.dumps(to_json(inspection), indent=2, allow_nan=False))
    else:
        show(inspection, stdout_console())
    if not inspection.ok:
        raise typer.Exit(1)


def to_json(inspection: Inspection) -> dict[str, Any]:
    """Returns an inspection as JSON values. `store` is hexadecimal text: JSON readers would round so large a number."""
    store = None if inspection.store is None else f"{inspection.store:016x}"
    return {"ok": inspection.ok} | dataclasses.asdict(inspection) | {"store": store}


def show(inspection: Inspection, console: Console) -> None:
    """Prints a summary, then the state that a store would open with, then all checkpoints and files."""

    def print_line(line: str, style: str = "") -> None:
        console.print(text(line, style), soft_wrap=True)

    print_line(_summary(inspection))
    for problem in inspection.problems:
        print_line(f"problem: {problem}", "red")
    if inspection.opening is not None and inspection.store is not None:
        print_line(_opening(inspection.opening))
        if inspection.opening.tables:
            console.print(_tables(inspection.opening.tables))
    if inspection.checkpoints:
        console.print(_checkpoints(inspection.checkpoints))
    if inspection.files:
        console.print(_files(inspection.files))
    for note in inspection.notes:
        print_line(f"note: {note}")
    if inspection.other_files:
        print_line(f"other files: {', '.join(inspection.other_files)}")


def _summary(inspection: Inspection) -> str:
    user = "" if inspection.in_use is None else f", in use by {inspection.in_use}"
    if not inspection.files:
        return f"no store in this directory{user}"
    store = "a store" if inspection.store is None else f"store {inspection.store:016x}"
    sizes = bytes_text(sum(each.bytes for each in inspection.files))
    result = "nothing is damaged or lost" if inspection.ok else counted(len(inspection.problems), "problem")
    return f"{store}, {counted(len(inspection.files), 'file')} of {sizes}{user}: {result}"


def _opening(opening: InspectedOpening) -> str:
    repair = " with repair" if opening.repaired else ""
    checkpoint = "" if opening.checkpoint is None else f"loads checkpoint {opening.checkpoint} and "
    changes = counted(opening.changes, "change")
    return f"opening this directory{repair} {checkpoint}replays {changes}; the store is {_age(opening.age)} old"


def _tables(tables: Iterable[InspectedTable]) -> Table:
    shown = _table("table", "items", "bytes", "last change")
    for each in tables:
        size = "" if each.bytes is None else bytes_text(each.bytes)
        shown.add_row(text(each.name), f"{each.items:,}", size, f"{each.last_change:,}")
    return shown


def _checkpoints(checkpoints: Iterable[InspectedCheckpoint]) -> Table:
    shown = _table("checkpoint", "age", "chunks", "bytes of chunks", left=("state", "items"))
    for each in checkpoints:
        age = "" if each.created is None else _age(time.time() - each.created)
        state = "verified" if each.problem is None else "cannot be used"
        tables = ", ".join(f"{table.name} {table.items:,}" for table in each.tables)
        style = "" if each.problem is None else "red"
        shown.add_row(
            str(each.number), age, f"{each.chunks:,}", bytes_text(each.chunk_bytes), text(state, style), text(tables)
        )
    return shown


def _files(files: Iterable[InspectedFile]) -> Table:
    shown = _table("file", "bytes", "records", "changes", left=("state",))
    for each in files:
        place = "" if each.offset is None else f" at byte {each.offset:,}"
        changes = "" if each.first_change is None else f"{each.changes:,}"
        state = text(f"{each.state}{place}", STYLES.get(each.state, ""))
        shown.add_row(text(each.name), bytes_text(each.bytes), f"{each.records:,}", changes, state)
    return shown


def _table(first: str, *numbers: str, left: Iterable[str] = ()) -> Table:
    """Returns an empty table with these headings; the columns `numbers` are aligned right, the others left."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column(first, no_wrap=True)
    for heading in numbers:
        shown.add_column(heading, justify="right", no_wrap=True)
    for heading in left:
        shown.add_column(heading)
    return shown


def _age(seconds: float) -> str:
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * size:
            return counted(int(seconds / size), unit)
    return counted(max(0, int(seconds)), "second")
