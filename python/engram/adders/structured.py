"""Items of any patterns."""

from collections.abc import Callable, Sequence

from engram import _checks
from engram.adders.base import Adder
from engram.adders.step import Step, each_leaf
from engram.patterns import Pattern
from engram.store import AnyStore
from engram.writer import PatternWriter

__all__ = ["StructuredAdder"]


class StructuredAdder(Adder):
    """Makes the items of patterns over `Step`s.

        two_rows = Pattern("replay", lambda step: {"obs": step.observation[-2:], "action": step.action[-2]})
        adder = StructuredAdder(store, [two_rows])

    The row after an episode's last transition has its final observation, and no value but that (and a
    `start_of_episode` of False): items that would need more
    of it are not made. Leaves may be None, too: no value at this step.
    """

    _takes_none = True

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
        _checks.seconds("`timeout`", timeout)
        chosen = tuple(patterns) if isinstance(patterns, Sequence) else patterns
        self._rows = _Rows(lambda: client.pattern_writer(chosen, chunk_length=chunk_length, timeout=timeout))
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        self._rows.writer.append(row)

    def _end(self, row: Step) -> None:
        nothing = each_leaf(lambda _: None, row)
        with self._ending():
            self._rows.writer.append(nothing._replace(observation=row.observation, start_of_episode=False))

    def _give_up(self) -> None:
        self._rows.renew(self._timeout)


class _Rows:
    """A writer, and those before it that have items left."""

    def __init__(self, open_one: Callable[[], PatternWriter]) -> None:
        self._open = open_one
        self._left: list[PatternWriter] = []
        self.writer = open_one()

    def complain(self) -> None:
        """Nothing went wrong that was not raised."""

    def renew(self, timeout: float | None) -> None:
        """Begins anew: patterns that wait for an end would take `end_episode` for one."""
        self._left.append(self.writer)
        self.writer = self._open()
        self._close_left(timeout)

    def _close_left(self, timeout: float | None) -> None:
        while self._left:
            self._left[0].close(timeout)
            del self._left[0]

    def end_episode(self, timeout: float | None) -> None:
        self.writer.end_episode(timeout)

    def flush(self, timeout: float | None) -> None:
        self._close_left(timeout)
        self.writer.flush(timeout)

    def close(self, timeout: float | None) -> None:
        self._close_left(timeout)
        self.writer.close(timeout)
