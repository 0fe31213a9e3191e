"""Sequences that may overlap."""

import enum
from collections.abc import Mapping

from engram import _checks
from engram.adders.base import Adder
from engram.adders.step import Step, zeros_like
from engram.adders.windows import LookingRows, Priority, Window, pad, rows_for, tables_of
from engram.errors import InvalidArgumentError
from engram.store import AnyStore

__all__ = ["EndBehavior", "SequenceAdder"]


class EndBehavior(enum.Enum):
    """What becomes of the rows at an episode's end that fill no sequence."""

    ZERO_PAD = "zero_pad"
    """Rows of zeros complete their sequence."""

    TRUNCATE = "truncate"
    """Their sequence is shorter."""

    WRITE = "write"
    """The last sequence ends with the episode, though it begins early; it is shorter where the episode is."""

    CONTINUE = "continue"
    """The next episode's rows complete it: sequences go on over the ends of episodes."""

    DROP = "drop"
    """They are in no sequence."""


class SequenceAdder(Adder):
    """Makes items of the last `sequence_length` rows, every `period` rows: `Step`s whose leaves are `[T, ...]`.

    The row after an episode's last transition has its final observation and zeros.
    """

    def __init__(
        self,
        client: AnyStore,
        sequence_length: int,
        period: int,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        end_of_episode_behavior: EndBehavior | str = EndBehavior.ZERO_PAD,
        chunk_length: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Opens a writer.

        Args:
            client: Where the tables are.
            sequence_length: Rows of an item, `T`.
            period: Rows from the beginning of one item to that of the next: `sequence_length` for no overlap.
            priority_fns: The tables, each with a priority, a function of the item's data, or None for 1. None: one
                table, `DEFAULT_PRIORITY_TABLE`.
            end_of_episode_behavior: See `EndBehavior`.
            chunk_length: Rows per chunk, as of `Store.writer`.
            timeout: Seconds that `add` waits for tables; None: for ever.
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
        windows = [
            Window(table=table, length=length, period=period, priority=priority)
            for table, priority in tables_of(priority_fns).items()
        ]
        # An item of another length is made one by one.
        looking = self._behavior in {EndBehavior.TRUNCATE, EndBehavior.WRITE}
        self._windows = windows
        self._rows = rows_for(client, windows, looking=looking, chunk_length=chunk_length, timeout=timeout)
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        self._rows.append(row)

    def _end(self, row: Step) -> None:
        try:
            self._rows.append(row)
            if self._behavior is EndBehavior.ZERO_PAD:
                pad(self._rows, self._windows, zeros_like(row))
            elif isinstance(self._rows, LookingRows):
                self._last_items(self._rows)
        finally:
            if self._behavior is EndBehavior.CONTINUE:
                self._rows.flush(self._timeout)
            else:
                self._give_up()

    def _last_items(self, rows: LookingRows) -> None:
        for window in self._windows:
            missing = window.missing(rows.count)
            if missing == 0:
                continue
            if self._behavior is EndBehavior.WRITE:
                rows.create(window, min(window.length, rows.count))
            elif self._behavior is EndBehavior.TRUNCATE and missing < window.length:
                rows.create(window, window.length - missing)
