"""An adder whose items are defined by patterns."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Unpack

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import BaseItemWriter
from engram.adders.step import Step, map_leaves
from engram.errors import BackpressureError, DeadlineExceededError, EngramError
from engram.patterns import Pattern, checked_patterns
from engram.table_store import TableStore
from engram.writer import PatternWriter
from engram.writer_options import DEFAULT_MAX_WAITING_ITEMS, WriterOptions

__all__ = ["StructuredAdder"]


class StructuredAdder(Adder):
    """Creates the items of patterns over `Step`s.

        two_rows = Pattern("replay", lambda step: {"obs": step.observation[-2:], "action": step.action[-2]})
        adder = StructuredAdder(store, [two_rows])

    The row after an episode's last transition has only the final observation and a `start_of_episode` of False; items
    that need other fields of it are not created. Leaves may be None, which means no value at this step.
    """

    _allows_none = True

    def __init__(self, client: TableStore, patterns: Sequence[Pattern], **options: Unpack[WriterOptions]) -> None:
        """Opens an adder.

        Args:
            client: The `engram.Store` or `engram.Client` that has the tables. They need not exist before the first row.
            patterns: One or more `Pattern`s. Their functions receive a `Step` whose leaves stand for columns:
                `leaf[-2:]` is `[2, ...]`, `leaf[-1]` is `[...]`.
            **options: Options of `engram.WriterOptions`.

        Raises:
            InvalidArgumentError: An argument has a type or value that is not allowed. Errors of a pattern's
                function are raised when it runs, at the first `add`.
            TypeError: An option is unknown.
        """
        _checks.instance_of("`client`", client, TableStore, "an engram.Store or an engram.Client")
        checked = checked_patterns(patterns)
        self._item_writer = _StructuredItemWriter(lambda: client.pattern_writer(checked, **options))
        self._max_waiting = options.get("max_waiting_items", DEFAULT_MAX_WAITING_ITEMS)
        super().__init__(self._item_writer, options.get("timeout"))

    def _add(self, row: Step) -> None:
        if self._max_waiting is not None:
            self._item_writer.wait_for_earlier(self._max_waiting, self._timeout)
        self._item_writer.append(row)

    def _end(self, row: Step) -> None:
        no_values = map_leaves(lambda _: None, row)
        try:
            self._item_writer.append(no_values._replace(observation=row.observation, start_of_episode=False))
        except BaseException:
            # Patterns with `end_of_episode()` must not treat the previous row as the last one.
            with suppress(EngramError):
                self._item_writer.restart(0)
            raise
        self._item_writer.end_episode(self._timeout)

    def _abandon(self, timeout: float | None) -> None:
        self._item_writer.restart(timeout)


class _StructuredItemWriter(BaseItemWriter):
    """A pattern writer that can be replaced; replaced writers stay open until their items are in their tables."""

    def __init__(self, open_writer: Callable[[], PatternWriter]) -> None:
        self._open_writer = open_writer
        self._earlier: list[PatternWriter] = []
        self._writer: PatternWriter = open_writer()

    def append(self, row: Step) -> None:
        """Writes a row; the patterns create its items."""
        self._write(row)

    def restart(self, timeout: float | None) -> None:
        """Replaces the writer, so that patterns with `end_of_episode()` do not create items; closes replaced ones."""
        self._earlier.append(self._writer)
        try:
            self._writer = self._open_writer()
        finally:
            self._close_earlier_and(None, timeout)

    def wait_for_earlier(self, max_waiting: int, timeout: float | None) -> None:
        """Waits if at least `max_waiting` items of replaced writers are not in their tables, for all of these items.

        Raises:
            BackpressureError: The tables did not accept enough of them within `timeout` seconds.
        """
        if self._earlier_items() < max_waiting:
            return
        try:
            self._close_earlier_and(None, timeout)
        except DeadlineExceededError as error:
            if (waiting := self._earlier_items()) >= max_waiting:
                raise BackpressureError(
                    f"{waiting} items of abandoned episodes wait for tables (`max_waiting_items` = {max_waiting}): "
                    f"{error}"
                ) from error

    def _earlier_items(self) -> int:
        return sum(writer.pending_items for writer in self._earlier)

    def _close_earlier_and(self, call: Callable[[float | None], None] | None, timeout: float | None) -> None:
        """Closes the earlier writers, then makes the call, if any. All are tried; the first error is raised.

        `timeout` is the limit of all of them together.
        """
        end = None if timeout is None else time.monotonic() + timeout
        first_error: EngramError | None = None
        for writer in list(self._earlier):
            try:
                writer.close(_remaining(end))
                self._earlier.remove(writer)
            except EngramError as error:
                first_error = first_error or error
        if call is not None:
            try:
                call(_remaining(end))
            except EngramError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible."""
        self._close_earlier_and(self._writer.flush, timeout)

    def close(self, timeout: float | None) -> None:
        """Flushes, and closes the writer."""
        self._close_earlier_and(self._writer.close, timeout)


def _remaining(end: float | None) -> float | None:
    """Seconds until `end`, in seconds of `time.monotonic`; None if there is no end."""
    return None if end is None else max(0.0, end - time.monotonic())
