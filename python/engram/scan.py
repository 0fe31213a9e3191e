"""Scans: read the items of a table once, without sampling them."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram._closing_context import ClosedAtBlockEnd
from engram._item_arrays import key_array
from engram.batch import Batch, Sample
from engram.errors import InvalidArgumentError

__all__ = ["Order", "Scan"]

Order: TypeAlias = Literal["oldest_first", "newest_first"]
"""Order of the items of a scan."""

MAX_BATCH_SIZE = 65_536
"""Maximum number of items per batch; a server has the same limit."""

MAX_KEYS = 4_194_304
"""Maximum number of keys of a scan; a server has the same limit."""

T_co = TypeVar("T_co", Batch, Sample, covariant=True)


class Scan(ClosedAtBlockEnd, Generic[T_co]):
    """An iterator over the items of a table, as they were when the scan began: the result of `TableStore.scan`.

        for batch in store.scan("replay"):
            evaluate(batch.data)

    In `batch.info`, `priority`, `times_sampled` and `table_size` are those at the beginning of the scan, and
    `probability` is 1.

    The scan holds the memory of the items that it has not returned, even if they are removed from the table meanwhile,
    until it has ended, is closed or is garbage-collected. A client requests two batches ahead.

    After `close` of the store or `drop_table`, the iterator raises `ClosedError`. A scan of a client ends with
    `UnavailableError` if the connection to the server is lost, and with `DeadlineExceededError` if nothing was read
    from it for the server's `lease_timeout` (600 s by default): then begin a new scan. In a forked child process, the
    iterator raises `ForkedError`. If items of a batch cannot be read because their stored bytes are
    corrupt, `next` raises an `EngramError` that names them, and the following `next` continues with the other items.
    """

    def __init__(
        self,
        native: _engram.Store,
        table: str,
        batch_size: int | None,
        order: Order,
        keys: Iterable[int] | None,
        *,
        pad: bool,
    ) -> None:
        """Begins a scan of the store `native`; use `TableStore.scan`, which has the other arguments."""
        _checks.table_name("`table`", table)
        if batch_size is not None:
            batch_size = _checks.integer("`batch_size`", batch_size, high=MAX_BATCH_SIZE)
        _checks.choice("`order`", order, ("oldest_first", "newest_first"))
        _checks.boolean("`pad`", pad)
        only_keys = None if keys is None else checked_keys(keys, MAX_KEYS)
        self._native: _engram.Scan = native.scan(table, batch_size, order == "newest_first", only_keys, bool(pad))
        self._single = batch_size is None
        self._table = table

    @property
    def num_items(self) -> int:
        """Number of items that the scan reads in total, for example for a progress display."""
        return self._native.num_items

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        native = self._native.next()
        if native is None:
            raise StopIteration
        batch: Any = Batch(native)
        return cast("T_co", Sample(batch.info, batch.data) if self._single else batch)

    def close(self) -> None:
        """Ends the scan and releases its memory. Can be called more than once, from any thread and in signal handlers.

        If `next` waits in another thread, the iteration ends there. If `next` is copying a batch, it still returns this
        batch, and the memory is released afterwards.
        """
        self._native.close()

    def __repr__(self) -> str:
        return f"Scan({self._table!r}, {self.num_items} items)"


def checked_keys(keys: Iterable[int], max_keys: int) -> npt.NDArray[np.uint64]:
    """Returns the keys of items to read as u64 `[B]`."""
    array = key_array(keys if isinstance(keys, np.ndarray) else _checks.elements("`keys`", keys, "a sequence of keys"))
    if len(array) > max_keys:
        raise InvalidArgumentError(
            f"`keys` must have at most {max_keys} keys; got {len(array)}; read them in several calls"
        )
    return array
