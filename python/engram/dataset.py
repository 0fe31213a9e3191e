"""Datasets: iterate over a table's items in batches that are fetched ahead."""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, cast, overload

from engram import _checks, _engram
from engram._consumption import ConsumptionTracker
from engram.batch import Batch, BatchInfo, Sample
from engram.errors import EngramError, ForkedError
from engram.store import TableStore

__all__ = ["Dataset"]

GRACE_PERIOD = 0.5
"""Seconds that a shorter timeout is extended by at most, for items that are available or in flight."""

_ROUNDING = 1e-3
"""Seconds by which the partial waits of a timeout may fall short of it in total."""

T = TypeVar("T", Batch, Sample)
R = TypeVar("R")


class _StreamReader:
    """State that an iterator shares with `Dataset.close` in another thread."""

    def __init__(self, stream: _engram.Stream) -> None:
        self._stream = stream
        self._lock = threading.RLock()  # never held during a wait
        self._delivered = 0
        self._closed = False

    def deliver(self, items: int) -> bool:
        """Counts the newest batch as delivered. False after `close`: then the batch returns to the table."""
        with self._lock:
            if not self._closed:
                self._delivered += items
            return not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._stream.close(self._delivered)


class Dataset(Generic[T]):
    """Batches from one table, which a native thread fetches ahead.

    Each iterator has its own thread. Fetched items are leased: they count as sampled at once, and requesting the next
    batch acknowledges the previous one. An iterator that ends, by `break`, `close` or an error, returns the items that
    it did not deliver: the table's counters are reverted, and items of a queue regain their place.

        for batch in Dataset(store, "replay", batch_size=256):
            learn(batch)
    """

    @overload
    def __init__(
        self: "Dataset[Batch]",
        store: TableStore,
        table: str,
        batch_size: int,
        *,
        at_least: int | None = None,
        prefetch: int = 2,
        max_batches: int | None = None,
        max_items: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self: "Dataset[Sample]",
        store: TableStore,
        table: str,
        batch_size: None = None,
        *,
        at_least: int | None = None,
        prefetch: int = 2,
        max_batches: int | None = None,
        max_items: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> None: ...

    def __init__(
        self,
        store: TableStore,
        table: str,
        batch_size: int | None = None,
        *,
        at_least: int | None = None,
        prefetch: int = 2,
        max_batches: int | None = None,
        max_items: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> None:
        """Configures the batches. Fetching starts with iteration.

        Args:
            store: Store or client that has the table.
            table: Name of the table.
            batch_size: Number of items per batch. Default: iterate over single items (`Sample`).
            at_least: Minimum number of items per batch. If at least this many are available, yield them instead of
                waiting for `batch_size`. Default: `batch_size`.
            prefetch: Number of batches (or single items) to fetch ahead.
            max_batches: Number of batches after which the iteration ends. `None` means unlimited.
            max_items: Number of items after which the iteration ends, if necessary with a smaller batch. `None` means
                unlimited.
            timeout: Seconds to wait for a batch before the iteration ends. `None` waits forever. Items that are
                available or in flight are waited for up to 0.5 s even so: with 0, the iteration yields what is
                available without waiting for an insert.
            pad: Pad shorter items with zeros instead of yielding ragged columns.

        Raises:
            InvalidArgumentError: An argument is invalid. For example, `at_least` is not from 1 to `batch_size`.
        """
        _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
        _checks.table_name("`table`", table)
        _checks.boolean("`pad`", pad)
        self._store = store
        self._table = table
        self._batch_size = batch_size if batch_size is None else _checked_size(batch_size)
        self._prefetch = _checks.integer("`prefetch`", prefetch)
        self._at_least = at_least
        if at_least is not None:
            self._at_least = _checks.minimum_size(at_least, "`batch_size`", self._batch_size or 1)
        self._max_batches = max_batches if max_batches is None else _checks.integer("`max_batches`", max_batches)
        self._max_items = max_items if max_items is None else _checks.integer("`max_items`", max_items)
        self._timeout = _checks.seconds("`timeout`", timeout)
        self._pad = pad
        self._open_readers: list[_StreamReader] = []
        self._times_closed = 0

    def __iter__(self) -> Iterator[T]:
        return cast("Iterator[T]", self._read(self._element))  # without `poll_interval` it never yields None

    def _element(self, native: _engram.Batch) -> Batch | Sample:
        return Sample(BatchInfo(native), native.data) if self._batch_size is None else Batch(native)

    def _read(
        self,
        convert: Callable[[_engram.Batch], R],
        poll_interval: float | None = None,
        tracker: ConsumptionTracker | None = None,
    ) -> Generator[R | None]:
        """Yields each batch as `convert` returns it. A batch for which `convert` raises returns to the table.

        With `poll_interval`, yields None whenever this many seconds pass without a batch, so that the caller can stop.
        With `tracker`, an item stays leased until the tracker counts it as consumed; otherwise a batch is delivered as
        a whole.
        """
        times_closed = self._times_closed
        drawn = self._num_drawn()
        stream = self._store._native.stream(  # noqa: SLF001, the store's native half
            self._table,
            self._batch_size,
            self._at_least,
            self._prefetch,
            self._max_batches,
            self._max_items,
            _partial_wait(self._timeout, poll_interval),
            self._pad,
        )
        reader = _StreamReader(stream)
        self._open_readers.append(reader)
        batches = items = 0
        fetched_before = 0 if tracker is None else tracker.fetched
        try:
            requested = time.monotonic()
            # `close` in another thread misses a stream that is just being opened.
            while times_closed == self._times_closed:
                native = stream.next(items if tracker is None else tracker.on_request() - fetched_before)
                if native is None:
                    waited = time.monotonic() - requested
                    late = self._timeout is not None and waited >= self._timeout - _ROUNDING
                    is_over = batches == self._max_batches or items == self._max_items
                    if late and waited < GRACE_PERIOD and not is_over and self._is_expected(drawn, items):
                        time.sleep(0.001)
                        continue
                    if poll_interval is None or late or is_over:
                        break
                    yield None
                    continue
                element = convert(native)
                number = len(native)
                if not reader.deliver(number):
                    return
                # Ctrl-C can strike after any call; until here it leaves the batch undelivered.
                batches += 1
                items += number
                if tracker is not None:
                    tracker.fetched += number
                yield element
                requested = time.monotonic()
            if tracker is not None:
                tracker.finish()
        except EngramError:
            if tracker is not None:
                tracker.finish()
            raise
        finally:
            with suppress(ForkedError):  # in a forked child, the items belong to the parent
                stream.close(items if tracker is None else max(0, tracker.consumed - fetched_before))
            self._open_readers.remove(reader)

    def _num_drawn(self) -> int | None:
        """Number of samples drawn from the table so far, by all readers; None if `_is_expected` is not used."""
        if self._timeout is None or self._timeout >= GRACE_PERIOD:
            return None
        info = self._store.info().get(self._table)
        return None if info is None else info.samples

    def _is_expected(self, drawn: int | None, items: int) -> bool:
        """Whether another batch is available or in flight.

        Compares the samples drawn since `drawn` with the `items` received. Samples of other readers count as well; if
        there are any, the iteration ends after the grace period.
        """
        if drawn is None:
            return False
        info = self._store.info().get(self._table)
        required = self._at_least or self._batch_size or 1
        required = required if self._max_items is None else min(required, self._max_items - items)
        # While this reader's thread does not wait for the table, it has items or is about to draw them.
        return info is not None and (info.waiting_samples == 0 or info.samples - drawn - items >= required)

    def close(self) -> None:
        """Ends all iterators. The items that they did not deliver return to the table."""
        self._times_closed += 1
        for reader in list(self._open_readers):  # a copy: iterators that end remove themselves
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ForkedError):  # in a forked child, the parent closes the iterators
            self.close()


def _partial_wait(timeout: float | None, poll_interval: float | None) -> float | None:
    """Seconds of one wait: `timeout` divided into equal waits of at most `poll_interval`."""
    if timeout is None or poll_interval is None:
        return timeout if poll_interval is None else poll_interval
    if 0 < poll_interval < timeout < math.inf:
        return timeout / math.ceil(timeout / poll_interval)
    return min(poll_interval, timeout)


def _checked_size(batch_size: int) -> int:
    return _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
