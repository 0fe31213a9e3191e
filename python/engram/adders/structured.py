"""Items of any patterns."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import BaseItemWriter
from engram.adders.step import Step, map_leaves
from engram.errors import EngramError
from engram.patterns import Pattern, checked_patterns
from engram.store import TableStore
from engram.writer import Compression, PatternWriter

__all__ = ["StructuredAdder"]


class StructuredAdder(Adder):
    """Makes the items of patterns over `Step`s.

        two_rows = Pattern("replay", lambda step: {"obs": step.observation[-2:], "action": step.action[-2]})
        adder = StructuredAdder(store, [two_rows])

    The row after an episode's last transition has its final observation, and no value but that (and a
    `start_of_episode` of False): items that would need more of it are not made. Leaves may be None, too: no value at
    this step.
    """

    _takes_none = True

    def __init__(
        self,
        client: TableStore,
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None = None,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> None:
        """Opens a writer.

        Args:
            client: An `engram.Store` or `engram.Client`: where the tables are. They are looked for when rows come.
            patterns: One `Pattern` or more. Their functions get a `Step` whose leaves stand for columns: `leaf[-2:]` is
                `[2, ...]`, `leaf[-1]` is `[...]`.
            chunk_length: Rows per chunk. None: 1 to 16, about 16 KiB, as of `Store.writer`.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
            compression: `"auto"`, `"off"`, or `"delta"` for integers that change little from step to step: as of
                `Store.writer`.

        Raises:
            InvalidArgumentError: An argument is not what is said here. What is wrong with a pattern's function is found
                when it runs, at the first `add`.
        """
        _checks.instance_of("`client`", client, TableStore, "an engram.Store or an engram.Client")
        _checks.seconds("`timeout`", timeout)
        chosen = checked_patterns(patterns)
        self._rows = _Rows(
            lambda: client.pattern_writer(chosen, chunk_length=chunk_length, timeout=timeout, compression=compression)
        )
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        self._rows.append(row)

    def _end(self, row: Step) -> None:
        nothing = map_leaves(lambda _: None, row)
        try:
            self._rows.append(nothing._replace(observation=row.observation, start_of_episode=False))
        except BaseException:
            # The row before is not the episode's end: nobody may take it for that.
            with suppress(EngramError):
                self._rows.renew(0)
            raise
        self._rows.end_episode(self._timeout)

    def _give_up(self, timeout: float | None) -> None:
        self._rows.renew(timeout)


class _Rows(BaseItemWriter):
    """Rows of a writer, and what is left of those before it."""

    def __init__(self, open_one: Callable[[], PatternWriter]) -> None:
        self._open = open_one
        self._left: list[PatternWriter] = []
        self._writer: PatternWriter = open_one()

    def append(self, row: Step) -> None:
        """Takes a row, and makes the items that are due."""
        self._write(row)

    def renew(self, timeout: float | None) -> None:
        """Begins anew: patterns that wait for an end would take `end_episode` for one."""
        self._left.append(self._writer)
        try:
            self._writer = self._open()
        finally:
            self._each(None, timeout)

    def _each(self, call: Callable[[float | None], None] | None, timeout: float | None) -> None:
        """Closes the writers that are left, then calls; all of that is tried before an error is raised."""
        end = None if timeout is None else time.monotonic() + timeout
        first: EngramError | None = None
        for writer in list(self._left):
            try:
                writer.close(_until(end))
                self._left.remove(writer)
            except EngramError as error:
                first = first or error
        if call is not None:
            try:
                call(_until(end))
            except EngramError as error:
                first = first or error
        if first is not None:
            raise first

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible."""
        self._each(self._writer.flush, timeout)

    def close(self, timeout: float | None) -> None:
        """Flushes, and takes no more."""
        self._each(self._writer.close, timeout)


def _until(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
