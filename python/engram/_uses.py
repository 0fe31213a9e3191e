"""Which of the items that a dataset has fetched were used, where its reader cuts them up or puts them together."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

__all__ = ["Uses"]


class Uses:
    """Counts items whose pieces are handed on, in order: an item is used with its first piece.

    Whoever hands pieces on sets `items` to what `begun` says, right before: no call comes between, so that Ctrl-C
    cannot. One reader counts for one or several streams, one after the other.

    Attributes:
        items: Of all that were brought, the first so many were used. Set by who hands pieces on.
        brought: Items that streams have brought so far. Set by who reads the streams.
        pieces: Of all items so far.
    """

    def __init__(self, last: Callable[[], bool] | None = None) -> None:
        """Nothing was brought yet.

        Args:
            last: Called when nothing more comes, before what was not used goes back: whether all that was brought is
                used. None: it is.
        """
        self.items = 0
        self.brought = 0
        self._begun = 0
        self.pieces = 0
        self._handed = 0
        self._starts: list[int] = []  # the first pieces of items, but of the first `_begun`
        self._holds = True
        self._last = last

    def cut(self, pieces: Iterable[int]) -> None:
        """Of the items that come next, each has so many pieces."""
        begun = bisect_left(self._starts, self._handed)
        del self._starts[:begun]
        self._begun += begun
        self._starts += accumulate(pieces, initial=self.pieces)
        self.pieces = self._starts.pop()

    def begun(self, pieces: int) -> int:
        """How many items are used once so many more pieces have been handed on."""
        self._handed += pieces
        return max(self.items, self._begun + bisect_left(self._starts, self._handed))

    def reached(self, pieces: int) -> int:
        """How many items are used once so many pieces have been handed on, of all."""
        self._handed = pieces
        return max(self.items, self._begun + bisect_left(self._starts, pieces))

    def settle(self) -> None:
        """All that was brought counts as used: its stream is about to be closed, and its pieces are still there."""
        self.items = self.brought

    def end(self) -> None:
        """Nothing more comes; called before what was not used goes back."""
        if self._last is None or self._last():
            self.settle()

    def let_go(self) -> None:
        """From now on items count as used once the next ones are asked for: somebody waits for their room."""
        self._holds = False

    def asks(self) -> int:
        """How many items were used; called when the next ones are asked for."""
        if not self._holds:
            self.settle()
        return self.items

    @property
    def is_holding(self) -> bool:
        """Whether there are items that were brought and are not used."""
        return self._holds and self.items < self.brought
