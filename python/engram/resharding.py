"""Resharding: distributes the tables of closed stores to another number of stores."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engram import _checks, _engram

__all__ = ["MAX_SHARDS", "Resharded", "reshard"]

MAX_SHARDS = 1023
"""Maximum number of new directories."""


@dataclass(frozen=True, slots=True)
class Resharded:
    """Result of a resharding.

    Attributes:
        directories: The new directories, by shard.
        tables: Number of items in each shard, by table name.
        notes: What was damaged or unfinished in the sources, as `Store.notes` reports it; each text begins with the
            directory.
    """

    directories: tuple[Path, ...]
    tables: Mapping[str, tuple[int, ...]]
    notes: tuple[str, ...]


def reshard(
    directories: Iterable[str | os.PathLike[str]],
    *,
    into: int,
    output: str | os.PathLike[str],
    progress: Callable[[int, int], object] | None = None,
) -> Resharded:
    """Writes the tables of closed stores to `into` new directories, `output/shard-0` and so on.

    Each item is in one of them, with its key, data, priority and times sampled. Bounds and counts of rate limiters are
    divided: open the new directories without tables, which would replace them. The given directories are not changed,
    and no store can open them meanwhile. `output` appears when everything is on disk; if the call fails or is
    interrupted, nothing is left there. A call that was killed can be repeated.

        resharded = reshard(["runs/7/shard-0", "runs/7/shard-1", "runs/7/shard-2"], into=5, output="runs/7/five")
        print(resharded.tables)

    Args:
        directories: Directories of closed stores, with the same tables and options.
        into: Number of new directories, from 1 to 1023.
        output: A directory that does not exist yet, or an empty one.
        progress: Called with the number of bytes processed and in total. If it raises, the call stops with that
            exception.

    Returns:
        The new directories, the number of items of each table in each of them, and notes about the sources.

    Raises:
        InvalidArgumentError: There is no directory, or one is given twice, or as a copy; tables or options differ, or
            two directories have an item with the same key; `into` is out of range, or needs more open files than
            the process may have; `output` exists and is not empty, or is in a source; a source is in `output.tmp`,
            which this function removes.
        StorageError: A directory is open in a process, damaged, of a newer format or without a store, or something
            cannot be read or written.
    """
    paths = [
        _checks.path("each of `directories`", each)
        for each in _checks.elements("`directories`", directories, "an iterable of paths")
    ]
    into = _checks.integer("`into`", into, high=MAX_SHARDS)
    _checks.function("`progress`", progress)
    shards, tables, notes = _engram.reshard(paths, into, _checks.path("`output`", output), progress)
    return Resharded(tuple(shards), {name: tuple(items) for name, items in tables}, tuple(notes))
