"""The trajectory writer: it stores steps column by column and creates items of any slices of the columns."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engram.compat.reverb import _arguments, _nest, _sending
from engram.compat.reverb._columns import ColumnHistory, TrajectoryColumn, WriterState, record_missing_values
from engram.compat.reverb._errors import translated
from engram.compat.reverb._flatteners import Flatten, flattener
from engram.compat.reverb._sending import NativeWriter
from engram.compat.reverb._signatures import ColumnType, check_trajectory, checked_priority, column_types
from engram.compat.reverb._steps import LONGEST_CHUNK, StepColumns, chunk_length
from engram.compat.reverb.errors import ReverbError
from engram.errors import EngramError
from engram.nests import Nest

if TYPE_CHECKING:
    from engram.compat.reverb.client import Client

__all__ = ["TrajectoryColumn", "TrajectoryWriter"]

_CLOSED = "TrajectoryWriter::Close has been called."


class TrajectoryWriter:
    """Writes steps, and creates items of slices of their history. Created by `Client.trajectory_writer`.

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

    Items are sent once the chunk with their last step is full, on `flush` and on `end_episode`. If no chunk length was
    configured before the first append, the first ten items are sent immediately. A chunk has at most as many steps as
    are kept. Leaving the `with` block flushes the writer, except after a `ReverbError`, but does not close it. Several
    threads can use a writer: their calls wait for each other, but not for tables that another call waits for.
    """

    def __init__(self, client: "Client", num_keep_alive_refs: int, validate_items: bool) -> None:  # noqa: FBT001, as `Client` calls it
        """Creates a writer; called by `Client.trajectory_writer`, which checks the arguments.

        Args:
            client: Client of the server.
            num_keep_alive_refs: Number of newest steps that items may refer to.
            validate_items: If True, items are checked against their tables' signatures on creation.
        """
        self._closed = False
        self._native: Any = None
        self._finalizer: Callable[[], Any] | None = None
        self._tables: set[str] = set()  # those of its items
        self._client = client
        self._keep = num_keep_alive_refs
        self._validate = validate_items
        # By path: number of kept steps, and chunk length, None for the default.
        self._configured: dict[tuple[Any, ...], tuple[int, int | None]] = {}
        self._steps = StepColumns()
        self._state = WriterState()
        self._lock = self._state.lock
        self._columns: list[ColumnHistory] = []
        self._history: Any = None
        self._eager_items = 0  # number of further items to send immediately
        self._has_fixed_chunk_length = False  # False if the engine chooses the length
        self._signatures: dict[str, list[ColumnType] | None] = {}  # by table; None if it has none
        self._accepted: set[Any] = set()  # table and column types of items that fitted the signature
        self._flatten: Flatten | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, ReverbError):
            self.flush()

    def append(self, data: Nest, *, partial_step: bool = False) -> None:
        """Adds a step, or a part of one.

        Args:
            data: A nest of arrays, numbers and text, `[...]` each. Mappings, tuples and lists are nests, not arrays.
                A Python int becomes int64, a float float64. The first value of a leaf sets the dtype and shape of its
                column. Later steps may add leaves; a leaf that is missing or None has no value in this step.
            partial_step: If True, the next append continues this step and must set other leaves. Default: False.

        Raises:
            ValueError: A leaf differs in dtype or shape from earlier steps, replaces a nest or is replaced by one, or
                already has a value in this step. Nothing is stored.
            TypeError: A leaf is not a value that a column can store, or the keys of a mapping cannot be sorted. Nothing
                is stored.
            RuntimeError: The writer is closed, or the server is gone.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(_CLOSED)
            state = self._state
            row, all_present = self._steps.to_row(data, self._check_unset if state.step_is_open else None)
            if len(self._columns) != len(row):
                self._add_columns()
            native = self._native or self._open_native()
            try:
                native.append(tuple(row), partial_step=partial_step)
            except BaseException:
                if state.append_took_effect(row):
                    self._advance(row, all_present=all_present, partial=partial_step)
                with translated():
                    raise
            self._advance(row, all_present=all_present, partial=partial_step)

    def _advance(self, row: Sequence[Any], *, all_present: bool, partial: bool) -> None:
        """Updates the state after the engine stored a step, or a part of one.

        `row` and `all_present` are the results of `StepColumns.to_row`.
        """
        state = self._state
        if state.step_is_open or not all_present:
            record_missing_values(state, self._columns, row)
        state.step_is_open = partial
        state.num_complete_steps += not partial

    def _add_columns(self) -> None:
        for column in self._steps.columns[len(self._columns) :]:
            keep, _ = self._configured.get(column.path, (self._keep, None))
            history = ColumnHistory(self._state, column, len(self._columns), keep)
            if self._state.step_is_open:
                history.mark_missing(self._state.num_complete_steps)
            self._columns.append(history)
        self._history = _nest.map_structure(self._columns.__getitem__, self._steps.structure)

    def _check_unset(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        """Checks that the columns of the values have no value in the open step yet."""
        for number, value in zip(numbers, values, strict=True):
            if value is None or number >= len(self._columns):
                continue
            history = self._columns[number]
            if not history.is_missing(self._state.num_complete_steps):
                raise ValueError(
                    f"Field {history.column.label} has already been set in the active step by previous (partial) "
                    f"append call and thus must be omitted or set to None but got: {value}"
                )

    def _open_native(self) -> NativeWriter:
        """Opens the engine's writer at the first append, when the columns and their configuration are known."""
        configured = [length for _, length in self._configured.values() if length is not None]
        default = [] if self._all_configured() else [chunk_length(self._steps.columns, self._keep)]
        steps_per_chunk = max(configured + default)
        self._eager_items = 0 if configured else _sending.EAGER_ITEMS
        self._has_fixed_chunk_length = bool(configured) or steps_per_chunk < LONGEST_CHUNK
        with translated():
            writer = self._client._store.writer(  # noqa: SLF001, same package
                history=max(self._keep, *(keep for keep, _ in self._configured.values()), 1),
                # None: the engine chooses the length, and may store small steps more compactly.
                chunk_length=steps_per_chunk if self._has_fixed_chunk_length else None,
                max_in_flight_items=_sending.MAX_IN_FLIGHT_ITEMS,
                max_waiting_items=None,
            )
        self._native = self._state.native = writer._native  # noqa: SLF001, same package
        self._finalizer = _sending.close_on_drop(self, self._native, "TrajectoryWriter", self._tables, None)
        return self._native

    def _all_configured(self) -> bool:
        """True if there are columns and the chunk length of each is configured."""
        lengths = [self._configured.get(history.path(), (0, None))[1] for history in self._columns]
        return bool(lengths) and None not in lengths

    @property
    def history(self) -> Nest:
        """A nest like the steps so far, whose leaves are lists: a column's steps since `end_episode` last cleared it.

        Indexing a leaf returns a `TrajectoryColumn`: `history["obs"][-2:]` is the last two steps, `[2, ...]`;
        `history["obs"][-1]` is the last step without a time axis, `[...]`; `history["obs"][[0, 3]]` is steps 0 and 3.
        Only the newest `num_keep_alive_refs` steps can be used. Selecting an older step, or one without a value, raises
        a `ValueError`; an index beyond the end raises an `IndexError`; an index that is not an integer, a slice or a
        list of integers raises a `TypeError`.

        Raises:
            RuntimeError: Nothing was appended yet.
        """
        if not self._columns:
            raise RuntimeError("history cannot be accessed before `append` is called at least once.")
        return self._history

    @property
    def episode_steps(self) -> int:
        """Number of complete steps in the current episode."""
        with self._lock:
            native = self._native
            return 0 if native is None else native.episode_steps

    def create_item(self, table: str, priority: float, trajectory: Nest) -> None:
        """Creates an item, which may reach its table only with the next `flush`.

        Waits for the server's description of a table that this writer uses for the first time, and while 1,000,000
        items are in flight; while items of more than 4 MiB are in flight, briefly.

        Args:
            table: Name of the table.
            priority: Priority of the item, a float64.
            trajectory: A nest of `TrajectoryColumn`s of this writer's history: `[T, ...]`, or `[...]` without a time
                axis. Columns may differ in T. The item stores them as a flat list.

        Raises:
            TypeError: A leaf is not a `TrajectoryColumn`, `table` is not text, or `priority` is not a number.
            ValueError: There are no columns, or one is empty; `priority` is NaN, or it is negative or infinite and the
                table's selector is prioritized; a `TrajectoryColumn` refers to expired steps, another writer's history,
                or more than one history column; or, with `validate_items`, the table does not exist or the item does
                not fit its signature. No item is created.
            RuntimeError: The writer is closed, the server is unreachable, or, without `validate_items`, the table does
                not exist.
        """
        with self._lock:
            columns = self._flattened(trajectory)
            if not all(columns):
                raise ValueError("trajectory must not be empty: a column refers to no steps.")
            priority = checked_priority(priority)
            if self._closed:
                raise RuntimeError(_CLOSED)
            try:
                native_columns = [column._engine_column(number, self._state) for number, column in enumerate(columns)]  # noqa: SLF001, same package
                if self._validate:
                    self._check_signature(table, columns)
                self._native.create_item(table, priority, tuple(native_columns), None)
                self._tables.add(table)
            except (EngramError, RuntimeError):
                with translated():
                    raise
            if self._eager_items:
                self._eager_items -= 1
                _sending.send(self._native)
            # If the engine chooses the chunk length, the next append sends the chunk. The engine can then copy the
            # chunk's last steps to the next chunk, so that an item lies in one chunk; it does not if the chunk is sent
            # here.
            elif self._has_fixed_chunk_length and self._native.has_full_unsent_chunk:
                _sending.send(self._native)

    def _flattened(self, trajectory: Nest) -> list[TrajectoryColumn]:
        """Returns the columns of a trajectory as a flat list."""
        leaves: list[Any] = []
        for _ in range(2):  # first with the cached flattener, then with one made for this trajectory
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

    def _check_signature(self, table: str, columns: list[TrajectoryColumn]) -> None:
        """Checks an item against its table's signature."""
        try:
            signature = self._signatures[table]
        except (KeyError, TypeError):
            try:
                specs = self._client._signature(_arguments.text("table", table))  # noqa: SLF001, same package
            except KeyError:
                raise ValueError(
                    f"Unable to create item in table '{table}' since the table could not be found."
                ) from None
            signature = self._signatures[table] = column_types(specs)
        if signature is None:
            return
        item_type = (table, *[(column.dtype, column.shape) for column in columns])
        if item_type not in self._accepted:
            types = [ColumnType(str(index), column.dtype, column.shape) for index, column in enumerate(columns)]
            check_trajectory(table, signature, types)
            self._accepted.add(item_type)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until at most `block_until_num_items` of them are not yet in their tables.

        Args:
            block_until_num_items: Number of items that may still be pending. If it is above 0 and at most that many
                are pending already, `flush` returns at once and sends nothing. Default: 0.
            timeout_ms: Milliseconds to wait. None, 0 or less means no limit. Default: no limit.

        Raises:
            TypeError: `block_until_num_items` is not an integer, or `timeout_ms` is not a number.
            ValueError: `block_until_num_items` is negative.
            DeadlineExceededError: The tables did not accept the items in time. The items stay queued.
            RuntimeError: The writer is closed, or the server or a table is gone. Each such failure is raised once, by
                the next call.
        """
        timeout = _sending.timeout_seconds(timeout_ms)
        if self._closed:
            raise RuntimeError(_CLOSED)
        _sending.flush(self._lock, self._native, block_until_num_items, timeout_ms, timeout)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:  # noqa: FBT001, FBT002, as in Reverb
        """Ends the episode: sends all items, and waits until they are in their tables.

        A partial step ends as it is.

        Args:
            clear_buffers: If True, the history is cleared. If False, later items may refer to steps of this episode.
                Default: True.
            timeout_ms: Milliseconds to wait. None, 0 or less means no limit. Default: no limit.

        Raises:
            TypeError: `clear_buffers` is not a bool, or `timeout_ms` is not a number.
            MemoryError: There is not enough memory to complete the last chunk. The episode continues; call again.
            DeadlineExceededError: The tables did not accept the items in time. The items stay queued, and the episode
                has ended.
            RuntimeError: The writer is closed, or the server or a table is gone. Or the writer belongs to the process
                that this one was forked from; then the episode continues.
        """
        _arguments.boolean("clear_buffers", clear_buffers)
        timeout = _sending.timeout_seconds(timeout_ms)
        if self._closed:
            raise RuntimeError(_CLOSED)

        def on_ended() -> None:
            state = self._state
            state.num_complete_steps, state.step_is_open = state.end, False
            state.episode_start = state.num_complete_steps
            if clear_buffers:
                state.history_start = state.num_complete_steps
                for column in self._columns:
                    column.clear()

        _sending.end_episode(
            self._lock, self._native, on_ended, clear_buffers=clear_buffers, timeout_ms=timeout_ms, timeout=timeout
        )

    def configure(self, path: tuple[int | str, ...], *, num_keep_alive_refs: int, max_chunk_length: int | None) -> None:
        """Sets how many steps of one column are kept. The column may be added by a later step.

        All columns share their chunks, whose length is determined at the first append: it is the largest
        `max_chunk_length` set until then. If a column of that append has none, the default length takes part in the
        maximum, too: up to 16 steps, about 16 KiB, and at most the writer's `num_keep_alive_refs`. Later calls do not
        change the length.

        Args:
            path: Path of the column in a step: keys of mappings, positions in lists and tuples, fields of namedtuples.
                For example, `("observation", 0)`.
            num_keep_alive_refs: Number of newest steps of the column that items may refer to, at least 1.
            max_chunk_length: Number of steps per chunk, from 1 to `num_keep_alive_refs`. None sets no length for this
                column.

        Raises:
            TypeError: `path` is not a tuple or list, or a number is not an integer.
            ValueError: `num_keep_alive_refs` is below 1, or `max_chunk_length` is not from 1 to `num_keep_alive_refs`.
        """
        if not isinstance(path, tuple | list):
            raise TypeError(f'`path` must be a tuple like ("observation",); got {_arguments.describe(path)}')
        keep = _arguments.positive("num_keep_alive_refs", num_keep_alive_refs)
        if max_chunk_length is not None:
            length = _arguments.integer("max_chunk_length", max_chunk_length)
            if not 1 <= length <= keep:
                raise ValueError(
                    f"max_chunk_length ({length}) must be None or a positive integer <= num_keep_alive_refs ({keep})"
                )
        path = tuple(path)
        with self._lock:
            self._configured[path] = (keep, max_chunk_length)
            if self._native is not None:
                self._native.extend_history(keep)
            number = self._steps.number(path)
            if number is not None and number < len(self._columns):
                self._columns[number].set_keep(keep)

    def close(self) -> None:
        """Closes the writer. May be called again.

        Sends the pending items without waiting for their tables. Items that do not reach their table are lost, and a
        `UserWarning` states how many. The same happens when the writer is garbage-collected. To wait, call `flush`
        first.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._finalizer is not None:
                self._finalizer()
