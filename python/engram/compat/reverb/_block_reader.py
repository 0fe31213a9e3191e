"""Reads the items of one table in blocks: prefetching, timeouts, reconnects, and the return of unconsumed items."""

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

from engram import Batch, Dataset, _engram
from engram.compat.reverb._nest import text_as_bytes
from engram.consumption import ConsumptionTracker
from engram.data.column_block import ColumnBlock, item_block
from engram.errors import ClosedError, DeadlineExceededError, SignatureError, UnavailableError
from engram.info import TableInfo
from engram.table_store import TableStore

__all__ = ["BlockReader", "DtypeMismatchError", "FetchOptions", "MismatchError"]

_LOG = logging.getLogger(__name__)

R = TypeVar("R")


class MismatchError(ValueError):
    """Items do not have the requested number, dtypes or shapes of columns."""


class DtypeMismatchError(MismatchError):
    """Items do not have the requested dtypes of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Options for fetching items.

    Attributes:
        max_in_flight: Maximum number of items in the block in use and in the blocks fetched ahead.
        block_size: Maximum number of items per block. Default: see `_default_block_size`.
        exact_blocks: If True, every block has exactly `block_size` items, and an item that does not fit rejects its
            whole block.
        items_per_stream: Number of items after which a new stream is opened. None means never.
        timeout: Seconds without an item after which reading ends. None means no limit.
        max_items: Number of items after which reading ends. None means no limit.
        reconnect_forever: If True, wait for an unreachable server without limit.
        poll_interval: Seconds of waiting after which None is yielded, so that the caller can stop. 0 means that None is
            yielded whenever no block is ready.
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
"""Number of consecutive items that must fit, read one by one, before blocks are read again."""

_CONFIRM_INTERVAL = 0.02
"""Seconds to wait for one more item before checking whether the table has one."""

_MAX_IN_ONE_BLOCK = 8
"""If `max_in_flight` is at most this, items are fetched `max_in_flight` at a time, once the program has used those
before, as in Reverb."""

_MAX_DOUBLINGS = 7
"""Number of times that the pause of 10 ms before a reconnect is doubled, up to 1 s."""


class BlockReader(Generic[R]):
    """Reads a table through a sequence of streams."""

    def __init__(
        self,
        store: TableStore,
        table: str,
        fetch_options: FetchOptions,
        make: Callable[[ColumnBlock], R],
        *,
        tracker: ConsumptionTracker | None = None,
        check_info: Callable[[TableInfo], None] | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._options = fetch_options
        self._make = make
        self._tracker = tracker
        self._check_info = check_info
        self._items_left = fetch_options.max_items  # number of items until reading ends; None means no limit
        self._block_items = 0  # number of items in the block converted last
        self._failed_streams = (
            0  # consecutive streams that failed before they yielded anything; at most `_MAX_DOUBLINGS`
        )
        self._consecutive_fits = 0  # items that fitted since the last that did not, while reading one by one
        self._reads_single_items = False

    def blocks(self) -> Generator[R | None]:
        """Yields `make(block)` for each block of items, and None every `poll_interval` while there are no items.

        When the generator is closed, items that were not consumed are returned to the table: counters are restored, and
        items of a queue regain their positions. Items that `make` rejects by a `MismatchError` are returned, too; all
        items before them were yielded, except those of the same block with `exact_blocks`. Without a `tracker`, all
        items of a block are consumed once the block is yielded; otherwise the tracker counts the consumed items.
        `check_info` receives the table's state before the first block, unless the table does not exist. If this state
        has `max_times_sampled`, the tracker's blocks have one item, unless `exact_blocks`, as an item is acknowledged
        when its first element is requested.
        """
        ended_early = False  # True if the last stream ended because of the timeout
        while self._items_left != 0:
            confirms_end, ended_early = ended_early, False
            try:
                self._check_table()
                max_items, dataset = self._dataset(confirms_end=confirms_end)
                poll_interval = _CONFIRM_INTERVAL if confirms_end else self._options.poll_interval
                num_read = 0
                with closing(dataset.read(self._convert, poll_interval, self._tracker)) as stream:
                    for block in stream:
                        self._failed_streams = 0
                        if block is not None:
                            num_read += self._count_items()
                        elif confirms_end and self._has_waiting_samples():
                            return
                        yield block
                        if block is not None and self._switch_back_to_blocks():
                            self._mark_all_consumed()
                            break
                    else:
                        ended_early = not confirms_end and num_read != max_items
            except (SignatureError, MismatchError):
                # The items cannot be combined into a block, or an item does not fit. The block was returned. If
                # `check_info` is still set, it has raised the error itself.
                if self._reads_single_items or self._options.exact_blocks or self._check_info is not None:
                    raise
                self._reads_single_items = True
            except (UnavailableError, DeadlineExceededError, ClosedError) as error:
                for pause in self._pauses(error):
                    time.sleep(pause)
                    yield None

    def _count_items(self) -> int:
        """Counts the items of the block that is yielded next; returns their number."""
        if self._items_left is not None:
            self._items_left -= self._block_items
        return self._block_items

    def _check_table(self) -> None:
        """Passes the table's state to `check_info`, once, and decides from it whether items are read one by one."""
        if self._check_info is None:
            return
        if (info := self._store.info().get(self._table)) is not None:
            self._check_info(info)
            if info.max_times_sampled is not None and self._tracker is not None:
                self._tracker.removes_items = True
                self._reads_single_items = not self._options.exact_blocks
        self._check_info = None

    def _dataset(self, *, confirms_end: bool) -> tuple[int | None, Dataset[Batch]]:
        """Returns the dataset of the next stream, and the number of items after which it ends.

        With `confirms_end`, it requests one more item, without a timeout. A timeout alone does not show that the table
        has no item: the item may be on its way from a remote server.
        """
        if confirms_end:
            return 1, Dataset(self._store, self._table, 1, prefetch=1, max_items=1)
        max_in_flight = self._options.max_in_flight
        size = 1 if self._reads_single_items else self._options.block_size or _default_block_size(max_in_flight)
        limits = (self._items_left, self._options.items_per_stream)
        max_items = min((limit for limit in limits if limit is not None), default=None)
        return max_items, Dataset(
            self._store,
            self._table,
            size,
            at_least=None if self._options.exact_blocks else 1,
            prefetch=max(0, (max_in_flight - size) // size),  # besides the block that is in use
            max_items=max_items,
            timeout=self._options.timeout,
        )

    def _switch_back_to_blocks(self) -> bool:
        """Counts an item that fitted. After enough of them, lets the next stream read blocks, and returns True."""
        self._consecutive_fits = self._consecutive_fits + 1 if self._reads_single_items else 0
        if self._tracker is not None and self._tracker.removes_items:
            return False
        if self._consecutive_fits < _FITTING_ITEMS_BEFORE_BLOCKS or self._items_left == 0:
            return False
        self._consecutive_fits = 0
        self._reads_single_items = False
        return True

    def _has_waiting_samples(self) -> bool:
        """True if a sample waits at the table, which then has no item for it, or if the table was dropped."""
        info = self._store.info().get(self._table)
        return info is None or info.waiting_samples > 0

    def _convert(self, native: _engram.Batch) -> R:
        block = item_block(native)
        if any(column.dtype.hasobject for column in block.columns):
            block = block._replace(columns=[text_as_bytes(column) for column in block.columns])
        self._block_items = len(native)
        try:
            return self._make(block)
        except MismatchError:
            if not (self._reads_single_items or self._options.exact_blocks):
                self._mark_all_consumed()
            raise

    def _mark_all_consumed(self) -> None:
        """Counts all yielded items as consumed, because the next stream continues after them."""
        if self._tracker is not None:
            self._tracker.consume_all()

    def _pauses(self, error: Exception) -> Iterator[float]:
        """Yields the parts of a pause, in seconds, before the next attempt; it is longer after each failed one.

        Raises the error without `reconnect_forever`.
        """
        if not self._options.reconnect_forever:
            raise error
        if self._failed_streams == 0:
            _LOG.warning("sampling from table `%s` waits for its server: %s", self._table, error)
        end = time.monotonic() + min(1.0, 0.01 * 2**self._failed_streams)
        self._failed_streams += self._failed_streams < _MAX_DOUBLINGS
        while (left := end - time.monotonic()) > 0:
            yield min(left, self._options.poll_interval)


def _default_block_size(max_in_flight: int) -> int:
    """Returns `max_in_flight` up to `_MAX_IN_ONE_BLOCK`, otherwise about half of it.

    This is the largest divisor of `max_in_flight` up to the half, if it is at least a quarter of `max_in_flight`;
    otherwise the half, rounded down.
    """
    if max_in_flight <= _MAX_IN_ONE_BLOCK:
        return max_in_flight
    half = max_in_flight // 2
    divisor = next(size for size in range(half, 0, -1) if max_in_flight % size == 0)
    return divisor if 2 * divisor >= half else half
