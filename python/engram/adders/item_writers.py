"""Plans: which items of an episode's rows a table gets, said once; and who makes them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from engram import _checks
from engram.adders.base import ItemWriter
from engram.adders.step import DEFAULT_PRIORITY_TABLE, Step, copy_leaf, map_leaves
from engram.errors import InvalidArgumentError, ItemError
from engram.patterns import Condition, Pattern, column, step_index
from engram.store import TableStore
from engram.writer import Compression, PatternWriter, TrajectoryWriter

__all__ = [
    "BaseItemWriter",
    "ItemSchedule",
    "Priority",
    "ScheduledItemWriter",
    "TrajectoryItemWriter",
    "all_columns",
    "open_item_writer",
    "pad",
    "table_priorities",
]

Priority = float | Callable[[Any], float]
"""Of an item: a number, or a function of its data as it will be sampled, NumPy arrays without the batch axis."""

Take = Callable[[Any, int], Any]
"""From a row whose leaves stand for columns, and a length, to the nest of an item."""


def all_columns(row: Any, length: int) -> Any:  # noqa: ANN401, nests
    """The last `length` rows."""
    return map_leaves(lambda leaf: leaf[-length:], row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSchedule:
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

    def padding(self, rows: int) -> int:
        """Rows of padding that complete the last item of an episode of `rows`; 0 where that would be all it has."""
        missing = self.missing(rows)
        return missing if rows <= self.length or missing < self.new_rows else 0

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


class ScheduledItemWriter(ItemWriter, Protocol):
    """Takes an adder's rows, and makes the items of its plans."""

    @property
    def count(self) -> int:
        """Rows of the episode so far."""

    def append(self, row: Any, padding: int = 0) -> None:  # noqa: ANN401, a nest
        """Takes a row, of the newest `padding` that are only padding the last. An error keeps nothing of it.

        What goes wrong with its items is told by `raise_item_error`.
        """


def open_item_writer(
    store: TableStore,
    plans: Sequence[ItemSchedule],
    *,
    looking: bool = False,
    chunk_length: int | None,
    timeout: float | None,
    compression: Compression,
) -> ScheduledItemWriter:
    """Who makes the items of these plans: patterns, unless somebody is `looking` at them one by one."""
    _checks.instance_of("`client`", store, TableStore, "an engram.Store or an engram.Client")
    _checks.seconds("`timeout`", timeout)
    looking = looking or any(plan.looks() for plan in plans)
    kind = TrajectoryItemWriter if looking else PatternItemWriter
    return kind(store, plans, chunk_length=chunk_length, timeout=timeout, compression=compression)


def pad(items: ScheduledItemWriter, plans: Sequence[ItemSchedule], append: Callable[[int], None]) -> None:
    """Appends padding, `append(1)`, `append(2)` and so on, until every plan has its last item."""
    for padding in range(1, max(plan.padding(items.count) for plan in plans) + 1):
        append(padding)


class BaseItemWriter:
    """What items have in common, whoever makes them."""

    _writer: PatternWriter | TrajectoryWriter
    _error: BaseException | None = None

    @property
    def count(self) -> int:
        """Rows of the episode so far."""
        return self._writer.episode_steps

    def _write(self, row: Any) -> None:  # noqa: ANN401, a nest
        """Writes a row. An error keeps nothing of it, or is an item's: then the row is in, and `raise_item_error` tells."""
        before = self.count
        try:
            self._writer.append(row)
        except BaseException as error:
            if self.count == before:
                raise
            self._met(error)

    def _met(self, error: BaseException) -> None:
        # Ctrl-C goes before whatever else went wrong.
        if self._error is None or (isinstance(self._error, Exception) and not isinstance(error, Exception)):
            self._error = error

    def raise_item_error(self) -> None:
        """Raises what went wrong with an item of rows that are in since the last call: the first error."""
        error, self._error = self._error, None
        if isinstance(error, Exception):
            found = str(error) or type(error).__name__
            raise ItemError(f"the transition was added, but an item that ends with it was not made: {found}") from error
        if error is not None:
            raise error

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode, and waits until the tables have its items."""
        self._writer.end_episode(timeout)

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible, and waits until their tables have them."""
        self._writer.flush(timeout)

    def close(self, timeout: float | None) -> None:
        """Flushes, and takes no more."""
        self._writer.close(timeout)


class PatternItemWriter(BaseItemWriter):
    """Items made by patterns: one native call per row, whatever comes of it."""

    def __init__(
        self,
        store: TableStore,
        plans: Sequence[ItemSchedule],
        *,
        chunk_length: int | None,
        timeout: float | None,
        compression: Compression,
    ) -> None:
        # Padded to its own boundary, a plan has no item of padding only; to another's, it would.
        self._counts_padding = len({(plan.length, plan.period) for plan in plans}) > 1
        patterns = [pattern for plan in plans for pattern in self._patterns(plan)]
        self._writer: PatternWriter = store.pattern_writer(
            patterns, chunk_length=chunk_length, timeout=timeout, compression=compression
        )

    def _patterns(self, plan: ItemSchedule) -> list[Pattern]:
        def take(row: Any) -> Any:  # noqa: ANN401, nests
            return plan.take(row["row"] if self._counts_padding else row, plan.length)

        def pattern(*when: Condition) -> Pattern:
            return Pattern(plan.table, take, when=when, priority=cast("float", plan.priority))

        first = plan.length - 1
        periodic = [step_index() % plan.period == first % plan.period] if plan.period > 1 else []
        if not self._counts_padding:
            return [pattern(*periodic)]
        more = column(lambda row: row["padding"]) < plan.new_rows
        return [pattern(step_index() == first), pattern(step_index() > first, more, *periodic)]

    def append(self, row: Any, padding: int = 0) -> None:  # noqa: ANN401, a nest
        """Takes a row."""
        self._write({"padding": padding, "row": row} if self._counts_padding else row)


class TrajectoryItemWriter(BaseItemWriter):
    """Items made one by one: somebody looks at their data, or says when."""

    def __init__(
        self,
        store: TableStore,
        plans: Sequence[ItemSchedule],
        *,
        chunk_length: int | None,
        timeout: float | None,
        compression: Compression,
    ) -> None:
        self._plans = plans
        history = max(plan.length for plan in plans)
        self._writer: TrajectoryWriter = store.writer(
            history=history, chunk_length=chunk_length, timeout=timeout, compression=compression
        )
        looked_at = [plan.length for plan in plans if plan.keep is not None]
        self._newest: deque[Any] = deque(maxlen=max(looked_at, default=0))

    def append(self, row: Any, padding: int = 0) -> None:  # noqa: ANN401, a nest
        """Takes a row, and makes the items that are due."""
        self._write(row)
        if self._newest.maxlen:
            # Whoever gave the row may write into its arrays.
            self._newest.append(map_leaves(copy_leaf, row))
        for plan in self._plans:
            if plan.is_due(self.count, padding):
                self.create(plan, plan.length)

    def create(self, plan: ItemSchedule, length: int) -> None:
        """Makes an item of the last `length` rows. The row is in, whatever becomes of it: `raise_item_error` tells."""
        try:
            if plan.keep is not None and not plan.keep(list(self._newest)[-length:]):
                return
            item = plan.take(self._writer.history, length)
            priority = plan.priority
            if callable(priority):
                priority = priority(map_leaves(lambda part: part.numpy(), item))
            self._writer.create_item(plan.table, priority, item)
        except BaseException as error:  # noqa: BLE001, raised by `raise_item_error`
            self._met(error)


def table_priorities(priority_fns: Mapping[str, Priority | None] | None) -> dict[str, Priority]:
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
        _checks.table_name("each key of `priority_fns`", table)
        priorities[table] = 1.0 if priority is None else priority
        if not callable(priorities[table]):
            _checks.number(f"the priority for `{table}`", priorities[table])
    return priorities
