"""What a trajectory writer remembers of its steps, column by column, and the slices that items are made of."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb._signatures import shape_text
from engram.compat.reverb._steps import Column
from engram.compat.reverb.tensor_spec import dtype_name

__all__ = ["ColumnHistory", "DataReference", "Stream", "TrajectoryColumn"]


class Stream:
    """What column histories know of their writer. Positions of steps are counted since it began.

    Attributes:
        head: Complete steps.
        open: A step was begun and is not complete.
        base: Position of the first step that histories show: the first after the last clear.
        slices: The engine's histories of the columns, by their numbers.
    """

    __slots__ = ("base", "head", "open", "slices")

    def __init__(self) -> None:
        self.head = 0
        self.open = False
        self.base = 0
        self.slices: Any = ()

    @property
    def end(self) -> int:
        """Position after the last step, one in progress included."""
        return self.head + self.open


class ColumnHistory:
    """The steps of one column since histories were last cleared, oldest first, as a list of them would behave.

    Only the newest `keep` can be used; the others count as None, like steps without a value.
    """

    __slots__ = ("_first", "_keep", "_missing", "column", "number", "stream")

    def __init__(self, stream: Stream, column: Column, number: int, keep: int) -> None:
        self.stream = stream
        self.column = column
        self.number = number
        self._first = stream.head
        self._keep = keep
        self._missing: deque[int] = deque(maxlen=keep)

    def path(self) -> tuple[Any, ...]:
        """Where the column is in a step."""
        return self.column.path

    def keep(self, count: int) -> None:
        """Keeps so many steps from now on; those that are gone stay gone."""
        self._first = self.floor()
        self._keep = count
        self._missing = deque(self._missing, maxlen=count)

    def floor(self) -> int:
        """Position of the oldest step that can be used."""
        stream = self.stream
        return max(stream.base, stream.head + stream.open - self._keep, self._first)

    def lack(self, position: int) -> None:
        """The newest step, at that position, has no value here so far."""
        self._missing.append(position)

    def fill(self) -> None:
        """The newest step, which lacked one, has a value now."""
        self._missing.pop()

    def lacks(self, position: int) -> bool:
        """True if the newest step, at that position, has no value here."""
        return bool(self._missing) and self._missing[-1] == position

    def clear(self) -> None:
        """Forgets which steps had no value."""
        self._missing.clear()

    def __len__(self) -> int:
        return self.stream.end - self.stream.base

    def __iter__(self) -> Iterator["DataReference | None"]:
        floor, missing = self.floor(), set(self._missing)
        for position in range(self.stream.base, self.stream.end):
            gone = position < floor or position in missing
            yield None if gone else DataReference(self, position)

    def __getitem__(self, index: Any) -> "TrajectoryColumn":  # noqa: ANN401, checked here
        stream = self.stream
        base = stream.base
        count = stream.head + stream.open - base
        kind = type(index)
        positions: range | list[int]
        if kind is slice:
            start, stop, step = index.indices(count)
            if step > 0 and index.start is not None and index.start < -count:
                raise self._none(index)
            positions = range(base + start, base + stop, step)
        elif kind is int:
            at = base + self._at(index, count)
            positions = range(at, at + 1)
        elif isinstance(index, list):
            positions = [base + self._at(each, count) for each in index]
        elif isinstance(index, int):  # a bool, as of a list
            return self[int(index)]
        else:
            raise TypeError(f"_ColumnHistory indices must be integers or slices, or lists of integers, not {kind}")
        lowest = _lowest(positions)
        missing = self._missing
        if lowest < self.floor() or (missing and any(at in positions for at in missing)):
            raise self._none(index)
        return TrajectoryColumn._of(self, positions, lowest, kind is int)  # noqa: SLF001, made for this

    def _at(self, index: object, count: int) -> int:
        if not isinstance(index, int):
            raise TypeError(f"_ColumnHistory indices must be integers or slices, or lists of integers, not {index!r}")
        if index >= count:
            raise IndexError(f"list index out of range: {index} of a history of {count} steps")
        if index < -count:
            raise self._none(index)
        return index + count if index < 0 else index

    def _none(self, index: object) -> ValueError:
        return ValueError(
            f"TrajectoryColumns cannot contain any None data references: {self.column.path}[{_show(index)}] asks for "
            f"steps without a value, or such as are gone; {self.kept()}."
        )

    def kept(self) -> str:
        """Says which steps can be used."""
        first = min(max(0, self.floor() - self.stream.base), len(self))
        return (
            f"the history has {len(self)} steps and keeps those from {first} on (num_keep_alive_refs: {self._keep})"
        )

    def cells(self, positions: range | Sequence[int], squeeze: bool) -> Any:  # noqa: ANN401, FBT001, the engine's column
        """The engine's column of these steps, one or more, none of which may be gone."""
        base = self.stream.base
        history = self.stream.slices[self.number]
        if squeeze:
            return history[positions[0] - base]
        if isinstance(positions, range):
            start, stop, step = positions.start - base, positions.stop - base, positions.step
            return history[start : None if stop < 0 else stop : step]
        return history[[at - base for at in positions]]

    def __repr__(self) -> str:
        return f"_ColumnHistory(path={self.column.path}, {len(self)} steps)"


def _lowest(positions: range | Sequence[int]) -> int:
    """The first of all steps; of none, one that never comes."""
    if not positions:
        return _NEVER
    if type(positions) is range:
        first, last = positions[0], positions[-1]
        return first if first < last else last
    return min(positions)


_NEVER = 1 << 63


def _show(index: object) -> str:
    if not isinstance(index, slice):
        return repr(index)
    parts = [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
    return ":".join("" if part is None else str(part) for part in parts)


class DataReference:
    """One value of a column, at one step.

    Attributes:
        shape: Of the value.
        dtype: NumPy's.
        expired: The writer keeps it no more.
    """

    __slots__ = ("history", "position")

    def __init__(self, history: ColumnHistory, position: int) -> None:
        self.history = history
        self.position = position

    @property
    def shape(self) -> tuple[int, ...]:
        return self.history.column.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        found = self.history.column.dtype
        assert found is not None  # there is a value
        return found

    @property
    def expired(self) -> bool:
        return self.position < self.history.floor()

    def numpy(self) -> npt.NDArray[Any]:
        """The value, copied."""
        return TrajectoryColumn([self], squeeze=True).numpy()


class TrajectoryColumn:
    """Some values of a column: what the leaves of an item's trajectory are.

    Attributes:
        is_squeezed: It is one value, without a time axis.
        shape: Of `numpy()`.
        dtype: NumPy's.
    """

    __slots__ = ("_history", "_lowest", "_positions", "_references", "is_squeezed")

    def __init__(
        self,
        data_references: Sequence[Any],
        *,
        squeeze: bool = False,
        path: tuple[Any, ...] | None = None,
    ) -> None:
        """Makes a column of references: those that a history, or another column, consists of, or such as look like them.

        Args:
            data_references: Objects with `shape`, `dtype`, `expired` and `numpy()`.
            squeeze: There is exactly one, which gets no time axis.
            path: What to call it in messages.

        Raises:
            ValueError: There is another number of references than one where `squeeze` is set, or a None among them.
        """
        references = tuple(data_references)
        if squeeze and len(references) != 1:
            raise ValueError(
                f"Columns must contain exactly one data reference when squeeze set, got {len(references)}"
            )
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
        self._lowest = _lowest(self._positions)

    @classmethod
    def _of(
        cls,
        history: ColumnHistory,
        positions: range | Sequence[int],
        lowest: int,
        squeeze: bool,  # noqa: FBT001, called for every column of every item
    ) -> "TrajectoryColumn":
        column = cls.__new__(cls)
        column._history = history
        column._positions = positions
        column._lowest = lowest
        column._references = None
        column.is_squeezed = squeeze
        return column

    def __len__(self) -> int:
        return len(self._positions if self._references is None else self._references)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def _all(self) -> tuple[Any, ...]:
        if self._references is None:
            assert self._history is not None  # a column has one or the other
            history = self._history
            self._references = tuple(DataReference(history, position) for position in self._positions)
        return self._references

    def __getitem__(self, index: Any) -> "TrajectoryColumn":  # noqa: ANN401, checked here
        references = self._all()
        if isinstance(index, int):
            return TrajectoryColumn([references[index]], squeeze=True)
        if isinstance(index, slice):
            return TrajectoryColumn(references[index])
        if isinstance(index, list):
            return TrajectoryColumn([references[each] for each in index])
        raise TypeError(f"TrajectoryColumn indices must be integers or slices, or lists of integers, not {type(index)}")

    @property
    def shape(self) -> tuple[int, ...]:
        if self._history is not None:
            cell = self._history.column.shape
        else:
            cell = tuple(self._all()[0].shape)
        return cell if self.is_squeezed else (len(self), *cell)

    @property
    def dtype(self) -> np.dtype[Any]:
        if self._history is not None and self._history.column.dtype is not None:
            return self._history.column.dtype
        found: np.dtype[Any] = self._all()[0].dtype
        return found

    @property
    def expired(self) -> bool:
        """One of its values is gone."""
        history = self._history
        if history is None:
            return any(reference.expired for reference in self._all())
        return self._lowest < history.floor()

    def _cells(self) -> Any:  # noqa: ANN401, the engine's column
        """The engine's column; `_problem` was asked before."""
        assert self._history is not None  # or there was a problem
        return self._history.cells(self._positions, self.is_squeezed)

    def _problem(self, stream: Stream) -> str | None:
        """Why the writer of a stream cannot make items of it."""
        history = self._history
        if history is None:
            return self._mixture()
        if history.stream is not stream:
            return "Column refers to another writer's history."
        if self._lowest < history.floor():
            return f"Column contains expired CellRef: {history.kept()}."
        return None

    def _mixture(self) -> str:
        first, *others = self._all()
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
        """The values stacked, or the one of a squeezed column; an array of its own.

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
            values = [reference.numpy() for reference in self._all()]
            return np.asarray(values[0]) if self.is_squeezed else np.stack(values)
        found: npt.NDArray[Any] = self._cells().numpy()
        return found

    def __repr__(self) -> str:
        of = "several columns" if self._history is None else str(self._history.column.path)
        return f"TrajectoryColumn(path={of}, length={len(self)}, squeeze={self.is_squeezed})"
