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

__all__ = ["FetchOptions", "MismatchError", "read_blocks"]

_LOG = logging.getLogger(__name__)

R = TypeVar("R")


class MismatchError(ValueError):
    """Items are not what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How items are fetched.

    Attributes:
        ahead: Items that may have been drawn and not be used yet, beside the one that is being used.
        block: Items per block at most; None: half of `ahead`, rounded up.
        exact_blocks: Blocks are of so many exactly, and one that does not fit is refused as a whole.
        items_per_stream: Items after which a new stream is opened; None: never.
        timeout: Seconds to wait in vain before it ends; None: for ever.
        max_items: Ends after so many; None: never.
        returns: Wait for a server that went away, for ever.
        glance: Seconds after which a waiting reader says so: whoever wants to stop it can do so then.
    """

    max_in_flight: int
    block_size: int | None = None
    exact_blocks: bool = False
    items_per_stream: int | None = None
    timeout: float | None = None
    max_items: int | None = None
    reconnect_forever: bool = False
    poll_interval: float = 0.2


_FITTING_ITEMS_BEFORE_BLOCKS = 64
"""Items in a row."""

_ANSWER_INTERVAL = 0.02
"""Seconds that an answer may take before it is asked whether there is one."""


def read_blocks(
    store: TableStore,
    table: str,
    fetch_options: FetchOptions,
    make: Callable[[ColumnBlock], R],
    tracker: ConsumptionTracker | None = None,
) -> Iterator[R | None]:
    """Yields what `make` makes of each block that the table gives, and None now and then while it gives nothing.

    Once it is closed, what was fetched and not used goes back: counters are undone, and items of a queue regain their
    place. So do items that `make` refuses. Blocks are used as a whole once they are yielded, or item by item as
    `tracker` counts them.

    Raises:
        MismatchError: `make` refuses an item; all before it were yielded.
        UnknownTableError, ClosedError, UnavailableError, OutOfMemoryError: As of `engram.Dataset`.
    """
    reader = _BlockReader(store, table, fetch_options, make, tracker)
    while not reader.is_done:
        try:
            yield from reader.stream()
        except (SignatureError, MismatchError):
            # Items that do not go side by side, or one that does not fit: they went back.
            if reader.single_items or fetch_options.exact_blocks:
                raise
            reader.single_items = True
        except (UnavailableError, ClosedError) as error:
            if not fetch_options.reconnect_forever:
                raise
            yield from reader.wait_for_server(error)


class _BlockReader:
    """Opens one stream after the other."""

    def __init__(
        self,
        store: TableStore,
        table: str,
        fetch_options: FetchOptions,
        make: Callable[[ColumnBlock], Any],
        tracker: ConsumptionTracker | None,
    ) -> None:
        self._store = store
        self._table = table
        self._options = fetch_options
        self._make = make
        self._tracker = tracker
        self._items_left = fetch_options.max_items
        self._block_items = 0
        self._failed_streams = 0
        self._fitting_in_a_row = 0
        self.is_done = False
        self.single_items = False

    def stream(self) -> Iterator[Any]:
        """Yields what one stream gives."""
        ahead = self._options.max_in_flight
        size = 1 if self.single_items else self._options.block_size or (ahead + 1) // 2
        bound = min(
            (each for each in (self._items_left, self._options.items_per_stream) if each is not None), default=None
        )
        dataset = Dataset(
            self._store,
            self._table,
            size,
            at_least=None if self._options.exact_blocks else 1,
            prefetch=max(1, (ahead - size + 1) // size),  # one, of which an item or more were used, while others come
            max_items=bound,
            timeout=self._options.timeout,
        )
        total = 0
        with closing(dataset._read(self._convert, self._options.poll_interval, self._tracker)) as stream:  # noqa: SLF001, every dataset's half
            for each in stream:
                self._failed_streams = 0
                if each is not None:
                    total += self._block_items
                    if self._items_left is not None:
                        self._items_left -= self._block_items
                yield each
                if each is not None and self._can_read_blocks_again():
                    self._mark_all_used()
                    return
        if total != bound:  # waited in vain
            yield from self._confirm_empty()
        self.is_done = self.is_done or self._items_left == 0

    def _can_read_blocks_again(self) -> bool:
        """Whether enough items in a row fitted one by one to try blocks of them again."""
        self._fitting_in_a_row = self._fitting_in_a_row + 1 if self.single_items else 0
        if self._fitting_in_a_row < _FITTING_ITEMS_BEFORE_BLOCKS or self._items_left == 0:
            return False
        self._fitting_in_a_row = 0
        self.single_items = False
        return True

    def _confirm_empty(self) -> Iterator[Any]:
        """Asks for one item until the table has answered: on a stream it may be late only because it is far away."""
        dataset = Dataset(self._store, self._table, 1, prefetch=1, max_items=1)
        with closing(dataset._read(self._convert, _ANSWER_INTERVAL, self._tracker)) as stream:  # noqa: SLF001, every dataset's half
            for each in stream:
                if each is None and self._has_waiting_samples():
                    self.is_done = True
                    return
                if each is not None and self._items_left is not None:
                    self._items_left -= 1
                yield each

    def _has_waiting_samples(self) -> bool:
        """Whether somebody waits for the table: then it has nothing; otherwise what it gave is on its way."""
        info = self._store.info().get(self._table)
        return info is None or info.waiting_samples > 0

    def _convert(self, native: _engram.Batch) -> Any:  # noqa: ANN401, what `make` makes
        block = item_block(native)
        self._block_items = len(native)
        try:
            return self._make(block)
        except MismatchError:
            if not (self.single_items or self._options.exact_blocks):
                self._mark_all_used()
            raise

    def _mark_all_used(self) -> None:
        """What was yielded is used: another stream goes on."""
        if self._tracker is not None:
            self._tracker.consume_all()

    def wait_for_server(self, error: Exception) -> Iterator[None]:
        """Waits a while: the server is away."""
        if self._failed_streams == 0:
            _LOG.warning("sampling from `%s` waits for its server: %s", self._table, error)
        end = time.monotonic() + min(1.0, 0.01 * 2**self._failed_streams)
        self._failed_streams += self._failed_streams < _MAX_DOUBLINGS
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self._options.poll_interval))
            yield None


_MAX_DOUBLINGS = 7
"""Doublings of a rest of 10 ms, up to a second."""
