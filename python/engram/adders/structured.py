"""Items of any patterns."""

from collections.abc import Sequence
from functools import partial

from engram import _checks
from engram.adders.base import Adder
from engram.adders.step import Step, each_leaf
from engram.patterns import Pattern
from engram.store import AnyStore

__all__ = ["StructuredAdder"]


class StructuredAdder(Adder):
    """Makes the items of patterns over `Step`s.

        two_rows = Pattern("replay", lambda step: {"obs": step.observation[-2:], "action": step.action[-2]})
        adder = StructuredAdder(store, [two_rows])

    The row after an episode's last transition has its final observation alone: items that would need more of it are not
    made.
    """

    def __init__(
        self,
        client: AnyStore,
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Opens a writer.

        Args:
            client: Where the tables are.
            patterns: Their functions get a `Step` whose leaves stand for columns.
            chunk_length: Rows per chunk, as of `Store.writer`.
            timeout: Seconds that `add` waits for tables; None: for ever.
        """
        _checks.one_of("`client`", client, AnyStore, "an engram.Store or an engram.Client")
        self._open = partial(client.pattern_writer, patterns, chunk_length=chunk_length, timeout=timeout)
        self._writer = self._open()
        super().__init__(self._writer, timeout)

    def _add(self, row: Step) -> None:
        self._writer.append(row)

    def _end(self, row: Step) -> None:
        nothing = each_leaf(lambda _: None, row)
        try:
            self._writer.append(nothing._replace(observation=row.observation, start_of_episode=False))
        finally:
            self._writer.end_episode(self._timeout)

    def _give_up(self) -> None:
        # Not `end_episode`: patterns that wait for an end would take this for one.
        self._writer.close(self._timeout)
        self._written = self._writer = self._open()
