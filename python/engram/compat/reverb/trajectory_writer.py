"""The trajectory writer: steps go in column by column, items are made of any slices of them."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engram.compat.reverb import _arguments, _nest, _sending
from engram.compat.reverb._columns import ColumnHistory, TrajectoryColumn, WriterState, record_missing_values
from engram.compat.reverb._errors import translated
from engram.compat.reverb._flatteners import Flatten, flattener
from engram.compat.reverb._item_signatures import ColumnType, check_trajectory, checked_priority, column_types
from engram.compat.reverb._steps import LONGEST_CHUNK, StepColumns, chunk_length
from engram.compat.reverb.errors import ReverbError
from engram.errors import EngramError

if TYPE_CHECKING:
    from engram.compat.reverb.client import Client

__all__ = ["TrajectoryColumn", "TrajectoryWriter"]

_CLOSED = "TrajectoryWriter::Close has been called."


class TrajectoryWriter:
    """Writes steps, and makes items of slices of their history. From `Client.trajectory_writer`.

        with client.trajectory_writer(num_keep_alive_refs=3) as writer:
            for step in range(5):
                writer.append({"observation": np.float32(step), "action": step})
                if step >= 2:
                    history = writer.history
                    trajectory = {
                        "observations": history["observation"][-3:],  # [3]
                        "action": history["action"][-1],  # without a time axis
                    }
                    writer.create_item("replay", priority=1.0, trajectory=trajectory)

    Items are sent when their steps fill a chunk, which has at most `num_keep_alive_refs` steps, on `flush` and on
    `end_episode`. The first ten are sent at once. Leaving the block flushes, and does not close the writer. It
    belongs to one thread.
    """

    def __init__(self, client: "Client", num_keep_alive_refs: int, validate_items: bool) -> None:  # noqa: FBT001, as `Client` calls it
        """As `Client.trajectory_writer`, which checks the arguments.

        Args:
            client: Of the server.
            num_keep_alive_refs: Newest steps that items may refer to.
            validate_items: Check items against their tables' signatures when they are made.
        """
        self._closed = False
        self._native: Any = None
        self._finalizer: Callable[[], Any] | None = None
        self._client = client
        self._keep = num_keep_alive_refs
        self._validate = validate_items
        self._configured: dict[tuple[Any, ...], tuple[int, int | None]] = {}
        self._steps = StepColumns()
        self._state = WriterState()
        self._columns: list[ColumnHistory] = []
        self._history: Any = None
        self._early = 0  # items still to be sent at once
        self._prompt = False  # chunks are of a length that was asked for
        self._signatures: dict[str, list[ColumnType] | None] = {}
        self._accepted: set[Any] = set()  # tables, each with what an item that fits looks like
        self._flatten: Flatten | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, ReverbError):
            self.flush()

    def append(self, data: Any, *, partial_step: bool = False) -> None:  # noqa: ANN401, a nest
        """Adds a step, or a part of one.

        Args:
            data: A nest of arrays, numbers and text, `[...]` each; mappings, tuples and lists are nests, not arrays.
                Python's int is int64, float is float64. The first value of a leaf gives its column its dtype and shape.
                It may have more leaves than those before; leaves that it lacks, or that are None, have no value at this
                step.
            partial_step: The step goes on with the next append, which must set other leaves.

        Raises:
            ValueError: A leaf has another dtype or shape than before, stands where a nest was or the other way around,
                or has a value in this step already. Nothing of it is kept.
            TypeError: A leaf is nothing that a column can hold, or keys of a mapping cannot be sorted. Nothing of it is
                kept.
            RuntimeError: The writer was closed, or the server is gone.
        """
        if self._closed:
            raise RuntimeError(_CLOSED)
        state = self._state
        row, dense = self._steps.to_row(data, self._check_unset if state.open else None)
        if len(self._columns) != len(row):
            self._add_columns()
        native = self._native or self._open()
        try:
            native.append(tuple(row), partial_step=partial_step)
        except BaseException:
            if state.append_took_effect(row):
                self._advance(row, dense=dense, partial=partial_step)
            with translated():
                raise
        self._advance(row, dense=dense, partial=partial_step)

    def _advance(self, row: Sequence[Any], *, dense: bool, partial: bool) -> None:
        """The engine has taken a step, or a part of one."""
        state = self._state
        if state.open or not dense:
            record_missing_values(state, self._columns, row)
        state.open = partial
        state.head += not partial

    def _add_columns(self) -> None:
        for column in self._steps.columns[len(self._columns) :]:
            keep, _ = self._configured.get(column.path, (self._keep, None))
            history = ColumnHistory(self._state, column, len(self._columns), keep)
            if self._state.open:
                history.mark_missing(self._state.head)
            self._columns.append(history)
        self._history = _nest.map_structure(self._columns.__getitem__, self._steps.structure)

    def _check_unset(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        for number, value in zip(numbers, values, strict=True):
            if value is None or number >= len(self._columns):
                continue
            column = self._columns[number]
            if not column.is_missing(self._state.head):
                raise ValueError(
                    f"Field {column.path()} has already been set in the active step by previous (partial) append call "
                    f"and thus must be omitted or set to None but got: {value}"
                )

    def _open(self) -> Any:  # noqa: ANN401, the engine's writer
        """Opens the engine's writer, once it is known what it must keep."""
        asked = [length for _, length in self._configured.values() if length is not None]
        own = [] if self._all_configured() else [chunk_length(self._steps.columns, self._keep)]
        chunk = max(asked + own)
        self._early = 0 if asked else _sending.EAGER_ITEMS
        self._prompt = bool(asked) or chunk < LONGEST_CHUNK
        with translated():
            writer = self._client._store.writer(  # noqa: SLF001, the client's other half
                history=max(self._keep, *(keep for keep, _ in self._configured.values()), 1),
                # The engine may lay small steps out better where the length is its own choice.
                chunk_length=chunk if self._prompt else None,
                max_in_flight_items=_sending.MAX_IN_FLIGHT_ITEMS,
            )
        self._native = self._state.native = writer._native  # noqa: SLF001, its other half
        self._finalizer = _sending.close_on_drop(self, self._native, "TrajectoryWriter", None)
        return self._native

    def _all_configured(self) -> bool:
        """The length of every column's chunks was given."""
        lengths = [self._configured.get(column.path(), (0, None))[1] for column in self._columns]
        return bool(lengths) and None not in lengths

    @property
    def history(self) -> Any:  # noqa: ANN401, a nest
        """The nest of all steps so far, its leaves the columns' histories: lists of the steps since the last clear.

        Slices of them are `TrajectoryColumn`s: `history["obs"][-2:]` the last two steps, `[2, ...]`,
        `history["obs"][-1]` the last one without a time axis, `[...]`, and `history["obs"][[0, 3]]` those two. Only the
        newest `num_keep_alive_refs` steps can be used. A slice raises a `ValueError` where a step in it is older, or
        has no value; an index from the history's length on an `IndexError`, and one that is no integer, slice or list
        of integers a `TypeError`.

        Raises:
            RuntimeError: Nothing was appended yet.
        """
        if not self._columns:
            raise RuntimeError("history cannot be accessed before `append` is called at least once.")
        return self._history

    @property
    def episode_steps(self) -> int:
        """Complete steps since the episode began; 0 before the first."""
        native = self._native
        return 0 if native is None else native.episode_steps

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:  # noqa: ANN401, a nest
        """Makes an item. Its table may not have it before the next `flush`; this does not wait.

        Args:
            table: Name of the table.
            priority: Of the item, a float64.
            trajectory: A nest of `TrajectoryColumn`s of this writer's history, `[T, ...]`, or `[...]` without a time
                axis; each may have a T of its own. It is stored as a flat list of them.

        Raises:
            TypeError: A leaf is no `TrajectoryColumn`, `table` no text, or `priority` no number.
            ValueError: There are no columns or one is empty; `priority` is NaN, or negative or infinite where it is a
                weight; a column refers to steps that are gone, or is of another writer's history or of several columns;
                or, with `validate_items`, there is no such table or the item does not fit its signature. Nothing is
                made.
            RuntimeError: The writer was closed, or, without `validate_items`, there is no such table.
        """
        columns = self._flat(trajectory)
        if not all(columns):
            raise ValueError("trajectory must not be empty: a column refers to no steps.")
        priority = checked_priority(priority)
        if self._closed:
            raise RuntimeError(_CLOSED)
        try:
            cells = [column._engine_column(number, self._state) for number, column in enumerate(columns)]  # noqa: SLF001, its part
            if self._validate:
                self._check(table, columns)
            self._native.create_item(table, priority, tuple(cells), None)
        except (EngramError, RuntimeError):
            with translated():
                raise
        if self._early:
            self._early -= 1
            _sending.send(self._native)
        elif self._prompt and self._native.has_full_unsent_chunk:
            _sending.send(self._native)

    def _flat(self, trajectory: Any) -> list[TrajectoryColumn]:  # noqa: ANN401, a nest
        """The columns of a trajectory."""
        leaves: list[Any] = []
        for _ in range(2):
            if self._flatten is not None and self._flatten(trajectory, leaves):
                for leaf in leaves:
                    if not isinstance(leaf, TrajectoryColumn):
                        break
                else:
                    if not leaves:
                        raise ValueError("trajectory must not be empty: it has no columns.")
                    return leaves
            leaves = []
            self._flatten = flattener(trajectory)
        raise TypeError(f"All leaves of `trajectory` must be `TrajectoryColumn` but got {trajectory}")

    def _check(self, table: str, columns: list[TrajectoryColumn]) -> None:
        """Holds an item against its table's signature."""
        try:
            asked = self._signatures[table]
        except (KeyError, TypeError):
            try:
                signature = self._client._signature(_arguments.text("table", table))  # noqa: SLF001, its other half
            except KeyError:
                raise ValueError(
                    f"Unable to create item in table '{table}' since the table could not be found."
                ) from None
            asked = self._signatures[table] = column_types(signature)
        if asked is None:
            return
        look = (table, *[(column.dtype, column.shape) for column in columns])
        if look not in self._accepted:
            found = [ColumnType(str(at), column.dtype, column.shape) for at, column in enumerate(columns)]
            check_trajectory(table, asked, found)
            self._accepted.add(look)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until at most so many are not in their tables.

        Args:
            block_until_num_items: How many may be left; where no more are, nothing is sent.
            timeout_ms: Milliseconds to wait; None, 0 or less: for ever.

        Raises:
            TypeError: `block_until_num_items` is no integer, or `timeout_ms` no number.
            ValueError: `block_until_num_items` is negative.
            DeadlineExceededError: They were not taken in time; they stay queued.
            RuntimeError: The writer was closed, or the server or a table is gone. Each such error is told once, by
                whichever call comes next.
        """
        timeout = _sending.timeout_seconds(timeout_ms)
        if self._closed:
            raise RuntimeError(_CLOSED)
        _sending.flush(self._native, block_until_num_items, timeout_ms, timeout)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:  # noqa: FBT001, FBT002, as Reverb has it
        """Ends the episode: sends all items, and waits until their tables have them.

        A step that is open ends as it is.

        Args:
            clear_buffers: Forget the history; otherwise later items may reach back into this episode.
            timeout_ms: Milliseconds to wait; None, 0 or less: for ever.

        Raises:
            TypeError: `timeout_ms` is no number.
            MemoryError: The last steps could not be sealed: the episode goes on. Call again.
            DeadlineExceededError: They were not taken in time; they stay queued, and the episode has ended all the
                same.
            RuntimeError: The writer was closed, or the server or a table is gone; or another thread, or the process
                that it was forked from, has the writer: the episode goes on.
        """
        timeout = _sending.timeout_seconds(timeout_ms)
        if self._closed:
            raise RuntimeError(_CLOSED)
        if self._native is None:
            return
        native, clear = self._native, bool(clear_buffers)

        def ended() -> None:
            state = self._state
            state.head, state.open = state.end, False
            state.first = state.head
            if clear:
                state.base = state.head
                for column in self._columns:
                    column.clear()

        _sending.end_episode(native, lambda seconds: native.end_episode(seconds, clear), ended, timeout_ms, timeout)

    def configure(self, path: tuple[int | str, ...], *, num_keep_alive_refs: int, max_chunk_length: int | None) -> None:
        """Sets how much is kept of one column, now or later seen.

        All columns share their chunks, whose length is the largest that was asked for before the first append;
        afterwards `max_chunk_length` changes nothing.

        Args:
            path: Of the column in a step: keys of mappings, positions in lists and tuples, fields of namedtuples, such
                as `("observation", 0)`.
            num_keep_alive_refs: Newest steps of it that items may refer to, at least 1.
            max_chunk_length: Steps that are sent together, from 1 to `num_keep_alive_refs`; None: as for other columns.

        Raises:
            TypeError: `path` is no tuple or list, or a number no integer.
            ValueError: `num_keep_alive_refs` is below 1, or `max_chunk_length` below 1 or above it.
        """
        if not isinstance(path, tuple | list):
            raise TypeError(f'`path` must be a tuple, such as ("observation",); got {_arguments.describe(path)}')
        keep = _arguments.integer("num_keep_alive_refs", num_keep_alive_refs)
        if keep < 1:
            raise ValueError(f"num_keep_alive_refs ({keep}) must be a positive integer")
        if max_chunk_length is not None:
            length = _arguments.integer("max_chunk_length", max_chunk_length)
            if not 1 <= length <= keep:
                raise ValueError(
                    f"max_chunk_length ({length}) must be None or a positive integer <= num_keep_alive_refs ({keep})"
                )
        path = tuple(path)
        self._configured[path] = (keep, max_chunk_length)
        if self._native is not None:
            self._native.extend_history(keep)
        number = self._steps.number(path)
        if number is not None and number < len(self._columns):
            self._columns[number].keep(keep)

    def close(self) -> None:
        """Takes no more steps and items. May be called again.

        Items that were made are sent, and a moment is given to their tables to take them, but not longer: others are
        lost, with a `UserWarning`. So it is with a writer that is dropped. `flush` waits.
        """
        if self._closed:
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()
