"""What a trajectory writer remembers of its steps, column by column, and the slices that items are made of."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb._signatures import shape_text
from engram.compat.reverb._steps import Column
from engram.compat.reverb.tensor_spec import dtype_name
from engram.errors import EngramError

__all__ = ["ColumnHistory", "DataReference", "TrajectoryColumn", "WriterState", "record_missing_values"]


class WriterState:
    """What column histories know of their writer. Positions of steps are counted since it began.

    Attributes:
        head: Complete steps.
        open: A step was begun and is not complete.
        first: Position of the first step of the episode.
        base: Position of the first step that histories show: the first after the last clear.
        native: The engine's writer; None before the first append.
        slices: Its histories of the columns, by their numbers; perhaps not yet of all.
    """

    __slots__ = ("base", "first", "head", "native", "open", "slices")

    def __init__(self) -> None:
        self.head = 0
        self.open = False
        self.base = 0
        self.first = 0
        self.native: Any = None
        self.slices: Sequence[Any] = ()

    def refresh(self) -> Sequence[Any]:
        """Asks the engine for the histories of all columns."""
        found: Sequence[Any] = self.native.history()
        self.slices = found
        return found

    def append_took_effect(self, row: Sequence[Any]) -> bool:
        """True if the engine has a step, or the part of one, whose append raised an error; this is as it was before."""
        try:
            if self.native.episode_steps != self.head - self.first:
                return True
            found = self.native.history()
            if not self.open:
                return len(found[0]) > self.end - self.base
            for history, value in zip(found, row, strict=False):
                if value is not None:
                    history[-1].numpy()  # it has no value yet
                    return True
        except (EngramError, RuntimeError):  # that, or it is another thread's or process's, or has no steps
            return False
        return False

    @property
    def end(self) -> int:
        """Position after the last step, one in progress included."""
        return self.head + self.open


class ColumnHistory:
    """The steps of one column since histories were last cleared, oldest first, as a list of them would behave.

    Only the newest `keep` can be used; the others count as None, like steps without a value.
    """

    __slots__ = ("_first", "_keep", "_missing", "column", "number", "state")

    def __init__(self, state: WriterState, column: Column, number: int, keep: int) -> None:
        self.state = state
        self.column = column
        self.number = number
        self._first = state.head
        self._keep = keep
        self._missing: deque[int] = deque(maxlen=keep)

    def path(self) -> tuple[Any, ...]:
        """Where the column is in a step."""
        return self.column.path

    def keep(self, count: int) -> None:
        """Keeps so many steps from now on; those that are gone stay gone."""
        self._first = self.first_usable()
        self._keep = count
        self._missing = deque(self._missing, maxlen=count)

    def first_usable(self) -> int:
        """Position of the oldest step that can be used."""
        state = self.state
        return max(state.base, state.head + state.open - self._keep, self._first)

    def mark_missing(self, position: int) -> None:
        """The newest step, at that position, has no value here so far."""
        self._missing.append(position)

    def mark_present(self) -> None:
        """The newest step, which lacked one, has a value now."""
        self._missing.pop()

    def is_missing(self, position: int) -> bool:
        """True if the newest step, at that position, has no value here."""
        return bool(self._missing) and self._missing[-1] == position

    def clear(self) -> None:
        """Forgets which steps had no value."""
        self._missing.clear()

    def __len__(self) -> int:
        return self.state.end - self.state.base

    def __iter__(self) -> Iterator["DataReference | None"]:
        first_usable, missing = self.first_usable(), set(self._missing)
        for position in range(self.state.base, self.state.end):
            gone = position < first_usable or position in missing
            yield None if gone else DataReference(self, position)

    def __getitem__(self, index: Any) -> "TrajectoryColumn":  # noqa: ANN401, checked here
        state = self.state
        base = state.base
        end = state.head + state.open
        count = end - base
        kind = type(index)
        positions: range | list[int]
        if kind is slice:
            start, stop, step = index.indices(count)
            positions = range(base + start, base + stop, step)
            if step < 0:
                lowest = _min_position(positions)
            elif index.start is not None and index.start < -count:
                lowest = _EXPIRED
            else:
                lowest = base + start if start < stop else _NO_POSITION
        elif kind is int:
            number = self._resolve(index, count)
            lowest = _EXPIRED if number < 0 else base + number
            positions = range(lowest, lowest + 1)
        elif isinstance(index, list):
            numbers = [self._resolve(each, count) for each in index]
            positions = [base + number for number in numbers]
            lowest = _EXPIRED if _min_position(numbers) < 0 else _min_position(positions)
        elif isinstance(index, int):  # a bool, as of a list
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
            # Usually it is one of the newest; they are in order.
            return next((at == positions[0] for at in reversed(missing) if at <= positions[0]), False)
        asked = positions if type(positions) is range else set(positions)
        return any(at in asked for at in missing)

    def _resolve(self, index: object, count: int) -> int:
        """Which step of the history an index means; below 0: one before its first."""
        if not isinstance(index, int):
            raise TypeError(f"_ColumnHistory indices must be integers or slices, or lists of integers, not {index!r}")
        if index >= count:
            raise IndexError(f"list index out of range: {index} of a history of {count} steps")
        return index + count if index < 0 else index

    def _unusable_steps_error(self, index: object) -> ValueError:
        return ValueError(
            f"TrajectoryColumns cannot contain any None data references: {self.column.path}[{_index_text(index)}] asks for "
            f"steps without a value, or such as are gone; {self.usable_steps_text()}."
        )

    def usable_steps_text(self) -> str:
        """Says which steps can be used."""
        first = min(max(0, self.first_usable() - self.state.base), len(self))
        return f"the history has {len(self)} steps and keeps those from {first} on (num_keep_alive_refs: {self._keep})"

    def engine_column(self, positions: range | Sequence[int], squeeze: bool) -> Any:  # noqa: ANN401, FBT001, the engine's column
        """The engine's column of these steps, one or more, none of which may be gone."""
        state = self.state
        base = state.base
        slices = state.slices
        if self.number >= len(slices):
            slices = state.refresh()
        history = slices[self.number]
        if squeeze:
            return history[positions[0] - base]
        if isinstance(positions, range):
            start, stop, step = positions.start - base, positions.stop - base, positions.step
            return history[start : None if stop < 0 else stop : step]
        return history[[at - base for at in positions]]

    def __repr__(self) -> str:
        return f"_ColumnHistory(path={self.column.path}, {len(self)} steps)"


def record_missing_values(state: WriterState, columns: Sequence[ColumnHistory], row: Sequence[Any]) -> None:
    """Keeps track of columns without a value at a step that was just appended; `state` is as it was before."""
    for column, value in zip(columns, row, strict=True):
        if state.open:
            if value is not None:
                column.mark_present()
        elif value is None:
            column.mark_missing(state.head)


def _min_position(positions: range | Sequence[int]) -> int:
    """The first of all steps; of none, one that never comes."""
    if not positions:
        return _NO_POSITION
    if type(positions) is range:
        return min(positions[0], positions[-1])
    return min(positions)


_NO_POSITION = 1 << 63
_EXPIRED = -1


def _index_text(index: object) -> str:
    if not isinstance(index, slice):
        return repr(index)
    parts = [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
    return ":".join("" if part is None else str(part) for part in parts)


class DataReference:
    """One value of a column, at one step. Histories and columns consist of them."""

    __slots__ = ("history", "position")

    def __init__(self, history: ColumnHistory, position: int) -> None:
        self.history = history
        self.position = position

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value."""
        return self.history.column.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's; `object` for text.

        Raises:
            RuntimeError: The column has had no value yet.
        """
        found = self.history.column.dtype
        if found is None:
            raise RuntimeError(f"column {self.history.column.label} has no values")
        return found

    @property
    def expired(self) -> bool:
        """The writer keeps it no more."""
        return self.position < self.history.first_usable()

    def numpy(self) -> npt.NDArray[Any]:
        """The value, an array `[...]` of its own.

        Raises:
            RuntimeError: It has expired.
        """
        return TrajectoryColumn([self], squeeze=True).numpy()


class TrajectoryColumn:
    """Some values of a column: what the leaves of an item's trajectory are. Slices of `TrajectoryWriter.history`.

    It has a length and can be sliced as a history can: an index gives a column of one value without a time axis, a
    slice or a list of integers a column of those.

    Attributes:
        is_squeezed: It is one value, without a time axis.
    """

    __slots__ = ("_history", "_lowest", "_positions", "_references", "is_squeezed")

    def __init__(
        self,
        data_references: Sequence[Any],
        *,
        squeeze: bool = False,
        path: tuple[Any, ...] | None = None,
    ) -> None:
        """Makes a column of references: those that a history or another column consists of, or such as look like them.

        Args:
            data_references: Objects with `shape`, `dtype`, `expired` and `numpy()`. An item can be made only of those
                of one history.
            squeeze: There is exactly one, which gets no time axis.
            path: What to call it in messages.

        Raises:
            TypeError: The references are no sequence.
            ValueError: There is another number of references than one where `squeeze` is set, or a None among them.
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
        self._references: tuple[Any, ...] | None = references
        self._history: ColumnHistory | None = None
        self._positions: range | Sequence[int] = ()
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

    def __getitem__(self, index: Any) -> "TrajectoryColumn":  # noqa: ANN401, checked here
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
        """Of `numpy()`: `(T, ...)`, or without T where it is squeezed.

        Raises:
            IndexError: It was made of no references at all.
        """
        history = self._history
        cell = tuple(self._all_references()[0].shape) if history is None else history.column.shape
        return cell if self.is_squeezed else (len(self), *cell)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of `numpy()`; `object` for text.

        Raises:
            IndexError: It was made of no references at all.
            RuntimeError: The column has had no value yet.
        """
        if self._history is not None and self._history.column.dtype is not None:
            return self._history.column.dtype
        found: np.dtype[Any] = self._all_references()[0].dtype
        return found

    @property
    def expired(self) -> bool:
        """One of its values is gone."""
        history = self._history
        if history is None:
            return any(reference.expired for reference in self._all_references())
        return self._lowest < history.first_usable()

    def _engine_column(self, number: int, state: WriterState) -> Any:  # noqa: ANN401, the engine's column
        """The engine's column, for column `number` of an item that the writer of a state makes.

        Raises:
            ValueError: It cannot make items of it.
        """
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
        for at, other in enumerate(others, start=1):
            if first.dtype != other.dtype:
                return (
                    f"Column references tensors with different dtypes: {dtype_name(first.dtype)} (index 0) != "
                    f"{dtype_name(other.dtype)} (index {at})."
                )
            if tuple(first.shape) != tuple(other.shape):
                return (
                    f"Column references tensors with incompatible shapes: {shape_text(first.shape)} (index 0) not "
                    f"compatible with {shape_text(other.shape)} (index {at})."
                )
        return "Column refers to values of several columns, or of no history; an item's columns are of one each."

    def numpy(self) -> npt.NDArray[Any]:
        """The values stacked, `[T, ...]`, or the one of a squeezed column, `[...]`; an array of its own.

        Raises:
            RuntimeError: One of them has expired.
            ValueError: There are none.
        """
        if self.expired:
            raise RuntimeError("Cannot convert TrajectoryColumn with expired data references to numpy array.")
        if not len(self):
            raise ValueError("need at least one data reference to make an array of")
        history = self._history
        if history is None:
            values = [reference.numpy() for reference in self._all_references()]
            return np.asarray(values[0]) if self.is_squeezed else np.stack(values)
        found: npt.NDArray[Any] = history.engine_column(self._positions, self.is_squeezed).numpy()
        return found

    def __repr__(self) -> str:
        of = "several columns" if self._history is None else str(self._history.column.path)
        return f"TrajectoryColumn(path={of}, length={len(self)}, squeeze={self.is_squeezed})"


def _checked_column(
    history: ColumnHistory,
    positions: range | Sequence[int],
    lowest: int,
    squeeze: bool,  # noqa: FBT001, called for every column of every item
) -> TrajectoryColumn:
    """A column of steps that were checked; `lowest` is the first of them."""
    column = _new(TrajectoryColumn)
    column._history = history  # noqa: SLF001, this module's
    column._positions = positions  # noqa: SLF001, this module's
    column._lowest = lowest  # noqa: SLF001, this module's
    column._references = None  # noqa: SLF001, this module's
    column.is_squeezed = squeeze
    return column


_new = TrajectoryColumn.__new__
