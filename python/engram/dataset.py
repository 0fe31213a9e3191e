"""Datasets: a `for` loop over what a table yields, fetched ahead."""

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

LOOK = 0.5  # seconds that what is there, or on its way, may take to come

T = TypeVar("T", Batch, Sample)
R = TypeVar("R")


class _Reader:
    """What an iterator and a `Dataset.close` in another thread know of each other."""

    def __init__(self, stream: _engram.Stream) -> None:
        self._stream = stream
        self._lock = threading.RLock()  # never held while anything waits
        self._delivered = 0
        self._closed = False

    def deliver(self, items: int) -> bool:
        """Counts the newest batch as delivered; not once the reader is closed: then it goes back."""
        with self._lock:
            if not self._closed:
                self._delivered += items
            return not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._stream.close(self._delivered)


class Dataset(Generic[T]):
    """Batches from one table, prepared by a native thread while the last one is used.

    Each iterator has its own thread. What it fetches is on lease: it counts as sampled at once, and
    asking for the next batch says that the previous one was used. An iterator that ends, by `break`,
    `close` or an error, gives back what it did not deliver: counters are undone, and items of a
    queue regain their place.

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
        """Describes the batches; nothing is fetched before iteration begins.

        Args:
            store: Where the table is.
            table: Its name.
            batch_size: Items per batch, exactly; None iterates over single items (`Sample`).
            at_least: A batch of so many items, up to `batch_size`, will do where more would have to be waited for;
                None: batches are full.
            prefetch: Batches (or single items) kept ready.
            max_batches: Ends after so many; None: never.
            max_items: Ends after so many items, with a smaller batch where it does not come out even; None: never.
            timeout: Ends when the reader waited that many seconds in vain for a batch; None: never. What the table
                could give at once, or has given already, is waited for up to 0.5 s all the same: with 0, an iterator
                yields what can be had without waiting for an insert.
            pad: Fill shorter items up with zeros instead of returning ragged columns.

        Raises:
            InvalidArgumentError: `batch_size`, `prefetch`, `max_batches` or `max_items` is below 1, `at_least` is not
                1 to `batch_size`, or `timeout` is below 0.
        """
        _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
        self._store = store
        self._table = table
        self._batch_size = batch_size if batch_size is None else _size(batch_size)
        self._prefetch = _checks.integer("`prefetch`", prefetch)
        most = 1 if self._batch_size is None else self._batch_size
        self._at_least = at_least if at_least is None else _checks.integer("`at_least`", at_least, high=most)
        self._max_batches = max_batches if max_batches is None else _checks.integer("`max_batches`", max_batches)
        self._max_items = max_items if max_items is None else _checks.integer("`max_items`", max_items)
        self._timeout = _checks.seconds("`timeout`", timeout)
        self._pad = pad
        self._open: list[_Reader] = []
        self._times_closed = 0

    def __iter__(self) -> Iterator[T]:
        return cast("Iterator[T]", self._read(self._made))  # nothing is None without a glance

    def _made(self, native: _engram.Batch) -> Batch | Sample:
        return Sample(BatchInfo(native), native.data) if self._batch_size is None else Batch(native)

    def _read(
        self, make: Callable[[_engram.Batch], R], glance: float | None = None, tracker: ConsumptionTracker | None = None
    ) -> Generator[R | None]:
        """What `make` makes of each batch; a batch that it refuses was not delivered, and goes back.

        With `glance`, None comes wherever so many seconds brought nothing, so that who asks may stop to. With `tracker`,
        an item is on lease until that counts it as used, and only then; otherwise a batch is delivered as a whole.
        """
        times_closed = self._times_closed
        patience = _patience(self._timeout, glance)
        drawn = self._drawn()
        stream = self._store._native.stream(  # noqa: SLF001, the store's other half
            self._table,
            self._batch_size,
            self._at_least,
            self._prefetch,
            self._max_batches,
            self._max_items,
            patience,
            self._pad,
        )
        reader = _Reader(stream)
        self._open.append(reader)
        batches = items = 0
        before = 0 if tracker is None else tracker.fetched
        try:
            asked = time.monotonic()
            # Another thread may close while a stream is being opened, and not see it yet.
            while times_closed == self._times_closed:
                native = stream.next(items if tracker is None else tracker.on_request() - before)
                if native is None:
                    waited = time.monotonic() - asked
                    late = self._timeout is not None and waited >= self._timeout - _ROUNDING
                    is_over = batches == self._max_batches or items == self._max_items
                    if late and waited < LOOK and not is_over and self._is_to_come(drawn, items):
                        time.sleep(0.001)
                        continue
                    if glance is None or late or is_over:
                        break
                    yield None
                    continue
                made = make(native)
                number = len(native)
                if not reader.deliver(number):
                    return
                # Ctrl-C may strike after any call: until here the batch is on its way.
                batches += 1
                items += number
                if tracker is not None:
                    tracker.fetched += number
                yield made
                asked = time.monotonic()
            if tracker is not None:
                tracker.finish()
        except EngramError:
            if tracker is not None:
                tracker.finish()
            raise
        finally:
            with suppress(ForkedError):  # what it has fetched is the parent's
                stream.close(items if tracker is None else max(0, tracker.consumed - before))
            self._open.remove(reader)

    def _drawn(self) -> int | None:
        """Items drawn from the table so far, by anybody; None where it does not matter."""
        if self._timeout is None or self._timeout >= LOOK:
            return None
        info = self._store.info().get(self._table)
        return None if info is None else info.samples

    def _is_to_come(self, drawn: int | None, items: int) -> bool:
        """Whether another batch is on its way: of the items drawn after the first `drawn`, `items` have come.

        Where others read the table, too, it may be theirs. Who waits briefly is late only for what is not there.
        """
        if drawn is None:
            return False
        info = self._store.info().get(self._table)
        least = self._at_least or self._batch_size or 1
        least = least if self._max_items is None else min(least, self._max_items - items)
        # As long as this reader's thread does not wait for the table, it has something, or will see that there is.
        return info is not None and (info.waiting_samples == 0 or info.samples - drawn - items >= least)

    def close(self) -> None:
        """Ends all iterators; what they had not delivered goes back."""
        self._times_closed += 1
        for reader in list(self._open):  # iterators that end take themselves out
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ForkedError):  # the parent closes what it opened
            self.close()


_ROUNDING = 1e-3
"""Seconds that the parts of a timeout may lack together."""


def _patience(timeout: float | None, glance: float | None) -> float | None:
    """How long to wait at a time: a part of the timeout that is no longer than the glance."""
    if timeout is None or glance is None:
        return timeout if glance is None else glance
    return timeout / math.ceil(timeout / glance) if 0 < glance < timeout < math.inf else min(glance, timeout)


def _size(batch_size: int) -> int:
    return _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
