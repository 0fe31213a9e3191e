"""What lies in a durable store's directory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engram import _engram

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
    """A checkpoint, a log, or what is left of one that was not finished.

    Attributes:
        name: In its directory.
        bytes: Of the file.
        records: That pass, up to the first that does not.
        first_change: Of a log: the number of its first change; None: it holds chunks alone, or that cannot be read.
        changes: Of a log: how many those records hold.
        state: `"torn"`: the end of a log was not written whole, and nobody was told that it was. `"damaged"`: bytes
            are not those that were written. `"unusable"`: none of it is read. `"unfinished"`: the next to open the
            directory removes it. `"set aside"`: a repair had no use for it.
        place: The byte from which on a torn or damaged file does not pass.
        why: What is wrong with it; None: nothing.
        records_after: That pass beyond that place; no store reads them.
        changes_after: How many those hold.
    """

    name: str
    bytes: int
    records: int
    first_change: int | None
    changes: int
    state: Literal["whole", "torn", "damaged", "unusable", "unfinished", "set aside"]
    place: int | None
    why: str | None
    records_after: int
    changes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedTable:
    """A table in a checkpoint, or as a store would begin with it.

    Attributes:
        name: Of the table.
        items: How many it has.
        bytes: Of the distinct chunks it refers to, and of its items; None in a checkpoint.
        last_change: Number of the last change made to it; 0: none was numbered.
    """

    name: str
    items: int
    bytes: int | None
    last_change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCheckpoint:
    """A checkpoint, as far as it can be read.

    Attributes:
        number: Of the checkpoint.
        made: Seconds since 1970; None: it cannot be read.
        first_change: The change with which replay begins; None: it cannot be read.
        tables: In order of their names.
        chunks: Distinct ones that its items refer to.
        chunk_bytes: Of those that are there, as logs hold them.
        missing_chunks: Those that are not there.
        problem: Why a store cannot begin with it; None: it can.
    """

    number: int
    made: int | None
    first_change: int | None
    tables: tuple[InspectedTable, ...]
    chunks: int
    chunk_bytes: int
    missing_chunks: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedOpening:
    """What a store opened there would begin with.

    Attributes:
        repaired: Something is lost: it opens with `repair=True` alone, and this is what is left.
        checkpoint: The one that it takes; None: there is none.
        changes: That are replayed after it.
        age: Seconds since the store was created.
        tables: In order of their names.
    """

    repaired: bool
    checkpoint: int | None
    changes: int
    age: float
    tables: tuple[InspectedTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What lies in a directory, and what of it is damaged.

    Attributes:
        path: The directory.
        in_use: Who has it open, as its `LOCK` says; None: nobody. What is being written now may look torn.
        store: Random number of the store; None: there is none.
        files: Of ours but for `LOCK`: checkpoints, then logs, then unfinished ones, then those set aside, each in order.
        others: Names of files that are not ours, in order.
        checkpoints: In order.
        opening: None: not even with `repair=True`.
        refusal: Why a store would not open without `repair=True`; None: it would.
        problems: What is damaged or lost, in words.
        notes: What a store would say when it opens, in words.
    """

    path: str
    in_use: str | None
    store: int | None
    files: tuple[InspectedFile, ...]
    others: tuple[str, ...]
    checkpoints: tuple[InspectedCheckpoint, ...]
    opening: InspectedOpening | None
    refusal: str | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged, and a store would open with all that was acknowledged."""
        return not self.problems


def inspect_directory(path: str | os.PathLike[str]) -> Inspection:
    """Says what lies in a directory that `Store.open` takes, and changes nothing there.

    Each file is read to its end, and each checksum is checked. Takes as much memory as the store would.

    Args:
        path: The directory. Another process may have it open.

    Raises:
        StorageError: There is no such directory, or it cannot be listed.
    """
    found = _engram.inspect(os.fspath(path))
    opening = found.pop("opening")
    checkpoints = [each | {"tables": _tables(each)} for each in found.pop("checkpoints")]
    return Inspection(
        path=os.fspath(path),
        files=tuple(InspectedFile(**each) for each in found.pop("files")),
        checkpoints=tuple(InspectedCheckpoint(**each) for each in checkpoints),
        opening=None if opening is None else InspectedOpening(**opening | {"tables": _tables(opening)}),
        **{name: tuple(each) if isinstance(each, list) else each for name, each in found.items()},
    )


def _tables(told: Mapping[str, Any]) -> tuple[InspectedTable, ...]:
    return tuple(InspectedTable(**each) for each in told["tables"])
