"""Items of one table in blocks of many: how far ahead they are fetched, how long one waits, and what goes back."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from engram import Dataset, _engram
from engram._consumption import ConsumptionTracker
from engram.data.column_block import ColumnBlock, item_block
from engram.errors import ClosedError, SignatureError, UnavailableError
from engram.store import TableStore

__all__ = ["Fetching", "MismatchError", "read"]

_LOG = logging.getLogger(__name__)

R = TypeVar("R")


class MismatchError(ValueError):
    """Items are not what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How items are fetched.

    Attributes:
        ahead: Items that may have been drawn and not be used yet, beside the one that is being used.
        block: Items per block at most; None: half of `ahead`, rounded up.
        is_exact: Blocks are of so many exactly, and one that does not fit is refused as a whole.
        per_stream: Items after which a new stream is opened; None: never.
        timeout: Seconds to wait in vain before it ends; None: for ever.
        max_items: Ends after so many; None: never.
        returns: Wait for a server that went away, for ever.
        glance: Seconds after which a waiting reader says so: whoever wants to stop it can do so then.
    """

    ahead: int
    block: int | None = None
    is_exact: bool = False
    per_stream: int | None = None
    timeout: float | None = None
    max_items: int | None = None
    returns: bool = False
    glance: float = 0.2


_ENOUGH = 64
"""Items in a row."""

_ANSWER = 0.02
"""Seconds that an answer may take before it is asked whether there is one."""


def read(
    store: TableStore,
    table: str,
    fetching: Fetching,
    make: Callable[[ColumnBlock], R],
    tracker: ConsumptionTracker | None = None,
) -> Iterator[R | None]:
    """Yields what `make` makes of each block that the table gives, and None now and then while it gives nothing.

    Once it is closed, what was fetched and not used goes back: counters are undone, and items of a queue regain their
    place. So do items that `make` refuses. Blocks are used as a whole once they are yielded, or item by item as `tracker`
    counts them.

    Raises:
        MismatchError: `make` refuses an item; all before it were yielded.
        UnknownTableError, ClosedError, UnavailableError, OutOfMemoryError: As of `engram.Dataset`.
    """
    reader = _Reader(store, table, fetching, make, tracker)
    while not reader.is_done:
        try:
            yield from reader.stream()
        except (SignatureError, MismatchError):
            # Items that do not go side by side, or one that does not fit: they went back.
            if reader.one_by_one or fetching.is_exact:
                raise
            reader.one_by_one = True
        except (UnavailableError, ClosedError) as error:
            if not fetching.returns:
                raise
            yield from reader.rest(error)


class _Reader:
    """Opens one stream after the other."""

    def __init__(
        self,
        store: TableStore,
        table: str,
        fetching: Fetching,
        make: Callable[[ColumnBlock], Any],
        tracker: ConsumptionTracker | None,
    ) -> None:
        self._store = store
        self._table = table
        self._fetching = fetching
        self._make = make
        self._tracker = tracker
        self._left = fetching.max_items
        self._count = 0
        self._times_lost = 0
        self._fitted = 0
        self.is_done = False
        self.one_by_one = False

    def stream(self) -> Iterator[Any]:
        """Yields what one stream gives."""
        ahead = self._fetching.ahead
        size = 1 if self.one_by_one else self._fetching.block or (ahead + 1) // 2
        bound = min((each for each in (self._left, self._fetching.per_stream) if each is not None), default=None)
        dataset = Dataset(
            self._store,
            self._table,
            size,
            at_least=None if self._fetching.is_exact else 1,
            prefetch=max(1, (ahead - size + 1) // size),  # one, of which an item or more were used, while others come
            max_items=bound,
            timeout=self._fetching.timeout,
        )
        total = 0
        with closing(dataset._read(self._made, self._fetching.glance, self._tracker)) as stream:  # noqa: SLF001, every dataset's half
            for each in stream:
                self._times_lost = 0
                if each is not None:
                    total += self._count
                    if self._left is not None:
                        self._left -= self._count
                yield each
                if each is not None and self._is_even_again():
                    self._settle()
                    return
        if total != bound:  # waited in vain
            yield from self._last()
        self.is_done = self.is_done or self._left == 0

    def _is_even_again(self) -> bool:
        """Whether enough items in a row fitted one by one to try blocks of them again."""
        self._fitted = self._fitted + 1 if self.one_by_one else 0
        if self._fitted < _ENOUGH or self._left == 0:
            return False
        self._fitted = 0
        self.one_by_one = False
        return True

    def _last(self) -> Iterator[Any]:
        """Asks for one item until the table has answered: on a stream it may be late only because it is far away."""
        dataset = Dataset(self._store, self._table, 1, prefetch=1, max_items=1)
        with closing(dataset._read(self._made, _ANSWER, self._tracker)) as stream:  # noqa: SLF001, every dataset's half
            for each in stream:
                if each is None and self._is_waited_for():
                    self.is_done = True
                    return
                if each is not None and self._left is not None:
                    self._left -= 1
                yield each

    def _is_waited_for(self) -> bool:
        """Whether somebody waits for the table: then it has nothing; otherwise what it gave is on its way."""
        info = self._store.info().get(self._table)
        return info is None or info.waiting_samples > 0

    def _made(self, native: _engram.Batch) -> Any:  # noqa: ANN401, what `make` makes
        block = item_block(native)
        self._count = len(native)
        try:
            return self._make(block)
        except MismatchError:
            if not (self.one_by_one or self._fetching.is_exact):
                self._settle()
            raise

    def _settle(self) -> None:
        """What was yielded is used: another stream goes on."""
        if self._tracker is not None:
            self._tracker.consume_all()

    def rest(self, error: Exception) -> Iterator[None]:
        """Waits a while: the server is away."""
        if self._times_lost == 0:
            _LOG.warning("sampling from `%s` waits for its server: %s", self._table, error)
        end = time.monotonic() + min(1.0, 0.01 * 2**self._times_lost)
        self._times_lost += self._times_lost < _LONGEST_REST
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self._fetching.glance))
            yield None


_LONGEST_REST = 7
"""Doublings of a rest of 10 ms, up to a second."""
