"""The legacy writer: an item consists of all columns of the last few steps."""

import sys
import warnings
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engram.compat.reverb import _arguments, _nest, _sending
from engram.compat.reverb._errors import translated
from engram.compat.reverb._flatteners import Flatten, flattener
from engram.compat.reverb._signatures import ColumnType, check_steps, checked_priority, column_types, columns_text
from engram.compat.reverb._steps import Column, NewTypes, checked, convert_in_place
from engram.compat.reverb._turns import new_lock
from engram.errors import EngramError
from engram.nests import Nest

if TYPE_CHECKING:
    from engram.compat.reverb.client import Client

__all__ = ["Writer"]

_CLOSED = "the writer is closed: close() was called, or its `with` block was left"


class Writer:
    """Writes steps, and creates items of the last few of them. Created by `Client.writer`.

        with client.writer(max_sequence_length=2) as writer:
            for step in range(5):
                writer.append({"observation": np.float32(step)})
                if step >= 1:
                    writer.create_item("replay", num_timesteps=2, priority=1.0)

    Items are sent once the chunk with their last step is full, on `flush` and on `close`. Leaving the `with` block
    flushes and closes the writer. Several threads can use a writer: their calls wait for each other.

    When the writer is garbage-collected or the process exits, pending items are sent, and the writer waits up to a
    minute until they are in their tables, or a few seconds if the server is gone. Ctrl-C ends the wait. A `UserWarning`
    states how many items were lost.
    """

    def __init__(
        self,
        client: "Client",
        max_sequence_length: int,
        delta_encoded: bool,  # noqa: FBT001, as `Client` calls it
        chunk_length: int,
        max_in_flight_items: int,
    ) -> None:
        """Creates a writer; called by `Client.writer`, which checks the arguments.

        Args:
            client: Client of the server.
            max_sequence_length: Maximum number of steps of an item.
            delta_encoded: If True, integers are compressed as differences from step to step.
            chunk_length: Number of steps per chunk.
            max_in_flight_items: Number of sent items that may wait for their tables before the writer blocks.
        """
        self._closed = True  # until the constructor has finished
        self._lock = new_lock()
        self._client = client
        self._max_sequence_length = max_sequence_length
        self._columns: list[Column] = []
        self._num_steps = 0
        self._flatten: Flatten | None = None
        self._signatures: dict[str, list[ColumnType] | None] = {}  # by table; None if it has none
        self._accepted: set[Any] = set()  # table, length and column shapes of items that fitted the signature
        self._repr = (
            f"Writer(chunk_length={chunk_length}, max_timesteps={max_sequence_length}, "
            f"delta_encoded={int(delta_encoded)}, max_in_flight_items={max_in_flight_items}"
        )
        with translated():
            writer = client._store.writer(  # noqa: SLF001, same package
                history=max_sequence_length,
                chunk_length=chunk_length,
                # Reverb's writer blocks only once it has created one item more.
                max_in_flight_items=min(max_in_flight_items + 1, _sending.ANY_NUMBER),
                max_waiting_items=None,
                compression="delta" if delta_encoded else "auto",
            )
        self._native: Any = writer._native  # noqa: SLF001, same package
        self._tables: set[str] = set()  # those of its items
        probe = client._server_probe  # noqa: SLF001, same package
        self._finalizer = _sending.close_on_drop(self, self._native, "Writer", self._tables, probe)
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
        return f"{self._repr}, timesteps={self._num_steps}, closed={int(self._closed)})"

    def append(self, data: Nest) -> None:
        """Adds a step.

        Args:
            data: A nest of arrays, numbers and text, `[...]` each, with as many leaves as earlier steps. Mappings,
                tuples and lists are nests, not arrays. A Python int becomes int64, a float float64. Shapes may differ
                from step to step; dtypes may not.

        Raises:
            ValueError: There are no leaves, or their number or the dtype of one differs from earlier steps. Nothing is
                stored.
            TypeError: A leaf is None or not a value that a column can store, or the keys of a mapping cannot be sorted.
                Nothing is stored.
            RuntimeError: The writer is closed, or the server is gone.
        """
        with self._lock:
            self._check_open()
            leaves: list[Any] = []
            reshaped: NewTypes = []
            if self._flatten is not None and self._flatten(data, leaves) and len(leaves) == len(self._columns):
                if convert_in_place(leaves, self._columns, reshaped):
                    self._append(leaves, self._columns, reshaped)
                    return
                reshaped.clear()
            self._flatten, leaves = flattener(data), _nest.flatten(data)
            columns = self._columns or [Column((number,), str(number)) for number in range(len(leaves))]
            if len(leaves) != len(columns):
                raise ValueError(
                    f"Number of tensors per timestep was inconsistent. Previously it was {len(columns)}, but is now "
                    f"{len(leaves)}."
                )
            if not leaves:
                raise ValueError("Append called with empty data; a step must have at least one column.")
            pairs = zip(leaves, columns, strict=True)
            row = [checked(_nest.as_array(leaf), column, reshaped) for leaf, column in pairs]
            self._append(row, columns, reshaped)

    def _append(self, row: list[Any], columns: list[Column], reshaped: NewTypes) -> None:
        """Appends a converted row to the engine's writer."""
        try:
            self._native.append(tuple(row))
        except BaseException:
            with suppress(EngramError, RuntimeError):  # another process owns the writer
                if self._native.episode_steps != self._num_steps:  # the row was stored: an earlier item failed
                    self._count_step(columns, reshaped)
            with translated():
                raise
        self._count_step(columns, reshaped)

    def _count_step(self, columns: list[Column], reshaped: NewTypes) -> None:
        self._columns = columns
        self._num_steps += 1
        for column, value in reshaped:
            column.set_type(value)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)

    def append_sequence(self, data: Nest) -> None:
        """Adds T steps, the rows of arrays `[T, ...]`.

        Args:
            data: A nest of arrays `[T, ...]`, all with the same T, which may be 0.

        Raises:
            ValueError: There are no arrays, one is a scalar, or their lengths differ: nothing is stored. Or as in
                `append`: the steps before the rejected one are stored.
            TypeError, RuntimeError: As in `append`.
        """
        self._check_open()
        arrays = [_nest.as_array(leaf) for leaf in _nest.flatten(data)]
        if not arrays:
            raise ValueError("AppendSequence called with empty data.")
        for number, array in enumerate(arrays):
            if not array.ndim:
                raise ValueError(f"AppendSequence called with scalar tensor at index {number}.")
        if len({len(array) for array in arrays}) > 1:
            listed = columns_text(ColumnType("", array.dtype, array.shape) for array in arrays)
            raise ValueError(f"AppendSequence called with tensors of non equal batch dimension: {listed}.")
        with self._lock:
            for step in range(len(arrays[0])):
                self.append([array[step] for array in arrays])

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Creates an item of the last `num_timesteps` steps. It may reach its table only with the next `flush`.

        Args:
            table: Name of the table.
            num_timesteps: T, from 1 to `max_sequence_length`. The item's columns are `[T, ...]`.
            priority: Priority of the item, a float64.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `num_timesteps` is below 1, above `max_sequence_length` or above the number of appended steps;
                these steps differ in shape; the priority is NaN, or it is negative or infinite and the table's selector
                is prioritized; the table does not exist, or its signature fits neither the steps nor the item. No item
                is created.
            RuntimeError: The writer is closed, or the server is gone.
        """
        with self._lock:
            self._check_open()
            length = _arguments.positive("num_timesteps", num_timesteps)
            if length > min(self._num_steps, self._max_sequence_length):
                raise ValueError(
                    f"Argument `num_timesteps` is larger than number of buffered timesteps: it is {length}, there are "
                    f"{min(self._num_steps, self._max_sequence_length)}."
                )
            priority = checked_priority(priority)
            self._check_signature(table, length)
            try:
                self._native.create_item(table, priority, None, length)
                self._tables.add(table)
            except (EngramError, RuntimeError):
                with translated():
                    raise
            if self._native.has_full_unsent_chunk:
                _sending.send(self._native)

    def _check_signature(self, table: str, length: int) -> None:
        """Checks an item against its table's signature."""
        try:
            signature = self._signatures[table]
        except (KeyError, TypeError):
            specs = self._client._signature_for_insert(_arguments.text("table", table))  # noqa: SLF001, same package
            signature = self._signatures[table] = column_types(specs)
        if signature is None:
            return
        item_type = (table, length, *[column.shape for column in self._columns])
        if item_type not in self._accepted:
            steps = [ColumnType("", column.dtype, column.shape) for column in self._columns if column.dtype is not None]
            check_steps(table, signature, steps, length)
            self._accepted.add(item_type)

    def flush(self) -> None:
        """Sends items, or waits for those that were sent.

        If items wait for their chunk to fill, sends them and returns without waiting for their tables. If none do,
        waits until all items are in their tables.

        Raises:
            RuntimeError: The writer is closed, or the server or a table is gone. Each such failure is raised once, by
                the next call.
        """
        with self._lock:
            self._check_open()
            has_unsent = self._native.unsent_items > 0
            if has_unsent:
                _sending.send(self._native)
        if not has_unsent:
            _sending.flush(self._lock, self._native, 0, None, None)

    def close(self, retry_on_unavailable: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002, as in Reverb
        """Waits until all items are in their tables, and closes the writer.

        Args:
            retry_on_unavailable: Ignored: `close` waits for an unreachable server as every other call does.

        Raises:
            ValueError: The writer is already closed.
            RuntimeError: The server or a table is gone.
        """
        if self._closed:
            raise ValueError("close() has already been called on Writer.")
        self._closed = True
        try:
            _sending.flush(self._lock, self._native, 0, None, None)
        finally:
            self._finalizer.detach()  # it would wait a second time
