"""The step history of a trajectory writer, column by column, and the slices of it that make up items."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb._signatures import shape_text
from engram.compat.reverb._steps import Column
from engram.compat.reverb._turns import Lock, new_lock
from engram.compat.reverb.tensor_spec import dtype_name
from engram.errors import EngramError

__all__ = ["ColumnHistory", "DataReference", "TrajectoryColumn", "WriterState", "record_missing_values"]


@dataclass(slots=True, eq=False)
class WriterState:
    """The state that a writer shares with its column histories. The first step ever appended has position 0.

    Attributes:
        num_complete_steps: Number of complete steps in all episodes.
        step_is_open: True while the newest step is partial.
        episode_start: Position of the first step of the episode.
        history_start: Position of the first step of the histories, the first step after the last clear.
        native: The engine's writer; None before the first append.
        native_histories: The engine's column histories, by column number. Columns added since the last `refresh` are
            missing.
        lock: Held by calls that use the engine's writer.
    """

    num_complete_steps: int = 0
    step_is_open: bool = False
    episode_start: int = 0
    history_start: int = 0
    native: Any = None
    native_histories: Sequence[Any] = ()
    lock: Lock = field(default_factory=new_lock)

    def refresh(self) -> Sequence[Any]:
        """Fetches the engine's histories of all columns."""
        histories: Sequence[Any] = self.native.history()
        self.native_histories = histories
        return histories

    def append_took_effect(self, row: Sequence[Any]) -> bool:
        """True if the engine stored the (partial) step `row` although its append raised an error.

        Call it before the state is updated for that append.
        """
        try:
            if self.native.episode_steps != self.num_complete_steps - self.episode_start:
                return True
            histories = self.native.history()
            if not self.step_is_open:
                return len(histories[0]) > self.end - self.history_start
            for history, value in zip(histories, row, strict=False):
                if value is not None:
                    history[-1].numpy()  # raises if the partial step was not stored
                    return True
        except (EngramError, RuntimeError):  # no value, no step, or another process owns the writer
            return False
        return False

    @property
    def end(self) -> int:
        """Position after the newest step, including a partial one."""
        return self.num_complete_steps + self.step_is_open


class ColumnHistory:
    """The steps of one column since the last clear, oldest first. Behaves like a list.

    Only the newest `keep` steps can be used. Older steps, and steps without a value, are None.
    """

    __slots__ = ("_first", "_keep", "_missing", "column", "number", "state")

    def __init__(self, state: WriterState, column: Column, number: int, keep: int) -> None:
        self.state = state
        self.column = column
        self.number = number  # in the row of a step, from 0
        self._first = state.num_complete_steps  # steps before this position can never be used
        self._keep = keep
        self._missing: deque[int] = deque(maxlen=keep)  # positions of steps without a value, ascending

    def path(self) -> tuple[Any, ...]:
        """Path of the column in a step. A method, as in Reverb."""
        return self.column.path

    def set_keep(self, count: int) -> None:
        """Sets how many steps are kept from now on. Expired steps stay expired."""
        self._first = self.first_usable()
        self._keep = count
        self._missing = deque(self._missing, maxlen=count)

    def first_usable(self) -> int:
        """Position of the oldest step that can be used."""
        state = self.state
        return max(state.history_start, state.num_complete_steps + state.step_is_open - self._keep, self._first)

    def mark_missing(self, position: int) -> None:
        """Records that the newest step, at `position`, has no value in this column yet."""
        self._missing.append(position)

    def mark_present(self) -> None:
        """Records that the newest step now has a value in this column."""
        self._missing.pop()

    def is_missing(self, position: int) -> bool:
        """True if the newest step, at `position`, has no value in this column."""
        return bool(self._missing) and self._missing[-1] == position

    def clear(self) -> None:
        """Forgets which steps have no value."""
        self._missing.clear()

    def __len__(self) -> int:
        return self.state.end - self.state.history_start

    def __iter__(self) -> Iterator["DataReference | None"]:
        first_usable, missing = self.first_usable(), set(self._missing)
        for position in range(self.state.history_start, self.state.end):
            usable = position >= first_usable and position not in missing
            yield DataReference(self, position) if usable else None

    def __getitem__(self, index: Any) -> "TrajectoryColumn":  # noqa: ANN401, checked here
        state = self.state
        history_start = state.history_start
        end = state.num_complete_steps + state.step_is_open
        count = end - history_start
        kind = type(index)
        positions: range | list[int]
        if kind is slice:
            start, stop, step = index.indices(count)
            positions = range(history_start + start, history_start + stop, step)
            if step < 0:
                lowest = _min_position(positions)
            elif index.start is not None and index.start < -count:
                lowest = _EXPIRED  # starts before the first step: an error; a list would start at its first element
            else:
                lowest = history_start + start if start < stop else _NO_POSITION
        elif kind is int:
            number = self._resolve(index, count)
            lowest = _EXPIRED if number < 0 else history_start + number
            positions = range(lowest, lowest + 1)
        elif isinstance(index, list):
            numbers = [self._resolve(each, count) for each in index]
            positions = [history_start + number for number in numbers]
            lowest = _EXPIRED if _min_position(numbers) < 0 else _min_position(positions)
        elif isinstance(index, int):  # a bool: lists accept those, too
            return self[int(index)]
        else:
            raise TypeError(f"_ColumnHistory indices must be integers or slices, or lists of integers, not {kind}")
        if lowest < end - self._keep or lowest < self._first or (self._missing and self._any_missing(positions)):
            raise self._unusable_steps_error(index)
        return _checked_column(self, positions, lowest, kind is int)

    def _any_missing(self, positions: range | list[int]) -> bool:
        """True if one of the steps has no value."""
        missing = self._missing
        if len(positions) == 1:
            # `missing` is sorted, and the position is usually one of the newest.
            return next((position == positions[0] for position in reversed(missing) if position <= positions[0]), False)
        steps = positions if type(positions) is range else set(positions)
        return any(position in steps for position in missing)

    def _resolve(self, index: object, count: int) -> int:
        """Converts an index, which may be negative, to a step number; below 0 if it is before the first step."""
        if not isinstance(index, int):
            raise TypeError(f"_ColumnHistory indices must be integers or slices, or lists of integers, not {index!r}")
        if index >= count:
            raise IndexError(f"list index out of range: {index} of a history of {count} steps")
        return index + count if index < 0 else index

    def _unusable_steps_error(self, index: object) -> ValueError:
        column = self.column.path or "history"
        return ValueError(
            f"TrajectoryColumns cannot contain any None data references: {column}[{_index_text(index)}] "
            f"selects expired steps, or steps without a value; {self.usable_steps_text()}."
        )

    def usable_steps_text(self) -> str:
        """States which steps can be used, for an error text."""
        first = min(max(0, self.first_usable() - self.state.history_start), len(self))
        steps = "1 step" if len(self) == 1 else f"{len(self)} steps"
        return (
            f"the history has {steps}, of which those from index {first} on are kept "
            f"(num_keep_alive_refs: {self._keep})"
        )

    def engine_column(self, positions: range | Sequence[int], squeeze: bool) -> Any:  # noqa: ANN401, FBT001, the engine's column
        """The engine's column of these steps. There must be at least one, and none may have expired."""
        state = self.state
        history_start = state.history_start
        histories = state.native_histories
        if self.number >= len(histories):
            histories = state.refresh()
        history = histories[self.number]
        if squeeze:
            return history[positions[0] - history_start]
        if isinstance(positions, range):
            start, stop, step = positions.start - history_start, positions.stop - history_start, positions.step
            return history[start : None if stop < 0 else stop : step]
        return history[[position - history_start for position in positions]]

    def __repr__(self) -> str:
        return f"_ColumnHistory(path={self.column.path}, {len(self)} steps)"


def record_missing_values(state: WriterState, columns: Sequence[ColumnHistory], row: Sequence[Any]) -> None:
    """Records which columns have no value in the step `row`. Call it before `state` is updated for that append."""
    for column, value in zip(columns, row, strict=True):
        if state.step_is_open:
            if value is not None:
                column.mark_present()
        elif value is None:
            column.mark_missing(state.num_complete_steps)


def _min_position(positions: range | Sequence[int]) -> int:
    """The lowest of the positions; `_NO_POSITION` if there are none."""
    if not positions:
        return _NO_POSITION
    if type(positions) is range:
        return min(positions[0], positions[-1])
    return min(positions)


_NO_POSITION = 1 << 63
"""What `_min_position` returns for no positions: above all positions, so that a column of no steps never expires."""

_EXPIRED = -1
"""Stands for the position of a step before the first: below all positions that can be used."""


def _index_text(index: object) -> str:
    if not isinstance(index, slice):
        return repr(index)
    parts = [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
    return ":".join("" if part is None else str(part) for part in parts)


class DataReference:
    """The value of a column at one step. Histories and trajectory columns consist of these."""

    __slots__ = ("history", "position")

    def __init__(self, history: ColumnHistory, position: int) -> None:
        self.history = history
        self.position = position

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.history.column.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the value; `object` for text. Raises a RuntimeError if the column has no value yet."""
        dtype = self.history.column.dtype
        if dtype is None:
            raise RuntimeError(f"column {self.history.column.label} has no values")
        return dtype

    @property
    def expired(self) -> bool:
        """True if the writer no longer keeps the value."""
        return self.position < self.history.first_usable()

    def numpy(self) -> npt.NDArray[Any]:
        """The value as a new array `[...]`. Raises a RuntimeError if it has expired."""
        return TrajectoryColumn([self], squeeze=True).numpy()


class TrajectoryColumn:
    """Values of one column: a leaf of an item's trajectory. Slicing `TrajectoryWriter.history` returns these.

    It has a length and can be indexed like a history: an integer returns a column of one value without a time axis; a
    slice or a list of integers returns a column of those values.

    Attributes:
        is_squeezed: True if it is a single value without a time axis.
    """

    __slots__ = ("_history", "_lowest", "_positions", "_references", "is_squeezed")

    def __init__(
        self, data_references: Sequence[Any], *, squeeze: bool = False, path: tuple[Any, ...] | None = None
    ) -> None:
        """Creates a column of the elements of a history or of another column, or of objects with the same attributes.

        Args:
            data_references: Objects with `shape`, `dtype`, `expired` and `numpy()`. `create_item` accepts only a column
                whose references all belong to the same history.
            squeeze: The column is one value without a time axis. There must be exactly one reference.
            path: Name of the column in error texts. Default: no name.

        Raises:
            TypeError: `data_references` is not a sequence.
            ValueError: `squeeze` is set and there is not exactly one reference, or a reference is None.
        """
        references = tuple(data_references)
        if squeeze and len(references) != 1:
            raise ValueError(f"Columns must contain exactly one data reference when squeeze set, got {len(references)}")
        if any(reference is None for reference in references):
            raise ValueError(
                f"TrajectoryColumns cannot contain any None data references: TrajectoryColumn at path {path} got "
                f"{list(references)}."
            )
        self.is_squeezed = squeeze
        self._references: tuple[Any, ...] | None = references  # None: created from `_positions` when needed
        self._history: ColumnHistory | None = None  # of all references; None if they differ in it
        self._positions: range | Sequence[int] = ()  # in `_history`
        if references and all(type(reference) is DataReference for reference in references):
            histories = {id(reference.history) for reference in references}
            if len(histories) == 1:
                self._history = references[0].history
                self._positions = [reference.position for reference in references]
        self._lowest = _min_position(self._positions)

    def __len__(self) -> int:
        return len(self._positions if self._references is None else self._references)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all_references())

    def _all_references(self) -> tuple[Any, ...]:
        history = self._history
        if self._references is None and history is not None:
            self._references = tuple(DataReference(history, position) for position in self._positions)
        return self._references or ()

    def __getitem__(self, index: object) -> "TrajectoryColumn":
        references = self._all_references()
        if isinstance(index, int):
            return TrajectoryColumn([references[index]], squeeze=True)
        if isinstance(index, slice):
            return TrajectoryColumn(references[index])
        if isinstance(index, list):
            return TrajectoryColumn([references[each] for each in index])
        raise TypeError(f"TrajectoryColumn indices must be integers or slices, or lists of integers, not {type(index)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `numpy()`: `(T, ...)`, or `(...)` if squeezed.

        Raises:
            IndexError: The column was created without references.
        """
        history = self._history
        value_shape = tuple(self._all_references()[0].shape) if history is None else history.column.shape
        return value_shape if self.is_squeezed else (len(self), *value_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of `numpy()`; `object` for text.

        Raises:
            IndexError: The column was created without references.
            RuntimeError: The column has no value yet.
        """
        if self._history is not None and self._history.column.dtype is not None:
            return self._history.column.dtype
        dtype: np.dtype[Any] = self._all_references()[0].dtype
        return dtype

    @property
    def expired(self) -> bool:
        """True if the writer no longer keeps one of the values."""
        history = self._history
        if history is None:
            return any(reference.expired for reference in self._all_references())
        return self._lowest < history.first_usable()

    def _engine_column(self, number: int, state: WriterState) -> Any:  # noqa: ANN401, the engine's column
        """The engine's column, which becomes column `number` of an item of the writer with this `state`."""
        history = self._history
        if history is None:
            raise ValueError(f"Error in column {number}: {self._mixed_columns_text()}")
        if history.state is not state:
            raise ValueError(f"Error in column {number}: Column refers to another writer's history.")
        if self._lowest < history.first_usable():
            raise ValueError(
                f"Error in column {number}: Column contains expired CellRef: {history.usable_steps_text()}."
            )
        return history.engine_column(self._positions, self.is_squeezed)

    def _mixed_columns_text(self) -> str:
        first, *others = self._all_references()
        for index, other in enumerate(others, start=1):
            if first.dtype != other.dtype:
                return (
                    f"Column references tensors with different dtypes: {dtype_name(first.dtype)} (index 0) != "
                    f"{dtype_name(other.dtype)} (index {index})."
                )
            if tuple(first.shape) != tuple(other.shape):
                return (
                    f"Column references tensors with incompatible shapes: {shape_text(first.shape)} (index 0) not "
                    f"compatible with {shape_text(other.shape)} (index {index})."
                )
        return "Column mixes values of several columns, or refers to no writer's history."

    def numpy(self) -> npt.NDArray[Any]:
        """The values as a new array: stacked, `[T, ...]`, or the single value of a squeezed column, `[...]`.

        Raises:
            RuntimeError: A value has expired.
            ValueError: The column has no values.
        """
        if self.expired:
            raise RuntimeError("Cannot convert TrajectoryColumn with expired data references to numpy array.")
        if not len(self):
            raise ValueError("cannot convert an empty TrajectoryColumn to an array: it has no values")
        history = self._history
        if history is None:
            values = [reference.numpy() for reference in self._all_references()]
            return np.asarray(values[0]) if self.is_squeezed else np.stack(values)
        with history.state.lock:
            array: npt.NDArray[Any] = history.engine_column(self._positions, self.is_squeezed).numpy()
        return array

    def __repr__(self) -> str:
        path = "several columns" if self._history is None else str(self._history.column.path)
        return f"TrajectoryColumn(path={path}, length={len(self)}, squeeze={self.is_squeezed})"


def _checked_column(
    history: ColumnHistory,
    positions: range | Sequence[int],
    lowest: int,
    squeeze: bool,  # noqa: FBT001, called for every column of every item
) -> TrajectoryColumn:
    """Creates a column of steps that were checked already. `lowest` is the lowest of the positions."""
    column = _new(TrajectoryColumn)
    column._history = history  # noqa: SLF001, same module
    column._positions = positions  # noqa: SLF001, same module
    column._lowest = lowest  # noqa: SLF001, same module
    column._references = None  # noqa: SLF001, same module
    column.is_squeezed = squeeze
    return column


_new = TrajectoryColumn.__new__
