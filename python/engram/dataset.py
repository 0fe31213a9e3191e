"""Datasets: a `for` loop over what a table yields, fetched ahead."""

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, cast, overload

from engram import _checks, _engram
from engram.batch import Batch, BatchInfo, Sample
from engram.errors import ForkedError
from engram.store import Store

__all__ = ["Dataset"]

T = TypeVar("T", Batch, Sample)


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
        store: Store,
        table: str,
        batch_size: int,
        *,
        prefetch: int = 2,
        max_batches: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self: "Dataset[Sample]",
        store: Store,
        table: str,
        batch_size: None = None,
        *,
        prefetch: int = 2,
        max_batches: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> None: ...

    def __init__(
        self,
        store: Store,
        table: str,
        batch_size: int | None = None,
        *,
        prefetch: int = 2,
        max_batches: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> None:
        """Describes the batches; nothing is fetched before iteration begins.

        Args:
            store: Where the table is.
            table: Its name.
            batch_size: Items per batch, exactly; None iterates over single items (`Sample`).
            prefetch: Batches (or single items) kept ready.
            max_batches: Ends after so many; None: never.
            timeout: Ends when the reader waited that many seconds in vain; None: never.
            pad: Fill shorter items up with zeros instead of returning ragged columns.

        Raises:
            InvalidArgumentError: `batch_size`, `prefetch` or `max_batches` is below 1, or `timeout`
                below 0.
        """
        _checks.one_of("`store`", store, Store, "an engram.Store")
        self._store = store
        self._table = table
        self._batch_size = batch_size if batch_size is None else _size(batch_size)
        self._prefetch = _checks.integer("`prefetch`", prefetch)
        self._max_batches = max_batches if max_batches is None else _checks.integer("`max_batches`", max_batches)
        self._timeout = _checks.seconds("`timeout`", timeout)
        self._pad = pad
        self._open: list[_engram.Stream] = []

    def __iter__(self) -> Iterator[T]:
        stream = self._store._native.stream(  # noqa: SLF001, the store's other half
            self._table, self._batch_size, self._prefetch, self._max_batches, self._timeout, self._pad
        )
        self._open.append(stream)
        single = self._batch_size is None
        delivered = True
        try:
            while True:
                # Ctrl-C may strike after any call: between here and `yield` the batch is on its way.
                delivered = False
                native = stream.next()
                if native is None:
                    return
                batch = cast("T", Sample(BatchInfo(native), native.data) if single else Batch(native))
                delivered = True
                yield batch
        finally:
            with suppress(ForkedError):  # what it has fetched is the parent's
                stream.close(delivered)
            self._open.remove(stream)

    def close(self) -> None:
        """Ends all iterators; what they had not delivered goes back."""
        for stream in list(self._open):  # iterators that end take themselves out
            stream.close(delivered=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ForkedError):  # the parent closes what it opened
            self.close()


def _size(batch_size: int) -> int:
    return _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
