"""Inserts rows of a file as items."""

import time
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from engram import Nest, _engram
from engram._text import counted
from engram.errors import DeadlineExceededError
from engram.parquet.column_reader import Cells
from engram.table_store import TableStore
from engram.writer import TrajectoryWriter

__all__ = ["ItemInserter"]

_UNLIMITED = 2**31 - 1


class ItemInserter:
    """Inserts items of the same columns into a table.

    The end of the `with` block waits for items that are not in the table yet; after an error, it drops them.

    Args:
        store: A `Store` or a `Client`.
        table: Name of the table.
        structure: The nest of an item, as the engine encodes it.
        has_time_axis: True if a column has a time axis.
        timeout: Seconds that the table's rate limiter may make a call wait, for all its items together.
    """

    def __init__(
        self, store: TableStore, table: str, structure: str, *, has_time_axis: bool, timeout: float | None
    ) -> None:
        self._store = store
        self._table = table
        self._structure = structure
        self._timeout = timeout
        # The writer's history is the current item: `end_episode` clears it.
        self._writer = store.writer(history=_UNLIMITED, timeout=timeout) if has_time_axis else None

    def insert(self, columns: list[Cells], priorities: npt.NDArray[np.float64]) -> None:
        """Inserts items.

        Args:
            columns: Their columns, in the order of the nest's leaves.
            priorities: `[B]`: their priorities.
        """
        if self._writer is None:
            items = _engram.unflatten(self._structure, [cells.values for cells in columns])
            self._insert_batch(items, priorities)
            return
        steps = _equal_steps(columns)
        if steps is not None:
            arrays = [cells.values.reshape(len(priorities), steps, *cells.values.shape[1:]) for cells in columns]
            items = _engram.unflatten(self._structure, arrays)
            self._insert_batch(items, priorities, time_axis=True)
            return
        end = None if self._timeout is None else time.monotonic() + self._timeout
        for item, priority in enumerate(priorities.tolist()):
            self._create_item(self._writer, item, columns, priority)
            try:
                self._writer.end_episode(_remaining(end))
            except DeadlineExceededError as error:
                raise self._with_inserted(error, item, len(priorities)) from error
        self._writer.flush(_remaining(end))

    def _insert_batch(self, items: Nest, priorities: npt.NDArray[np.float64], *, time_axis: bool = False) -> None:
        # The native method: a list of mappings is the items' nest here, and not a mistake.
        self._store._native.insert_batch(self._table, items, priorities, self._timeout, time_axis)  # noqa: SLF001

    def _with_inserted(self, error: DeadlineExceededError, inserted: int, total: int) -> DeadlineExceededError:
        """Returns the error for the item after the first `inserted` of `total`, with a text as of `insert_batch`."""
        _, waits, reason = str(error).partition("; it stays queued")
        if not waits:  # the table has it, but not yet on disk
            return error
        within = "" if self._timeout is None else f" within {self._timeout:g} s"
        has = f"the first {inserted}" if inserted else "none"
        return DeadlineExceededError(
            f"table `{self._table}` did not accept all items{within}; it has {has} of {counted(total, 'item')}{reason}"
        )

    def _create_item(self, writer: TrajectoryWriter, item: int, columns: list[Cells], priority: float) -> None:
        """Creates item `item` of a batch, whose columns may differ in their number of steps."""
        cells = [
            values[item : item + 1] if splits is None else values[splits[item] : splits[item + 1]]
            for values, splits in columns
        ]
        steps = max(map(len, cells))
        for step in range(steps):
            writer.append([values[step, ...] if step < len(values) else None for values in cells])
        slices = [
            history[-steps] if splits is None else history[-steps : len(values) - steps or None]
            for history, values, (_, splits) in zip(writer.history, cells, columns, strict=True)
        ]
        writer.create_item(self._table, priority, _engram.unflatten(self._structure, slices))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        if error is None:
            self._writer.close(self._timeout)
        else:
            # Without the native writer, there is no warning about an item that the table has not accepted in time, and
            # it is dropped even if the error's traceback keeps the writer.
            vars(self._writer).clear()


def _remaining(end: float | None) -> float | None:
    """Seconds until `end`, in seconds of `time.monotonic`; None if there is no end."""
    return None if end is None else max(0.0, end - time.monotonic())


def _equal_steps(columns: list[Cells]) -> int | None:
    """Returns the number of steps that all columns of all items have; None if it differs or one has no time axis."""
    lengths = [None if splits is None else np.diff(splits) for _, splits in columns]
    first = lengths[0]
    if first is None or any(each is None or (each != first[0]).any() for each in lengths):
        return None
    return int(first[0])
