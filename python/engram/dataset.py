"""Datasets: iterate over a table's items in batches that are fetched ahead."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, cast, overload

from engram import _checks, _engram
from engram.batch import Batch, BatchInfo, Sample
from engram.consumption import ConsumptionTracker
from engram.errors import DeadlineExceededError, EngramError, ForkedError, UnavailableError
from engram.info import TableInfo
from engram.store import Store
from engram.table_store import TableStore

__all__ = ["Dataset"]

GRACE_PERIOD = 0.5
"""Seconds that an iteration waits while items are available or in flight, even if its timeout is shorter."""

OPEN_GRACE = 0.8
"""Seconds that a server has to reply when an iteration starts, in addition to the timeout, or before it ends at it."""

_CLOSE_TIMEOUT = 2.0
"""Maximum seconds that closing waits for a server to confirm it."""

_LATE_CLOSE_TIMEOUT = 0.4
"""Maximum seconds that closing waits for a server to confirm it, if the iteration ends because of its timeout."""

_UNLIMITED: float | None = None
"""No limit for the wait until acknowledgements are durable; it still ends if the server becomes unreachable."""

_ROUNDING = 1e-3
"""Seconds by which the sum of several short waits may fall short of the timeout that they add up to."""

T = TypeVar("T", Batch, Sample)
R = TypeVar("R")


class Dataset(Generic[T]):
    """Batches from one table, which a native thread fetches ahead.

    Each iterator has its own thread. Fetched items are leased: the rate limiter counts them as sampled at once. They
    are acknowledged when the iterator yields them. With `hold`, and for remote tables without `max_times_sampled`, they
    are acknowledged when the next batch is requested. An iterator that ends, by `break`, `close` or an error, returns
    the items that it did not yield: the table's counters are reverted, and items of a queue regain their place.

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
        hold: bool = False,
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
        hold: bool = False,
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
        hold: bool = False,
    ) -> None:
        """Configures the batches. Fetching starts with iteration.

        Args:
            store: Store or client that has the table.
            table: Name of the table.
            batch_size: Number of items per batch. Default: iterate over single items (`Sample`).
            at_least: Minimum number of items per batch. If at least this many are available, yield them instead of
                waiting for `batch_size`. Default: `batch_size`.
            prefetch: Number of batches (or single items) to fetch ahead. With 0, a batch is sampled when it is
                requested.
            max_batches: Number of batches after which the iteration ends. `None` means unlimited.
            max_items: Number of items after which the iteration ends, if necessary with a smaller batch. `None` means
                unlimited.
            timeout: Seconds to wait for a batch before the iteration ends; `info()[table].blocked` then states why
                there was none. `None` waits forever; but a wait for a `Store` in the only thread of a process, where
                nothing can be inserted meanwhile, raises `UnsatisfiableError` after 5 s. Less than 0.5 s becomes 0.5 s
                while items are available or in flight: with 0, the iteration yields what is available without waiting
                for an insert. A server that cannot be reached raises `UnavailableError`. One that does not reply in
                time, also to the question whether it is still there before the iteration ends, raises
                `DeadlineExceededError`, and so does a server that does not confirm the last items.
            pad: Pad shorter items with zeros instead of yielding ragged columns.
            hold: Acknowledge a batch when the next one is requested or the iterator is closed, instead of when it is
                yielded: if the reader's process dies, the items return to the table. They also return if a batch from a
                server is held for longer than its `lease_timeout`: the items are handed out again, although their
                reader still runs. Held items of a queue keep their place in it, so a loop that inserts into a full
                queue while it uses a batch waits for itself.

        Raises:
            InvalidArgumentError: An argument is invalid. For example, `at_least` is not from 1 to `batch_size`.
        """
        _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
        _checks.table_name("`table`", table)
        _checks.boolean("`pad`", pad)
        _checks.boolean("`hold`", hold)
        self._store = store
        self._table = table
        self._batch_size = batch_size if batch_size is None else _checked_size(batch_size)
        self._prefetch = _checks.integer("`prefetch`", prefetch, low=0)
        self._at_least = at_least
        if at_least is not None:
            self._at_least = _checks.at_least(at_least, "`batch_size`", self._batch_size or 1)
        self._max_batches = max_batches if max_batches is None else _checks.integer("`max_batches`", max_batches)
        self._max_items = max_items if max_items is None else _checks.integer("`max_items`", max_items)
        self._timeout = _checks.seconds("`timeout`", timeout)
        self._pad = pad
        self._hold = hold
        self._open_streams: list[_engram.Stream] = []
        self._times_closed = 0

    def __repr__(self) -> str:
        names = ("batch_size", "at_least", "prefetch", "max_batches", "max_items", "timeout", "pad", "hold")
        options = {name: getattr(self, f"_{name}") for name in names}
        given = (f"{name}={value!r}" for name, value in options.items() if value is not None and value is not False)
        return f"Dataset({self._store!r}, {self._table!r}, {', '.join(given)})"

    def __iter__(self) -> Iterator[T]:
        return cast("Iterator[T]", self.read(self._element))  # without `poll_interval` it never yields None

    def _element(self, native: _engram.Batch) -> Batch | Sample:
        return Sample(BatchInfo(native), native.data) if self._batch_size is None else Batch(native)

    def read(  # noqa: C901, PLR0912, PLR0915, the statements around a delivery belong together
        self,
        convert: Callable[[_engram.Batch], R],
        poll_interval: float | None = None,
        tracker: ConsumptionTracker | None = None,
    ) -> Generator[R | None]:
        """Yields each batch as a function returns it: what the datasets of `engram.data` are made of.

            tracker = ConsumptionTracker()
            for block in Dataset(store, "replay", 64, at_least=1).read(item_block, tracker=tracker):
                tracker.add_items([1] * block.size)
                for row in zip(*block.columns):
                    tracker.consumed = tracker.count_pieces(1)
                    learn(row)

        Args:
            convert: Receives the engine's batch: `engram.Batch` makes a batch of it, `engram.data.item_block` columns.
                If it raises, the items return to the table.
            poll_interval: Seconds without a batch after which None is yielded, so that the caller can stop; with 0,
                whenever no batch is ready. Default: None, never.
            tracker: Counts the items that are consumed; the others stay leased, and return to the table when the
                generator is closed. Default: None, a batch is acknowledged as a whole when it is yielded.

        Yields:
            What `convert` returns, and None every `poll_interval`. Errors are those of an iterator of the dataset.
        """
        times_closed = self._times_closed
        stream, drawn = self._open(poll_interval)
        batches = items = 0
        is_raising = is_late = False
        close_timeout, durability_timeout = _CLOSE_TIMEOUT, _UNLIMITED
        try:
            self._open_streams.append(stream)
            if tracker is not None:
                tracker.begin(stream)
            requested = time.monotonic()
            # `close` in another thread misses a stream that is just being opened.
            while times_closed == self._times_closed:
                if tracker is not None:
                    tracker.on_request()
                native = stream.next()
                if native is None:  # no batch arrived within `_partial_wait`, or the stream has ended
                    waited = time.monotonic() - requested
                    is_complete = batches == self._max_batches or items == self._max_items
                    is_late = not is_complete and self._timeout is not None and waited >= self._timeout - _ROUNDING
                    grace_left = GRACE_PERIOD - waited
                    if is_late and grace_left > 0 and self._is_expected(drawn, items, grace_left):
                        time.sleep(0.001)
                        continue
                    if poll_interval is None or is_late or is_complete:
                        if is_late:
                            self._check_connection()
                            close_timeout, durability_timeout = self._late_close_timeouts()
                        break
                    yield None
                    continue
                element = convert(native)
                number = len(native)
                # Ctrl-C can strike after any call; the statements below make none.
                batches += 1
                items += number
                if tracker is None:
                    stream.delivered = items  # acknowledges the batch
                    if stream.delivered != items:  # closed by another thread, which returned the batch
                        return
                else:
                    tracker.fetched += number
                yield element
                requested = time.monotonic()
            if tracker is not None:
                tracker.finish()
        except GeneratorExit:
            raise
        except BaseException as error:
            is_raising = True
            close_timeout, durability_timeout = _close_timeouts(error)
            if tracker is not None and isinstance(error, EngramError):
                tracker.finish()
            raise
        finally:
            is_closed = times_closed != self._times_closed  # the call of `close` waits, and raises errors
            if is_closed:
                durability_timeout = 0.0
            try:
                # In a forked child, the items belong to the parent. A second error would replace the first.
                with suppress(EngramError if is_raising or is_closed else ForkedError):
                    if tracker is not None:
                        tracker.end()
                    if not stream.close(close_timeout, durability_timeout):
                        raise DeadlineExceededError(
                            f"table `{self._table}`: the server did not confirm in time that the sampled items are "
                            "acknowledged; if it crashes now, these items may be sampled once "
                            "more than `max_times_sampled` allows"
                        )
            finally:
                if stream in self._open_streams:  # False if Ctrl-C struck before it was added
                    self._open_streams.remove(stream)
        if is_late and not is_closed:
            self._check_server()

    def _check_connection(self) -> None:
        """Raises an error if no batch arrived in time because the server cannot be reached."""
        failure = self._store._native.connect_failure()  # noqa: SLF001, the store's native object
        if failure is not None:
            raise UnavailableError(self._no_batch(failure))

    def _check_server(self) -> None:
        """Raises an error if no batch arrived in time because the server, or that of a shard, does not reply."""
        if isinstance(self._store, Store):
            return
        try:
            table_info(self._store, self._table, OPEN_GRACE)
        except (DeadlineExceededError, UnavailableError) as error:
            raise type(error)(self._no_batch(str(error))) from None

    def _no_batch(self, reason: str) -> str:
        return f"table `{self._table}`: no batch within {self._timeout:g} s (`timeout`): {reason}"

    def _late_close_timeouts(self) -> tuple[float, float | None]:
        """Seconds to wait for the server and for durability when closing after the iteration's timeout has passed."""
        # A store in this process has no replies that can be lost, only a disk that can be slow.
        return _LATE_CLOSE_TIMEOUT, _UNLIMITED if isinstance(self._store, Store) else _LATE_CLOSE_TIMEOUT

    def _open(self, poll_interval: float | None) -> tuple[_engram.Stream, int | None]:
        """Opens a stream; returns it, and `_num_drawn` from before it was opened."""
        started = time.monotonic()
        drawn = self._num_drawn()
        open_timeout = None
        if self._timeout is not None:
            # Rounded, because the text of the error states it.
            open_timeout = max(0.0, self._timeout + OPEN_GRACE - round(time.monotonic() - started, 1))
        stream = self._store._native.stream(  # noqa: SLF001, the store's native object
            self._table,
            {
                "batch_size": self._batch_size,
                "at_least": self._at_least,
                "prefetch": self._prefetch,
                "max_batches": self._max_batches,
                "max_items": self._max_items,
                "open_timeout": open_timeout,
                "timeout": _partial_wait(self._timeout, poll_interval),
                "pad": self._pad,
                "hold": self._hold,
            },
        )
        return stream, drawn

    def _num_drawn(self) -> int | None:
        """Number of samples drawn from the table, by all readers; None without a table or without a grace period."""
        if self._timeout is None or self._timeout >= GRACE_PERIOD:
            return None
        info = table_info(self._store, self._table, self._timeout + OPEN_GRACE)
        return None if info is None else info.samples

    def _is_expected(self, drawn: int | None, items: int, timeout: float) -> bool:
        """True if another batch is available or in flight; False if a server does not reply within `timeout` seconds.

        Also False if `drawn` is None: then there is no grace period. Compares the samples drawn since `drawn` with the
        `items` received. Samples of other readers count as well: if there are any, the result may be True without
        reason, and the iteration then waits for the whole grace period.
        """
        if drawn is None:
            return False
        try:
            info = table_info(self._store, self._table, timeout)
        except DeadlineExceededError:
            return False
        required = self._at_least or self._batch_size or 1
        required = required if self._max_items is None else min(required, self._max_items - items)
        # While this reader's thread does not wait for the table, it has items or is about to draw them.
        return info is not None and (info.waiting_samples == 0 or info.samples - drawn - items >= required)

    def close(self) -> None:
        """Ends all iterators. The items that they did not yield return to the table.

        If the store is durable and sampling removes items, the removal of the items that were yielded is as durable as
        the store promises when this call or the iteration ends.
        """
        self._close(_CLOSE_TIMEOUT, _UNLIMITED)

    def _close(self, timeout: float, durability_timeout: float | None) -> None:
        """Closes all streams, even if some fail; then raises the first error.

        Args:
            timeout: Seconds to wait for servers, in total.
            durability_timeout: Seconds to wait per stream until acknowledgements are durable; None waits forever.
        """
        self._times_closed += 1
        deadline = time.monotonic() + timeout
        streams = list(self._open_streams)  # a copy: iterators that end remove themselves
        errors: list[EngramError] = []

        def try_each(call: Callable[[_engram.Stream], object]) -> None:
            for stream in streams:
                try:
                    call(stream)
                except EngramError as error:
                    errors.append(error)

        # Nothing waits before all readers in other threads are woken and all acknowledgements are sent.
        try_each(lambda stream: stream.stop())
        try_each(lambda stream: stream.close(0.0, 0.0))
        try_each(lambda stream: stream.close(max(0.0, deadline - time.monotonic()), durability_timeout))
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            with suppress(ForkedError):  # in a forked child, the parent closes the iterators
                self.close()
        else:
            with suppress(EngramError):  # it would replace `error`
                self._close(*_close_timeouts(error))


def _close_timeouts(error: BaseException) -> tuple[float, float]:
    """Seconds to wait for the server, and for durability, when closing a stream because `error` was raised."""
    if isinstance(error, UnavailableError):
        return 0.0, 0.0
    # After Ctrl-C, wait only until the server has the returned items, which the next reader expects in the table.
    return _CLOSE_TIMEOUT, _CLOSE_TIMEOUT if isinstance(error, Exception) else 0.0


def table_info(store: TableStore, table: str, timeout: float | None) -> TableInfo | None:
    """Returns the state of a table; None if it does not exist. Waits `timeout` seconds for a server; None: no limit."""
    infos = store._native.info(timeout)  # noqa: SLF001, the store's native object
    return next((TableInfo.from_native(info) for info in infos if info["name"] == table), None)


def has_waiting_insert(store: TableStore, table: str, timeout: float | None = None) -> bool:
    """True if an insert waits, possibly for the space of items that a reader holds.

    False if a server does not reply within `timeout` seconds; None: no limit.
    """
    try:
        info = table_info(store, table, timeout)
    except DeadlineExceededError:
        return False
    return info is not None and info.waiting_inserts > 0


def _partial_wait(timeout: float | None, poll_interval: float | None) -> float | None:
    """Seconds of one wait of the stream: `timeout` divided into equal waits of at most `poll_interval`.

    If `timeout` or `poll_interval` is None, returns the other. If both are, returns None: the stream waits forever.
    """
    if timeout is None or poll_interval is None:
        return timeout if poll_interval is None else poll_interval
    if 0 < poll_interval < timeout < math.inf:
        return timeout / math.ceil(timeout / poll_interval)
    return min(poll_interval, timeout)


def _checked_size(batch_size: int) -> int:
    return _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
