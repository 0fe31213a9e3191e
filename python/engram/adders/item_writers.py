"""Schedules, which define the items that a table gets, and the writers that create these items."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack, cast

from engram import Nest, _checks
from engram._nest_checks import check_number_lists
from engram.adders.step import DEFAULT_PRIORITY_TABLE, Step, copy_leaf, map_leaves
from engram.errors import InvalidArgumentError, ItemError
from engram.patterns import Condition, Pattern, column, step_index
from engram.table_store import TableStore
from engram.writer import PatternWriter, TrajectoryWriter
from engram.writer_options import WriterOptions

__all__ = [
    "BaseItemWriter",
    "ItemSchedule",
    "Priority",
    "ScheduledItemWriter",
    "TrajectoryItemWriter",
    "open_item_writer",
    "padding_rows",
    "same_schedules",
    "select_all",
    "table_priorities",
]

Priority = float | Callable[[Any], float]
"""Priority of an item: a number, or a function of the item's data as NumPy arrays without a batch axis."""

Select = Callable[[Any, int], Any]
"""Returns the nest of an item, given a row whose leaves stand for columns, and the item's number of rows."""


def select_all(row: Nest, length: int) -> Nest:
    """Selects the last `length` rows of all columns."""
    return map_leaves(lambda leaf: leaf[-length:], row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSchedule:
    """The items of one table: the first ends with row `length` of an episode, later ones follow every `period` rows.

    Attributes:
        table: Name of the table.
        length: Rows of an item.
        period: Rows from the start of one item to the start of the next.
        priority: Priority of the items.
        select: Selects an item's data.
        should_insert: Receives the rows of an item; the item is created if it returns True. `None` creates all.
    """

    table: str
    length: int
    period: int
    priority: Priority = 1.0
    select: Select = select_all
    should_insert: Callable[[list[Step]], bool] | None = None

    def missing_rows(self, rows: int) -> int:
        """Rows that must follow the first `rows` of an episode until an item ends; 0 if one ends with them."""
        if rows <= self.length:
            return self.length - rows
        return -(rows - self.length) % self.period

    def padding_rows(self, rows: int) -> int:
        """Rows of padding that complete the last item of an episode; 0 if padding were all that is new in the item."""
        missing = self.missing_rows(rows)
        return missing if rows <= self.length or missing < self.new_rows else 0

    def is_due(self, rows: int, padding: int) -> bool:
        """True if an item ends with the newest of `rows` rows, of which the last `padding` are padding."""
        return rows == self.length or (rows > self.length and self.missing_rows(rows) == 0 and padding < self.new_rows)

    @property
    def new_rows(self) -> int:
        """Rows that an item does not share with the item before it."""
        return min(self.period, self.length)

    def depends_on_data(self) -> bool:
        """True if functions must inspect each item before it is created."""
        return callable(self.priority) or self.should_insert is not None


def same_schedules(
    priority_fns: Mapping[str, Priority | None] | None, length: int, period: int, select: Select = select_all
) -> list[ItemSchedule]:
    """Returns schedules that differ only in table and priority; see `table_priorities`."""
    return [
        ItemSchedule(table=table, length=length, period=period, priority=priority, select=select)
        for table, priority in table_priorities(priority_fns).items()
    ]


class BaseItemWriter:
    """Common part of the item writers."""

    _writer: PatternWriter | TrajectoryWriter
    _item_error: BaseException | None = None
    _item_errors = 0  # number of errors since `raise_item_error` was called

    @property
    def num_rows(self) -> int:
        """Number of rows since the writer's last `end_episode`."""
        return self._writer.episode_steps

    def _write(self, row: Nest) -> None:
        """Writes a row. If only an item fails, the row stays written, and the error is kept for `raise_item_error`."""
        before = self.num_rows
        try:
            self._writer.append(row)
        except BaseException as error:
            if self.num_rows == before:
                raise
            self._keep_item_error(error)

    def _keep_item_error(self, error: BaseException) -> None:
        self._item_errors += 1
        # The first error is kept, but Ctrl-C replaces any other.
        if self._item_error is None or (isinstance(self._item_error, Exception) and not isinstance(error, Exception)):
            self._item_error = error

    def raise_item_error(self) -> None:
        """Raises the first error of an item since the last call, with their number; the rows stay written."""
        (error, self._item_error), (count, self._item_errors) = (self._item_error, None), (self._item_errors, 0)
        if isinstance(error, Exception):
            reason = str(error) or type(error).__name__
            items = (
                "an item that ends with it was not created: "
                if count == 1
                else f"{count} items that end with it were not created; the first error: "
            )
            raise ItemError(f"the transition was added, but {items}{reason}") from error
        if error is not None:
            raise error

    def allow_number_lists(self) -> None:
        """Writes each number of a list as a column, without an error."""
        self._writer._allow_lists()  # noqa: SLF001, same package

    def check_number_lists(self, row: Nest) -> None:
        """Rejects lists of numbers in a row as writing the first one does.

        Raises:
            SignatureError: The row has a list of numbers, and no signature has its columns.
        """
        if self._writer._is_declared is not None:  # noqa: SLF001, same package
            check_number_lists(row, self._writer._is_declared)  # noqa: SLF001, same package

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """In this block, rows and items are written even if too many items wait for tables."""
        native = self._writer._native  # noqa: SLF001, same package
        before, native.waits_for_tables = native.waits_for_tables, False
        try:
            yield
        finally:
            native.waits_for_tables = before

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode, and waits until the tables have its items."""
        self._writer.end_episode(timeout)

    def pending_text(self) -> str:
        """Number of pending items and their tables; empty if there are none."""
        return self._writer._pending_text()  # noqa: SLF001, same package

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible, and waits until their tables have them."""
        self._writer.flush(timeout)

    def close(self, timeout: float | None) -> None:
        """Flushes, and closes the writer."""
        self._writer.close(timeout)


class PatternItemWriter(BaseItemWriter):
    """Creates items with patterns: one native call per row."""

    def __init__(self, store: TableStore, schedules: Sequence[ItemSchedule], **options: Unpack[WriterOptions]) -> None:
        # With one schedule, padding ends at its own boundary, and no item has only padding as new rows. With several,
        # padding continues to the furthest boundary; a column counts the padding, so that such items are not created.
        self._counts_padding = len({(schedule.length, schedule.period) for schedule in schedules}) > 1
        patterns = [pattern for schedule in schedules for pattern in self._patterns(schedule)]
        self._writer: PatternWriter = store.pattern_writer(patterns, **options)

    def _patterns(self, schedule: ItemSchedule) -> list[Pattern]:
        # Not `self`: the native writer keeps this function, and the garbage collector does not find such cycles.
        counts_padding = self._counts_padding

        def select(row: Nest) -> Nest:
            return schedule.select(row["row"] if counts_padding else row, schedule.length)

        def pattern(*when: Condition) -> Pattern:
            return Pattern(schedule.table, select, when=when, priority=cast("float", schedule.priority))

        first = schedule.length - 1
        periodic = [step_index() % schedule.period == first % schedule.period] if schedule.period > 1 else []
        if not self._counts_padding:
            return [pattern(*periodic)]
        has_new_rows = column(lambda row: row["padding"]) < schedule.new_rows
        return [pattern(step_index() == first), pattern(step_index() > first, has_new_rows, *periodic)]

    def append(self, row: Nest, padding: int = 0) -> None:
        """Writes a row, and creates the items that end with it.

        On an error, the row was not written. Errors of items are raised by `raise_item_error`.

        Args:
            row: The row.
            padding: Number of newest rows that are padding, this one included; 0 if it is not padding.
        """
        self._write({"padding": padding, "row": row} if self._counts_padding else row)


class TrajectoryItemWriter(BaseItemWriter):
    """Creates items one by one, because functions inspect each of them first or their lengths differ."""

    def __init__(self, store: TableStore, schedules: Sequence[ItemSchedule], **options: Unpack[WriterOptions]) -> None:
        self._schedules = schedules
        history = max(schedule.length for schedule in schedules)
        self._writer: TrajectoryWriter = store.writer(history=history, **options)
        inspected = [schedule.length for schedule in schedules if schedule.should_insert is not None]
        self._newest_rows: deque[Any] = deque(maxlen=max(inspected, default=0))  # for `should_insert`

    def append(self, row: Nest, padding: int = 0) -> None:
        """Writes a row, and creates the items that end with it; see `PatternItemWriter.append`."""
        self._write(row)
        if self._newest_rows.maxlen:
            # A copy, as the caller may reuse the row's arrays.
            self._newest_rows.append(map_leaves(copy_leaf, row))
        due = [schedule for schedule in self._schedules if schedule.is_due(self.num_rows, padding)]
        if due:
            with self.without_waiting():  # the row is written, so its items must follow
                for schedule in due:
                    self.create(schedule, schedule.length)

    def create(self, schedule: ItemSchedule, length: int) -> None:
        """Creates an item of the last `length` rows, unless `should_insert` rejects it.

        `raise_item_error` raises its error.
        """
        try:
            if schedule.should_insert is not None and not schedule.should_insert(list(self._newest_rows)[-length:]):
                return
            item = schedule.select(self._writer.history, length)
            priority = schedule.priority
            if callable(priority):
                priority = priority(map_leaves(lambda part: part.numpy(), item))
            self._writer.create_item(schedule.table, priority, item)
        except BaseException as error:  # noqa: BLE001, raised by `raise_item_error`
            self._keep_item_error(error)


ScheduledItemWriter = PatternItemWriter | TrajectoryItemWriter
"""Takes an adder's rows, and creates the items of its schedules."""


def open_item_writer(
    store: TableStore,
    schedules: Sequence[ItemSchedule],
    *,
    single_items: bool = False,
    **options: Unpack[WriterOptions],
) -> ScheduledItemWriter:
    """Opens a writer for the schedules: patterns create the items, unless items must be created one by one.

    Items must be created one by one with `single_items`, or if functions inspect the data of an item first.
    """
    _checks.instance_of("`client`", store, TableStore, "an engram.Store or an engram.Client")
    if single_items or any(schedule.depends_on_data() for schedule in schedules):
        return TrajectoryItemWriter(store, schedules, **options)
    return PatternItemWriter(store, schedules, **options)


def padding_rows(items: ScheduledItemWriter, schedules: Sequence[ItemSchedule]) -> range:
    """Returns the numbers, from 1, of the rows of padding that complete all last items of the episode."""
    return range(1, max(schedule.padding_rows(items.num_rows) for schedule in schedules) + 1)


def table_priorities(priority_fns: Mapping[str, Priority | None] | None) -> dict[str, Priority]:
    """Returns the tables to write to, each with the priority of its items.

    A priority of None becomes 1; if `priority_fns` is None, the only table is `DEFAULT_PRIORITY_TABLE`.
    """
    if priority_fns is None:
        return {DEFAULT_PRIORITY_TABLE: 1.0}
    if not isinstance(priority_fns, Mapping) or not priority_fns:
        raise InvalidArgumentError(
            "`priority_fns` must map table names to a number, a function of an item's data, or None for 1; "
            f"got {priority_fns!r}"
        )
    priorities: dict[str, Priority] = {}
    for table, priority in priority_fns.items():
        _checks.table_name("each key of `priority_fns`", table)
        priorities[table] = 1.0 if priority is None else priority
        if not callable(priorities[table]):
            _checks.number(f"the priority of table `{table}`", priorities[table])
    return priorities
