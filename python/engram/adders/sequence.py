"""Sequences that may overlap."""

import enum
from collections.abc import Mapping
from contextlib import suppress

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import (
    ItemSchedule,
    Priority,
    TrajectoryItemWriter,
    open_item_writer,
    pad,
    table_priorities,
)
from engram.adders.step import Step, zeros_like
from engram.errors import EngramError, InvalidArgumentError
from engram.store import TableStore
from engram.writer import Compression

__all__ = ["EndBehavior", "SequenceAdder"]


class EndBehavior(enum.Enum):
    """What becomes of the rows at an episode's end that fill no sequence.

    The row after the last transition, with the final observation, is one of the episode's rows.
    """

    ZERO_PAD = "zero_pad"
    """Rows of zeros complete their sequence."""

    TRUNCATE = "truncate"
    """Their sequence is shorter."""

    WRITE = "write"
    """The last sequence ends with the episode, though it begins early; it is shorter where the episode is."""

    CONTINUE = "continue"
    """The next episode's rows complete it: sequences go on over the ends of episodes, but not over a `reset`."""

    DROP = "drop"
    """They are in no sequence."""


class SequenceAdder(Adder):
    """Makes items of the last `sequence_length` rows, every `period` rows: `Step`s whose leaves are `[T, ...]`.

    Leaves keep the dtypes that were added. The row after an episode's last transition has its final observation and
    zeros. Sequences that are padded, continued or dropped are made by patterns; where priorities are functions, or ends
    truncated or written, one by one.

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
        chunk_length: int | None = None,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> None:
        """Opens a writer.

        Args:
            client: An `engram.Store` or `engram.Client`: where the tables are. They are looked for when rows come.
            sequence_length: Rows of an item, `T`: 1 or more.
            period: Rows from one item's first to the next one's, 1 or more: `sequence_length` for no overlap.
            priority_fns: The tables, each with its items' priority: a number, a function from an item's data (a `Step`
                of NumPy arrays `[T, ...]`) to a number, or None for 1. None: one table, `DEFAULT_PRIORITY_TABLE`.
            end_of_episode_behavior: What becomes of rows that fill no sequence: an `EndBehavior`, or its value as text,
                such as `"truncate"`. Default: rows of zeros complete it.
            chunk_length: Rows per chunk. None: 1 to 16, about 16 KiB, as of `Store.writer`.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
            compression: `"auto"`, `"off"`, or `"delta"` for integers that change little from step to step: as of
                `Store.writer`.

        Raises:
            InvalidArgumentError: An argument is not what is said here.
        """
        try:
            self._behavior = EndBehavior(end_of_episode_behavior)
        except ValueError:
            allowed = ", ".join(repr(behavior.value) for behavior in EndBehavior)
            raise InvalidArgumentError(
                f"`end_of_episode_behavior` must be one of {allowed}; got {end_of_episode_behavior!r}"
            ) from None
        length = _checks.integer("`sequence_length`", sequence_length)
        period = _checks.integer("`period`", period)
        self._plans = [
            ItemSchedule(table=table, length=length, period=period, priority=priority)
            for table, priority in table_priorities(priority_fns).items()
        ]
        # An item of another length is made one by one.
        looking = self._behavior in {EndBehavior.TRUNCATE, EndBehavior.WRITE}
        self._rows = open_item_writer(
            client, self._plans, looking=looking, chunk_length=chunk_length, timeout=timeout, compression=compression
        )
        super().__init__(self._rows, timeout)

    def reset(self) -> None:
        """Gives up the episode under way, and with `CONTINUE` the sequence, too; see `Adder.reset`.

        Raises:
            DeadlineExceededError, ItemError, BackpressureError, UnsatisfiableError, ClosedError: As of `Adder.reset`.
        """
        if self._behavior is EndBehavior.CONTINUE and not self._in_episode:
            self._rows.end_episode(self._timeout)
        super().reset()

    def _add(self, row: Step) -> None:
        self._rows.append(row)

    def _end(self, row: Step) -> None:
        if self._behavior is EndBehavior.CONTINUE:
            self._go_on(row)
            return
        with self._ending(self._timeout):
            self._rows.append(row)
            if self._behavior is EndBehavior.ZERO_PAD:
                zeros = zeros_like(row)
                pad(self._rows, self._plans, lambda padding: self._rows.append(zeros, padding))
            elif isinstance(self._rows, TrajectoryItemWriter):
                self._last_items(self._rows)

    def _go_on(self, row: Step) -> None:
        try:
            self._rows.append(row)
        except BaseException:
            # Sequences must not go on over a gap.
            with suppress(EngramError):
                self._rows.end_episode(0)
            raise
        self._rows.flush(self._timeout)

    def _last_items(self, rows: TrajectoryItemWriter) -> None:
        for plan in self._plans:
            if self._behavior is EndBehavior.WRITE and plan.missing(rows.count):
                rows.create(plan, min(plan.length, rows.count))
            elif self._behavior is EndBehavior.TRUNCATE and plan.padding(rows.count):
                rows.create(plan, plan.length - plan.padding(rows.count))
