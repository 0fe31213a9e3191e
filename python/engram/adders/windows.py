"""Windows over the rows of an episode: which items sequence adders make, said once."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from engram import _checks
from engram.adders.step import DEFAULT_PRIORITY_TABLE, Step, each_leaf
from engram.errors import InvalidArgumentError
from engram.patterns import Condition, Pattern, column, step_index
from engram.store import AnyStore

__all__ = ["Priority", "Rows", "Window", "pad", "rows_for", "tables_of"]

Priority = float | Callable[[Any], float]
"""Of an item: a number, or a function of its data as it will be sampled, without the batch axis."""

Take = Callable[[Any, int], Any]
"""From a row whose leaves stand for columns, and a length, to the nest of an item."""


def all_columns(row: Any, length: int) -> Any:  # noqa: ANN401, nests
    """The last `length` rows."""
    return each_leaf(lambda leaf: leaf[-length:], row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One table's items: the last `length` rows, first when there are so many, then every `period` rows."""

    table: str
    length: int
    period: int
    priority: Priority = 1.0
    take: Take = all_columns
    keep: Callable[[list[Step]], bool] | None = None
    """Of the rows of an item: whether to make it."""

    def missing(self, rows: int) -> int:
        """Rows that an episode of `rows` lacks to its next item."""
        if rows <= self.length:
            return self.length - rows
        return -(rows - self.length) % self.period

    def is_due(self, rows: int, padding: int) -> bool:
        """Whether an item ends with the newest of `rows` rows, the `padding`th that is only padding."""
        return rows == self.length or (rows > self.length and self.missing(rows) == 0 and padding < self.new_rows)

    @property
    def new_rows(self) -> int:
        """Rows that an item does not share with the one before; all of them padding: no item."""
        return min(self.period, self.length)

    def looks(self) -> bool:
        """Whether items depend on what is in them."""
        return callable(self.priority) or self.keep is not None


class Rows(Protocol):
    """Takes an adder's rows, and makes the items of its windows."""

    @property
    def count(self) -> int:
        """Rows of the episode so far."""

    def append(self, row: Any, padding: int = 0) -> None:  # noqa: ANN401, a nest
        """Takes a row; `padding` of the newest ones, this one included, are only padding."""

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode, and waits until the tables have its items."""

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible, and waits until their tables have them."""

    def close(self) -> None:
        """Flushes, and takes no more."""


def rows_for(
    store: AnyStore,
    windows: Sequence[Window],
    *,
    looking: bool = False,
    chunk_length: int | None,
    timeout: float | None,
) -> Rows:
    """Who makes the items of these windows: patterns, unless somebody is `looking` at them one by one."""
    _checks.one_of("`client`", store, AnyStore, "an engram.Store or an engram.Client")
    looking = looking or any(window.looks() for window in windows)
    return (LookingRows if looking else PatternRows)(store, windows, chunk_length=chunk_length, timeout=timeout)


class PatternRows:
    """Rows whose items are made by patterns: one native call per row, whatever comes of it."""

    def __init__(
        self, store: AnyStore, windows: Sequence[Window], *, chunk_length: int | None, timeout: float | None
    ) -> None:
        # Padded to its own boundary, a window that leaves no rows out has no item of padding only.
        shapes = {(window.length, window.period) for window in windows}
        self._counts_padding = len(shapes) > 1 or any(period > length for length, period in shapes)
        patterns = [pattern for window in windows for pattern in self._patterns(window)]
        self._writer = store.pattern_writer(patterns, chunk_length=chunk_length, timeout=timeout)

    def _patterns(self, window: Window) -> list[Pattern]:
        def take(row: Any) -> Any:  # noqa: ANN401, nests
            return window.take(row["row"] if self._counts_padding else row, window.length)

        def pattern(*when: Condition) -> Pattern:
            return Pattern(window.table, take, when=when, priority=cast("float", window.priority))

        first = window.length - 1
        periodic = [step_index() % window.period == first % window.period] if window.period > 1 else []
        if not self._counts_padding:
            return [pattern(*periodic)]
        more = column(lambda row: row["padding"]) < window.new_rows
        return [pattern(step_index() == first), pattern(step_index() > first, more, *periodic)]

    @property
    def count(self) -> int:
        """Rows of the episode so far."""
        return self._writer.episode_steps

    def append(self, row: Any, padding: int = 0) -> None:  # noqa: ANN401, a nest
        """Takes a row."""
        self._writer.append({"padding": padding, "row": row} if self._counts_padding else row)

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode."""
        self._writer.end_episode(timeout)

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible."""
        self._writer.flush(timeout)

    def close(self) -> None:
        """Flushes, and takes no more."""
        self._writer.close()


class LookingRows:
    """Rows whose items are made one by one: somebody looks at their data, or says when."""

    def __init__(
        self, store: AnyStore, windows: Sequence[Window], *, chunk_length: int | None, timeout: float | None
    ) -> None:
        self._windows = windows
        history = max(window.length for window in windows)
        self._writer = store.writer(history=history, chunk_length=chunk_length, timeout=timeout)
        looked_at = [window.length for window in windows if window.keep is not None]
        self._newest: deque[Any] = deque(maxlen=max(looked_at, default=0))

    @property
    def count(self) -> int:
        """Rows of the episode so far."""
        return self._writer.episode_steps

    def append(self, row: Any, padding: int = 0) -> None:  # noqa: ANN401, a nest
        """Takes a row."""
        self._writer.append(row)
        self._newest.append(row)
        for window in self._windows:
            if window.is_due(self.count, padding):
                self.create(window, window.length)

    def create(self, window: Window, length: int) -> None:
        """Makes an item of the last `length` rows."""
        if window.keep is not None and not window.keep(list(self._newest)[-length:]):
            return
        item = window.take(self._writer.history, length)
        priority = window.priority
        if callable(priority):
            priority = priority(each_leaf(lambda part: part.numpy(), item))
        self._writer.create_item(window.table, priority, item)

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode."""
        self._newest.clear()
        self._writer.end_episode(timeout)

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible."""
        self._writer.flush(timeout)

    def close(self) -> None:
        """Flushes, and takes no more."""
        self._writer.close()


def pad(rows: Rows, windows: Sequence[Window], zeros: Any) -> None:  # noqa: ANN401, a nest
    """Appends rows of zeros until every window has its last item."""
    for padding in range(1, max(window.missing(rows.count) for window in windows) + 1):
        rows.append(zeros, padding)


def tables_of(priority_fns: Mapping[str, Priority | None] | None) -> dict[str, Priority]:
    """The tables to write to, each with the priority of its items; None is 1."""
    if priority_fns is None:
        return {DEFAULT_PRIORITY_TABLE: 1.0}
    if not isinstance(priority_fns, Mapping) or not priority_fns:
        raise InvalidArgumentError(
            "`priority_fns` must map tables to priorities, to functions of an item's data, or to None for 1; "
            f"got {priority_fns!r}"
        )
    priorities: dict[str, Priority] = {}
    for table, priority in priority_fns.items():
        _checks.table("each key of `priority_fns`", table)
        priorities[table] = 1.0 if priority is None else priority
        if not callable(priorities[table]):
            _checks.number(f"the priority for `{table}`", priorities[table])
    return priorities
