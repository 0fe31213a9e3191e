"""Inspection of a durable store's directory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engram import _checks, _engram

__all__ = [
    "InspectedCheckpoint",
    "InspectedFile",
    "InspectedOpening",
    "InspectedTable",
    "Inspection",
    "inspect_directory",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedFile:
    """A checkpoint or log file, possibly unfinished.

    Attributes:
        name: File name.
        bytes: Size of the file in bytes.
        records: Number of valid records before the first invalid one.
        first_change: Sequence number of the log's first change; None if the file is not a log, contains only chunks, or
            cannot be read.
        changes: Number of changes in a log's valid `records`.
        state: `"whole"`: all records are valid. `"torn"`: a log ends with an invalid record, as after an interrupted
            write. The changes from there on were not acknowledged, unless the power failed with `durability="process"`
            or the file was damaged later. `"damaged"`: the content differs from what was written. `"unusable"`: nothing
            can be read, the file belongs to another store, or it is missing. `"unfinished"`: the next `open` removes
            the file. `"set aside"`: a `*.lost` file of an earlier opening. The last two kinds of files are not read.
        offset: Byte offset of the first invalid record of a torn or damaged file; None for other files.
        reason: What is wrong with the file; None if nothing is.
        records_after: Number of valid records after `offset`; stores do not read them.
        changes_after: Number of changes in those records.
    """

    name: str
    bytes: int
    records: int
    first_change: int | None
    changes: int
    state: Literal["whole", "torn", "damaged", "unusable", "unfinished", "set aside"]
    offset: int | None
    reason: str | None
    records_after: int
    changes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedTable:
    """A table in a checkpoint, or as a store that opens the directory would restore it.

    Attributes:
        name: Name of the table.
        items: Number of items.
        bytes: Size in bytes of the distinct chunks that the table refers to, and of its items; None for a table in a
            checkpoint.
        last_change: Sequence number of the last logged change to the table; 0 if there is none.
    """

    name: str
    items: int
    bytes: int | None
    last_change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCheckpoint:
    """The readable part of a checkpoint.

    Attributes:
        number: Number of the checkpoint.
        created: Time of creation in seconds since 1970; None if it cannot be read.
        first_change: Sequence number of the first change that is replayed after the checkpoint; None if it cannot be
            read.
        tables: Tables, sorted by name.
        chunks: Number of distinct chunks that the items refer to.
        chunk_bytes: Size in bytes, in the logs, of those chunks that are present.
        missing_chunks: Number of those chunks that are missing.
        problem: Reason why a store cannot restore the checkpoint; None if it can.
    """

    number: int
    created: int | None
    first_change: int | None
    tables: tuple[InspectedTable, ...]
    chunks: int
    chunk_bytes: int
    missing_chunks: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedOpening:
    """What a store that opens the directory would restore.

    Attributes:
        repaired: True if data is lost: the directory opens only with `repair=True`, with this content.
        checkpoint: Number of the checkpoint that is used; None if there is none.
        changes: Number of changes replayed after the checkpoint.
        age: Seconds since the store was created, including the time while it was closed.
        tables: Tables, sorted by name.
    """

    repaired: bool
    checkpoint: int | None
    changes: int
    age: float
    tables: tuple[InspectedTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Content of a store's directory, and what is damaged or lost.

    Attributes:
        path: The directory.
        in_use: Process that has the directory open, according to its `LOCK` file; None if there is none. Files that
            are being written at that moment may look torn.
        store: Random number that identifies the store; None if there is no store, or its files cannot be read.
        files: Engram's files except `LOCK` and `CLOSED`: checkpoints, logs, unfinished files and files set aside, each
            kind sorted.
        other_files: Names of files that are not Engram's, sorted.
        checkpoints: Checkpoints, sorted by number.
        opening: Result of opening the directory; None if it cannot be opened even with `repair=True`.
        refusal: Reason why a store would not open without `repair=True`; None if it would.
        problems: Descriptions of what is damaged or lost.
        notes: Notes that a store would report on opening.
    """

    path: str
    in_use: str | None
    store: int | None
    files: tuple[InspectedFile, ...]
    other_files: tuple[str, ...]
    checkpoints: tuple[InspectedCheckpoint, ...]
    opening: InspectedOpening | None
    refusal: str | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if nothing is damaged, and a store would open with everything that was acknowledged."""
        return not self.problems


def inspect_directory(path: str | os.PathLike[str]) -> Inspection:
    """Describes the content of a store's directory without changing it.

    Reads all checkpoints and logs to their ends and verifies every checksum. Needs as much memory as the store would.

    Args:
        path: The directory. Another process may have it open.

    Returns:
        The files, the checkpoints, what a store would restore, and every problem.

    Raises:
        StorageError: The directory does not exist, or cannot be listed.
        InvalidArgumentError: `path` is not a path.
    """
    directory = _checks.path("`path`", path)
    report = _engram.inspect(directory)
    opening = report["opening"]
    checkpoints = [each | {"tables": _tables(each)} for each in report["checkpoints"]]
    return Inspection(
        path=directory,
        in_use=report["in_use"],
        store=report["store"],
        files=tuple(InspectedFile(**each) for each in report["files"]),
        other_files=tuple(report["other_files"]),
        checkpoints=tuple(InspectedCheckpoint(**each) for each in checkpoints),
        opening=None if opening is None else InspectedOpening(**opening | {"tables": _tables(opening)}),
        refusal=report["refusal"],
        problems=tuple(report["problems"]),
        notes=tuple(report["notes"]),
    )


def _tables(values: Mapping[str, Any]) -> tuple[InspectedTable, ...]:
    return tuple(InspectedTable(**each) for each in values["tables"])
