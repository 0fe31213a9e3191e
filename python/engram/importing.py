"""What other replay systems have saved, taken into a store."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engram import _checks, _engram
from engram.store import Store

__all__ = ["Imported", "import_reverb"]


@dataclass(frozen=True, slots=True)
class Imported:
    """What was taken in.

    Attributes:
        path: Of the checkpoint that was read: one directory.
        tables: The tables that were added, by name, and how many items each has.
        notes: What could not be taken over, in words; no item.
    """

    path: Path
    tables: Mapping[str, int]
    notes: tuple[str, ...]


def import_reverb(path: str | os.PathLike[str], store: Store) -> Imported:
    """Adds all tables of a checkpoint of dm-reverb to a store.

    Items keep their content, priority, times sampled and order; tables their selectors, sizes, limiters with their
    counts, and signature. Items are tuples of columns in the order of dm-reverb's flattened steps; the highest bit of
    their keys is dropped, as Engram's keys have 63. Where the store lives in a directory, so does what was added once
    this returns; the checkpoint stays as it is. Ctrl-C waits for its end.

        imported = import_reverb("/checkpoints/2024-05-01", store)
        print(imported.tables)

    Args:
        path: A checkpoint of dm-reverb (the directory with `tables.tfrecord`), or a directory of checkpoints: then
            the newest complete one is read.
        store: A store in this process, with no tables of these names.

    Returns:
        What was taken in: from which directory, how many items into each table, and what could not be taken over.

    Raises:
        StorageError: There is no complete checkpoint, or it is damaged or says what cannot be; the text says which
            record of which file. Nothing was added.
        InvalidArgumentError: The store has a table of such a name, or is a client. Nothing was added.
        TypeError: `path` is no path.
        ClosedError: The store is closed.
    """
    _checks.instance_of("`store`", store, Store, "an engram.Store in this process")
    native = store._native  # noqa: SLF001, its other half
    found, tables, notes = _engram.import_reverb(native, os.fsdecode(path))
    return Imported(found, tables, tuple(notes))
