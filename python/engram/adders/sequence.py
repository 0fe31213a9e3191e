"""An adder of sequences, which may overlap."""

import enum
from collections.abc import Mapping
from contextlib import suppress
from typing import Unpack

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import (
    Priority,
    TrajectoryItemWriter,
    open_item_writer,
    padding_rows,
    same_schedules,
)
from engram.adders.step import Step, zeros_like
from engram.errors import EngramError, InvalidArgumentError
from engram.table_store import TableStore
from engram.writer_options import WriterOptions

__all__ = ["EndBehavior", "SequenceAdder"]


class EndBehavior(enum.Enum):
    """What happens to rows at the end of an episode that do not fill a sequence.

    A row is a step as the adder stores it: one per transition, and one after the last, which has the final observation.
    """

    ZERO_PAD = "zero_pad"
    """Rows of zeros complete the sequence."""

    TRUNCATE = "truncate"
    """The sequence is shorter."""

    WRITE = "write"
    """The last sequence ends with the episode and starts earlier; it is shorter only if the whole episode is."""

    CONTINUE = "continue"
    """The next episode's rows complete the sequence: sequences continue across episodes, but not across a `reset`."""

    DROP = "drop"
    """The rows are dropped."""


class SequenceAdder(Adder):
    """Creates items of the last `sequence_length` rows, every `period` rows: `Step`s with leaves `[T, ...]`.

    Leaves keep the dtypes that were added. The row after an episode's last transition has the final observation and
    zeros. One native call per row creates the items, except for priorities that are functions and for the end
    behaviors `TRUNCATE` and `WRITE`: they create items one by one, which is slower.

        adder = SequenceAdder(store, 20, 10, priority_fns={"replay": None})
    """

    def __init__(
        self,
        client: TableStore,
        sequence_length: int,
        period: int,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        end_of_episode_behavior: EndBehavior | str = EndBehavior.ZERO_PAD,
        **options: Unpack[WriterOptions],
    ) -> None:
        """Opens an adder.

        Args:
            client: The `engram.Store` or `engram.Client` that has the tables. They need not exist before the first row.
            sequence_length: Rows of an item, `T`; 1 or more.
            period: Rows from the start of one item to the start of the next, 1 or more. If it equals `sequence_length`,
                items do not overlap; if it is larger, the rows between two items are in no item.
            priority_fns: Priority of the items by table: a number, a function from an item's data (a `Step` of NumPy
                arrays `[T, ...]`) to a number, or None for 1. Default: None, the table `DEFAULT_PRIORITY_TABLE` with
                priority 1.
            end_of_episode_behavior: What happens to rows that do not fill a sequence: an `EndBehavior` or its value as
                text, for example `"truncate"`. Default: `EndBehavior.ZERO_PAD`.
            **options: Options of `engram.WriterOptions`.

        Raises:
            InvalidArgumentError: An argument has a type or value that is not allowed.
            TypeError: An option is unknown.
        """
        try:
            self._end_behavior = EndBehavior(end_of_episode_behavior)
        except ValueError:
            allowed = ", ".join(repr(behavior.value) for behavior in EndBehavior)
            raise InvalidArgumentError(
                f"`end_of_episode_behavior` must be one of {allowed}; got {end_of_episode_behavior!r}"
            ) from None
        length = _checks.integer("`sequence_length`", sequence_length)
        period = _checks.integer("`period`", period)
        self._schedules = same_schedules(priority_fns, length, period)
        # These behaviors need items that patterns cannot create: shorter ones, or ones that end elsewhere.
        single_items = self._end_behavior in {EndBehavior.TRUNCATE, EndBehavior.WRITE}
        self._item_writer = open_item_writer(client, self._schedules, single_items=single_items, **options)
        super().__init__(self._item_writer, options.get("timeout"))

    def reset(self) -> None:
        """Abandons the episode in progress, and with `CONTINUE` also the sequence; see `Adder.reset`.

        Raises:
            DeadlineExceededError, ItemError, BackpressureError, UnsatisfiableError, ClosedError: See `Adder.reset`.
        """
        if self._end_behavior is EndBehavior.CONTINUE and not self._in_episode:
            self._item_writer.end_episode(self._timeout)
        super().reset()

    def _add(self, row: Step) -> None:
        self._item_writer.append(row)

    def _end(self, row: Step) -> None:
        if self._end_behavior is EndBehavior.CONTINUE:
            self._end_and_continue(row)
            return
        with self._ending(self._timeout):
            self._item_writer.append(row)
            if self._end_behavior is EndBehavior.ZERO_PAD:
                zeros = zeros_like(row)
                for padding in padding_rows(self._item_writer, self._schedules):
                    self._item_writer.append(zeros, padding)
            elif isinstance(self._item_writer, TrajectoryItemWriter):
                self._create_last_items(self._item_writer)

    def _end_and_continue(self, row: Step) -> None:
        try:
            self._item_writer.append(row)
        except BaseException:
            # A sequence must not continue across a missing row.
            with suppress(EngramError):
                self._item_writer.end_episode(0)
            raise
        self._item_writer.flush(self._timeout)

    def _create_last_items(self, items: TrajectoryItemWriter) -> None:
        for schedule in self._schedules:
            if self._end_behavior is EndBehavior.WRITE and schedule.missing_rows(items.num_rows):
                items.create(schedule, min(schedule.length, items.num_rows))
            elif self._end_behavior is EndBehavior.TRUNCATE and schedule.padding_rows(items.num_rows):
                items.create(schedule, schedule.length - schedule.padding_rows(items.num_rows))
