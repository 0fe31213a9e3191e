"""Look at a table without touching it: its first items in some order, and histograms of all items."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram.batch import Batch
from engram.errors import ClosedError, DeadlineExceededError, EngramError, UnavailableError
from engram.scan import checked_keys

__all__ = ["Histogram", "HistogramOf", "Peek", "PeekOrder", "PeekedItem"]

PeekOrder: TypeAlias = Literal["oldest", "newest", "highest_priority", "lowest_priority", "most_sampled"]
"""Which items a peek returns first."""

HistogramOf: TypeAlias = Literal["priority", "age", "times_sampled"]
"""What a histogram counts items by."""

MAX_ITEMS = 1024
"""Maximum number of items of a peek; a server has the same limit."""

MAX_BINS = 1024
"""Maximum number of bins of a histogram; a server has the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedItem:
    """An item as a peek returns it.

    Attributes:
        key: Key of the item.
        priority: Its priority.
        times_sampled: Number of times it has been sampled, including samples leased to readers.
        age: Number of items that were inserted into the table after it.
        bytes: Size of its data in bytes.
        chunk: Key of the chunk with its first steps. Items of one chunk come from the same writer.
        episode: Id of the episode that the steps of this chunk belong to. `None` if they belong to several.
        data: Nest of the item's data, with leaves `[T, ...]`, or `[...]` for columns without a time axis. `None` if the
            item has more than `max_bytes` bytes, or cannot be read.
        error: Why the data cannot be read; `None` if it can.
    """

    key: int
    priority: float
    times_sampled: int
    age: int
    bytes: int
    chunk: int
    episode: int | None
    data: Any = field(repr=False)
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """The items that `TableStore.peek` found.

    Attributes:
        items: The items, in order.
        num_compared: Number of items that were compared to find them.
        table_size: Number of items in the table.
    """

    items: list[PeekedItem]
    num_compared: int
    table_size: int

    @property
    def is_approximate(self) -> bool:
        """True if the table is so large that only items chosen at random were compared."""
        return self.num_compared < self.table_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many items of a table have which values: the result of `TableStore.histogram`.

    Attributes:
        counts: i64 `[N]`: number of items in each bin.
        edges: f64 `[N + 1]`: bin `i` is from `edges[i]` to `edges[i + 1]`, which only the last bin includes.
        below: Number of items with the value minus infinity.
        above: Number of items with the value infinity.
        table_size: Number of items in the table.
    """

    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]
    below: int
    above: int
    table_size: int

    @property
    def num_items(self) -> int:
        """Number of items that were counted."""
        return int(self.counts.sum()) + self.below + self.above

    @property
    def is_approximate(self) -> bool:
        """True if the table is so large that only items chosen at random were counted."""
        return self.num_items < self.table_size


def peek(  # noqa: PLR0917, the arguments of `TableStore.peek`
    native: _engram.Store,
    table: str,
    n: int | None,
    order: PeekOrder,
    keys: Iterable[int] | None,
    max_bytes: int | None,
) -> Peek:
    """Reads the first items of a table; see `TableStore.peek`."""
    n, wanted, max_bytes = checked_peek(table, n, order, keys, max_bytes)
    scan = native.peek(table, n, order, wanted, max_bytes)
    try:
        num_compared, table_size, found = scan.peeked
        items = []
        for key, priority, times_sampled, age, size, chunk, episode, has_data in found:
            data, error = _next_data(scan) if has_data else (None, None)
            item = PeekedItem(
                key=key,
                priority=priority,
                times_sampled=times_sampled,
                age=age,
                bytes=size,
                chunk=chunk,
                episode=episode,
                data=data,
                error=error,
            )
            items.append(item)
    finally:
        scan.close()
    return Peek(items=items, num_compared=num_compared, table_size=table_size)


def checked_peek(
    table: str, n: int | None, order: PeekOrder, keys: Iterable[int] | None, max_bytes: int | None
) -> tuple[int, npt.NDArray[np.uint64] | None, int | None]:
    """Checks the arguments of a peek; returns `n`, `keys` and `max_bytes`."""
    _checks.table_name("`table`", table)
    _checks.choice("`order`", order, ("oldest", "newest", "highest_priority", "lowest_priority", "most_sampled"))
    wanted = None if keys is None else checked_keys(keys, MAX_ITEMS)
    if n is None:
        n = 10 if wanted is None else MAX_ITEMS
    n = _checks.integer("`n`", n, high=MAX_ITEMS)
    if max_bytes is not None:
        max_bytes = _checks.integer("`max_bytes`", max_bytes, low=0)
    return n, wanted, max_bytes


def _next_data(scan: _engram.Scan) -> tuple[Any, str | None]:
    """Returns the data of the scan's next item, or None and why it cannot be read."""
    try:
        native = scan.next()
    except (ClosedError, DeadlineExceededError, UnavailableError):
        raise
    except EngramError as unreadable:
        return None, str(unreadable)
    return None if native is None else Batch(native).data, None


def histogram(native: _engram.Store, table: str, of: HistogramOf, bins: int) -> Histogram:
    """Counts the items of a table by a value; see `TableStore.histogram`."""
    _checks.table_name("`table`", table)
    _checks.choice("`of`", of, ("priority", "age", "times_sampled"))
    bins = _checks.integer("`bins`", bins, high=MAX_BINS)
    counts, edges, below, above, table_size = native.histogram(table, of, bins)
    return Histogram(
        counts=np.array(counts, np.int64),
        edges=np.array(edges, np.float64),
        below=below,
        above=above,
        table_size=table_size,
    )
