"""The legacy writer: items are all columns of the last few steps."""

import sys
import warnings
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _arguments, _nest, _sending
from engram.compat.reverb._errors import translated
from engram.compat.reverb._flatteners import Flatten, flattener, is_leaf
from engram.compat.reverb._item_signatures import ColumnType, check_steps, checked_priority, column_types
from engram.compat.reverb._signatures import columns_text
from engram.compat.reverb._steps import Column, checked_dtype
from engram.errors import EngramError

if TYPE_CHECKING:
    from engram.compat.reverb.client import Client

__all__ = ["Writer"]

_CLOSED = "the writer has been closed: close() was called, or its block was left"


class Writer:
    """Writes steps, and makes items of the last few of them. From `Client.writer`.

        with client.writer(max_sequence_length=2) as writer:
            for step in range(5):
                writer.append({"observation": np.float32(step)})
                if step >= 1:
                    writer.create_item("replay", num_timesteps=2, priority=1.0)

    Items are sent when their steps fill a chunk, on `flush` and on `close`. Leaving the block flushes and closes the
    writer. It belongs to one thread.

    A writer that is dropped, or lives when the process ends, sends its items, and waits up to a minute until their
    tables have them, or a few seconds for a server that is gone; Ctrl-C ends that. A `UserWarning` says how many are
    lost.
    """

    def __init__(
        self,
        client: "Client",
        max_sequence_length: int,
        delta_encoded: bool,  # noqa: FBT001, as `Client` calls it
        chunk_length: int,
        max_in_flight_items: int,
    ) -> None:
        """As `Client.writer`, which checks the arguments.

        Args:
            client: Of the server.
            max_sequence_length: Most steps of an item.
            delta_encoded: Compress integers as differences from step to step.
            chunk_length: Steps that are sent together.
            max_in_flight_items: Items that may wait for their tables before the writer waits too.
        """
        self._closed = True  # until all of it is made
        self._client = client
        self._longest = max_sequence_length
        self._columns: list[Column] = []
        self._count = 0
        self._flatten: Flatten | None = None
        self._signatures: dict[str, list[ColumnType] | None] = {}
        self._accepted: set[Any] = set()
        self._shown = (
            f"Writer(chunk_length={chunk_length}, max_timesteps={max_sequence_length}, "
            f"delta_encoded={int(delta_encoded)}, max_in_flight_items={max_in_flight_items}"
        )
        with translated():
            writer = client._store.writer(  # noqa: SLF001, the client's other half
                history=max_sequence_length,
                chunk_length=chunk_length,
                max_in_flight_items=max_in_flight_items,
                compression="delta" if delta_encoded else "auto",
            )
        self._native: Any = writer._native  # noqa: SLF001, its other half
        self._finalizer = _sending.close_on_drop(self, self._native, "Writer", client._server_probe)  # noqa: SLF001, its other half
        self._closed = False

    def __enter__(self) -> Self:
        if self._closed:
            raise ValueError("Cannot reuse already closed Writer")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._closed:
            self.flush()
            self.close()

    def __del__(self) -> None:
        if self._closed or sys.is_finalizing():
            return
        self._closed = True
        text = "a Writer was dropped without close(); close it, or use it as a context manager"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        self._finalizer()

    def __repr__(self) -> str:
        return f"{self._shown}, timesteps={self._count}, closed={int(self._closed)})"

    def append(self, data: Any) -> None:  # noqa: ANN401, a nest
        """Adds a step.

        Args:
            data: A nest of arrays, numbers and text, `[...]` each, of as many leaves as those before; mappings, tuples
                and lists are nests, not arrays. Python's int is int64, float is float64. Shapes may change from step to
                step, dtypes not.

        Raises:
            ValueError: It has no leaves, more or fewer than before, or a leaf another dtype. Nothing of it is kept.
            TypeError: A leaf is nothing that a column can hold, None among them, or keys of a mapping cannot be sorted.
                Nothing of it is kept.
            RuntimeError: The writer was closed, or the server is gone.
        """
        self._check_open()
        leaves: list[Any] = []
        if self._flatten is not None and self._flatten(data, leaves):
            row = self._row(leaves)
            if row is not None:
                self._append(row, self._columns)
                return
        self._flatten, leaves = flattener(data), _nest.flatten(data)
        columns = self._columns or [Column((number,), str(number)) for number in range(len(leaves))]
        if len(leaves) != len(columns):
            raise ValueError(
                f"Number of tensors per timestep was inconsistent. Previously it was {len(columns)}, but is now "
                f"{len(leaves)}."
            )
        if not leaves:
            raise ValueError("Append called with empty data; a step has one column or more.")
        self._append(
            [_value(_nest.as_array(leaf), column) for leaf, column in zip(leaves, columns, strict=True)], columns
        )

    def _row(self, leaves: list[Any]) -> list[Any] | None:
        """The leaves, such as are stored; None where one is a nest, or where there are more or fewer."""
        columns = self._columns
        if len(leaves) != len(columns):
            return None
        for at, (value, column) in enumerate(zip(leaves, columns, strict=True)):
            kind = type(value)
            if kind is np.ndarray:
                if value.dtype == column.exact_dtype and value.shape == column.shape:
                    continue
            elif kind in column.scalar_types:
                continue
            elif not is_leaf(value):
                return None
            leaves[at] = _value(_nest.as_array(value), column)
        return leaves

    def _append(self, row: list[Any], columns: list[Column]) -> None:
        """Adds a row of values that are stored as they are."""
        try:
            self._native.append(tuple(row))
        except BaseException:
            with suppress(EngramError, RuntimeError):  # another thread's or process's
                if self._native.episode_steps != self._count:  # an error of an earlier item
                    self._columns = columns
                    self._count += 1
            with translated():
                raise
        self._columns = columns
        self._count += 1

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)

    def append_sequence(self, data: Any) -> None:  # noqa: ANN401, a nest
        """Adds steps: the rows of arrays `[T, ...]`.

        Args:
            data: A nest of arrays `[T, ...]`, all of the same T, which may be 0.

        Raises:
            ValueError: There are no arrays, one is a scalar, or their leading axes differ: nothing is kept. Or as of
                `append`: the steps before the one that is refused are kept.
            TypeError, RuntimeError: As of `append`.
        """
        self._check_open()
        arrays = [_nest.as_array(leaf) for leaf in _nest.flatten(data)]
        if not arrays:
            raise ValueError("AppendSequence called with empty data.")
        for number, array in enumerate(arrays):
            if not array.ndim:
                raise ValueError(f"AppendSequence called with scalar tensor at index {number}.")
        if len({len(array) for array in arrays}) > 1:
            found = columns_text(("", array.dtype, array.shape) for array in arrays)
            raise ValueError(f"AppendSequence called with tensors of non equal batch dimension: {found}.")
        for step in range(len(arrays[0])):
            self.append([array[step] for array in arrays])

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Makes an item of the last `num_timesteps` steps. Its table may not have it before the next `flush`.

        Args:
            table: Name of the table.
            num_timesteps: T: from 1 to `max_sequence_length`. The item's columns are `[T, ...]`.
            priority: Of the item, a float64.

        Raises:
            TypeError: An argument has another type.
            ValueError: There are fewer steps, or they differ in shape; the priority is NaN, or negative or infinite
                where it is a weight; there is no such table, or its signature fits neither such a step nor such an
                item. Nothing is made.
            RuntimeError: The writer was closed, or the server is gone.
        """
        self._check_open()
        length = _arguments.integer("num_timesteps", num_timesteps)
        if length < 1:
            raise ValueError(f"num_timesteps ({length}) must be a positive integer")
        if length > min(self._count, self._longest):
            raise ValueError(
                f"Argument `num_timesteps` is larger than number of buffered timesteps: it is {length}, there are "
                f"{min(self._count, self._longest)}."
            )
        priority = checked_priority(priority)
        self._check(table, length)
        try:
            self._native.create_item(table, priority, None, length)
        except (EngramError, RuntimeError):
            with translated():
                raise
        if self._native.has_full_unsent_chunk:
            _sending.send(self._native)

    def _check(self, table: str, length: int) -> None:
        """Holds an item against its table's signature."""
        try:
            asked = self._signatures[table]
        except (KeyError, TypeError):
            signature = self._client._signature_for_insert(_arguments.text("table", table))  # noqa: SLF001, its other half
            asked = self._signatures[table] = column_types(signature)
        if asked is None:
            return
        look = (table, length, *[column.shape for column in self._columns])
        if look not in self._accepted:
            steps = [ColumnType("", column.dtype, column.shape) for column in self._columns if column.dtype is not None]
            check_steps(table, asked, steps, length)
            self._accepted.add(look)

    def flush(self) -> None:
        """Sends the items that wait for their chunk to fill; where none do, waits until the tables have all items.

        Raises:
            RuntimeError: The writer was closed, or the server or a table is gone. Each such error is told once, by
                whichever call comes next.
        """
        self._check_open()
        if self._native.unsent_items:
            _sending.send(self._native)
        else:
            _sending.flush(self._native, 0, None, None)

    def close(self, retry_on_unavailable: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002, as Reverb has it
        """Waits until the tables have all items; takes no more steps.

        Args:
            retry_on_unavailable: Nothing comes of it: while a server is away, it is waited for as by any call.

        Raises:
            ValueError: It was closed before.
            RuntimeError: The server or a table is gone.
        """
        if self._closed:
            raise ValueError("close() has already been called on Writer.")
        self._closed = True
        try:
            _sending.flush(self._native, 0, None, None)
        finally:
            self._finalizer.detach()  # nobody waits twice


def _value(array: npt.NDArray[Any], column: Column) -> npt.NDArray[Any]:
    """The array, if it has the column's dtype, which the first one gives it. Its shape may change."""
    if column.dtype is None:
        column.set_type(array)
    checked_dtype(array, column)
    if array.shape != column.shape:
        column.reshape(array.shape)
    return array
