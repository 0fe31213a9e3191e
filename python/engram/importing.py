"""Import of checkpoints of other replay systems."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engram import _checks, _engram
from engram.store import Store

__all__ = ["Imported", "import_reverb"]


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import.

    Attributes:
        path: Directory of the checkpoint that was read.
        tables: Number of items in each added table, by table name.
        notes: One text for each table whose signature could not be imported completely. All items are imported.
    """

    path: Path
    tables: Mapping[str, int]
    notes: tuple[str, ...]


def import_reverb(path: str | os.PathLike[str], store: Store) -> Imported:
    """Adds all tables of a dm-reverb checkpoint to a store.

    Items keep their data, priority, times sampled and order. Tables keep their selectors, sizes, signatures, and rate
    limiters with their counts. Each item is a tuple of columns, in the order of dm-reverb's flattened steps. Keys lose
    their highest bit, because Engram's keys have 63 bits. If the store has a directory, the tables are stored there
    when this returns. The checkpoint is not changed. Ctrl-C takes effect at the end of the import.

        imported = import_reverb("/checkpoints/2024-05-01", store)
        print(imported.tables)

    Args:
        path: Checkpoint of dm-reverb (a directory with `tables.tfrecord`), or a directory of checkpoints, of which the
            newest complete one is read.
        store: Store in this process that has no tables of these names.

    Returns:
        The checkpoint's directory, the number of items in each table, and notes on incomplete signatures.

    Raises:
        StorageError: There is no complete checkpoint, or it is corrupt; the text names the file and the record. Nothing
            was added.
        InvalidArgumentError: The store has a table of one of these names, or is a client, or `path` is not a path.
            Nothing was added.
        ClosedError: The store is closed.
    """
    _checks.instance_of("`store`", store, Store, "an engram.Store in this process")
    native = store._native  # noqa: SLF001, the store's native object
    imported_path, tables, notes = _engram.import_reverb(native, _checks.path("`path`", path))
    return Imported(imported_path, tables, tuple(notes))
