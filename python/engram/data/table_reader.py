"""Reads a table's items or steps, singly or in batches, as elements of any framework."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, Self, TypeVar, cast

from engram import _checks, _engram
from engram.batch import Batch
from engram.consumption import ConsumptionTracker
from engram.data import column_block
from engram.data.column_block import BatchBuffer, ColumnBlock, ColumnConverter
from engram.data.elements import Element, Options
from engram.dataset import OPEN_GRACE, Dataset, has_waiting_insert, table_info
from engram.errors import EngramError, InvalidArgumentError, SignatureError
from engram.info import TableInfo
from engram.table_store import TableStore

__all__ = ["TableReader"]

BLOCK_BYTES = 4 * 2**20
"""Target size of a block, uncompressed."""

MAX_BLOCK_ITEMS = 64
"""Maximum number of items of a block if there is no `batch_size`."""

FIRST_BLOCK_ITEMS = 16
"""Maximum number of items of the first block, before the size of any item is known."""

INSERT_CHECK_INTERVAL = 0.2
"""Seconds without data after which the reader checks whether an insert waits for space that the reader's
unconsumed items occupy."""

BLOCK_WEIGHT_DECAY = 0.875
"""Factor by which each new block reduces the weight of all earlier blocks in the size estimates."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads a table with the options of a dataset; each iterator fetches ahead, on lease, as `engram.Dataset` does."""

    store: TableStore
    table: str
    batch_size: int | None = None
    steps: bool = False
    drop_remainder: bool = False
    pad: bool = False
    prefetch: int = 2
    max_batches: int | None = None
    timeout: float | None = None

    @classmethod
    def of(cls, store: TableStore, table: str, options: Options) -> Self:
        """Creates a reader from a caller's arguments.

        Raises:
            InvalidArgumentError: An argument has a type or value that `Options` does not allow.
            TypeError: An option is unknown.
        """
        allowed = sorted(Options.__optional_keys__)
        for name in options:
            if name not in allowed:
                listed = ", ".join(f"`{each}`" for each in allowed)
                raise TypeError(f"dataset() has no option `{name}`; the options that all datasets share are {listed}")
        return cls(store, table, **options)

    def __post_init__(self) -> None:
        _checks.instance_of("`store`", self.store, TableStore, "an engram.Store or an engram.Client")
        _checks.table_name("`table`", self.table)
        for name in ("steps", "drop_remainder", "pad"):
            _checks.boolean(f"`{name}`", getattr(self, name))
        for name, high in (
            ("batch_size", _checks.MAX_BATCH),
            ("prefetch", _checks.MAX_I64),
            ("max_batches", _checks.MAX_I64),
        ):
            value = getattr(self, name)
            if value is not None or name == "prefetch":
                object.__setattr__(self, name, _checks.integer(f"`{name}`", value, high=high))
        object.__setattr__(self, "timeout", _checks.seconds("`timeout`", self.timeout))
        if self.pad and self.steps:
            raise InvalidArgumentError(
                "`pad` pads whole items and cannot be combined with `steps`; leave one of them out"
            )
        if self.pad and self.batch_size is None:
            raise InvalidArgumentError(
                "`pad` fills items up to the longest one of their batch; give a `batch_size`, too"
            )

    def __iter__(self) -> Iterator[Element]:
        return self.elements(column_block.numpy_leaves)

    def elements(self, convert: ColumnConverter) -> Generator[Element]:
        """Yields elements with leaves from `convert`; if it raises, the items are returned to the table."""
        # Without a poll interval, no element is None.
        return cast("Generator[Element]", self.read(partial(column_block.to_element, convert)))

    def read(self, make: Callable[[ColumnBlock], R], poll_interval: float | None = None) -> Generator[R | None]:
        """Yields `make(block)` for each element's block; yields None after `poll_interval` seconds without data."""
        if self.steps or self.batch_size is None:
            return self._split(_BlockSplitter(self, make), poll_interval)
        dataset = self._dataset(self.batch_size, max_batches=self.max_batches, pad=self.pad)
        return dataset.read(lambda native: make(column_block.item_block(native)), poll_interval)

    def read_together(
        self,
        make: Callable[[ColumnBlock], R],
        make_together: Callable[[ColumnBlock], R],
        batches_per_call: int,
        poll_interval: float | None = None,
    ) -> tuple[ConsumptionTracker, Generator[R | None]]:
        """Reads several elements at once; for tables without `max_times_sampled`.

        The reader's `max_batches` must be None, unless elements are batches of items.

        Args:
            make: Receives the block of one element, if several cannot be made together because they differ in length.
            make_together: Receives a block with the items or steps of several elements, one element after the other, or
                of none. If elements are batches of items, the block may have ragged columns, because its items differ
                in length: then `make_together` must raise.
            batches_per_call: Number of batches per call of `make_together`: the maximum if they consist of items, an
                approximate number if they consist of steps. Without `batch_size`, each call receives one block.
            poll_interval: Seconds without data after which None is yielded. Default: never.

        Returns:
            The tracker that counts the items or steps read, whose `consumed` the caller sets; and a generator of what
            `make` and `make_together` return.
        """
        if self.steps or self.batch_size is None:
            splitter = _BlockSplitter(self, make, make_together, batches_per_call)
            return splitter.tracker, self._split(splitter, poll_interval)
        batch_size, buffer = self.batch_size, BatchBuffer(self.batch_size)
        # False: at the end, items of a batch that was never filled do not count as consumed.
        tracker = ConsumptionTracker(lambda: False)

        def convert(native: _engram.Batch) -> R:
            block = column_block.item_block(native)
            if any(split is not None for split in block.splits):
                return make_together(block)
            result = make_together(buffer.rows_of_full_batches(block))
            buffer.add(block)
            tracker.add_items([1] * len(native))
            return result

        max_items = None if self.max_batches is None else min(self.max_batches * batch_size, _checks.MAX_I64)
        dataset = self._dataset(batch_size * batches_per_call, prefetch=1, at_least=batch_size, max_items=max_items)
        return tracker, dataset.read(convert, poll_interval, tracker)

    @property
    def keeps_items(self) -> bool:
        """True if the table exists and has no `max_times_sampled`: sampling does not remove items."""
        info = self._first_info()
        return info is not None and info.max_times_sampled is None

    def _first_info(self) -> TableInfo | None:
        """The table's state before the first element, if the table exists."""
        timeout = None if self.timeout is None else self.timeout + OPEN_GRACE
        return table_info(self.store, self.table, timeout)

    def _dataset(self, batch_size: int, **options: Any) -> Dataset[Batch]:  # noqa: ANN401, of `Dataset`
        return Dataset(
            self.store, self.table, batch_size, **{"prefetch": self.prefetch, "timeout": self.timeout, **options}
        )

    def _split(self, splitter: "_BlockSplitter[R]", poll_interval: float | None) -> Generator[R | None]:
        """Reads steps or single items, in blocks whose size adapts to the items read so far; see `read`."""
        block_size = splitter.start(self._first_info())
        left = self.max_batches
        raised: EngramError | None = None
        try:
            while left != 0 and not splitter.has_ended:
                elements_of_blocks = self._read_blocks(splitter, block_size, left, poll_interval)
                try:
                    with closing(elements_of_blocks) as elements:
                        for element in elements:
                            yield element
                            if element is not None and left is not None:
                                left -= 1
                except SignatureError:
                    # Items that differ too much for one block can still be read singly, unless they must fill batches.
                    if block_size.is_single or self.batch_size is not None:
                        raise
                    block_size.is_single = True
        except EngramError as error:
            raised = error  # only after the elements that were read before it
        if left != 0:
            yield from splitter.last
        if raised is not None:
            raise raised

    def _read_blocks(
        self, splitter: "_BlockSplitter[R]", block_size: "_BlockSize", left: int | None, poll_interval: float | None
    ) -> Generator[R | None]:
        """Yields up to `left` elements of blocks of one size, until another size fits better or the data ends.

        Counts them as consumed, unless the splitter makes several at once: the caller of `read_together` then counts.

        `left` None means no limit. Yields None after `poll_interval` seconds without data, unless that is None.
        """
        # A guessed size is used for one block only: its items then give an estimate.
        size, is_estimated = block_size.items(), block_size.is_estimated
        # Every item has at least one step, so no more items are needed.
        max_items = None if left is None else min(left * (self.batch_size or 1), _checks.MAX_I64)
        dataset = self._dataset(
            size,
            at_least=1,
            prefetch=splitter.prefetched_blocks(self.prefetch),
            max_items=max_items,
            max_batches=None if is_estimated else 1,
        )
        tracker, pieces_per_element = splitter.tracker, self.batch_size or 1
        interval = (
            INSERT_CHECK_INTERVAL if poll_interval is None and self.steps and pieces_per_element > 1 else poll_interval
        )
        with closing(dataset.read(splitter.split, interval, tracker)) as reads:
            requested = time.monotonic()
            for elements in reads:
                if elements is None:
                    wait = None if self.timeout is None else max(0.0, requested + self.timeout - time.monotonic())
                    if tracker.is_holding and has_waiting_insert(self.store, self.table, wait):
                        tracker.stop_holding()
                    if poll_interval is not None:
                        yield None
                    continue
                for element in islice(elements, left):
                    if splitter.makes_several:
                        yield element
                        continue
                    consumed = tracker.count_pieces(pieces_per_element)
                    # Ctrl-C can strike in any call, so none is between this assignment and the `yield`.
                    if tracker.removes_items:
                        tracker.delivered = consumed
                    else:
                        tracker.consumed = consumed
                    yield element
                    left = None if left is None else left - 1
                if left == 0:
                    return
                if not is_estimated or not block_size.is_close_to(size):
                    # This stream ends, which returns items that are not consumed; their steps are in the buffer.
                    tracker.consume_all()
                    return
                requested = time.monotonic()
        splitter.has_ended = True


class _BlockSize:
    """Chooses the number of items per block from the sizes of the items read so far.

    Attributes:
        is_single: True if blocks have one item.
    """

    def __init__(self, info: TableInfo | None, batch_size: int | None, *, steps: bool) -> None:
        self._max_items = batch_size or MAX_BLOCK_ITEMS
        self._batch_size = batch_size if steps else None  # in steps; None if batches consist of items
        self.is_single = info is None or info.max_times_sampled is not None
        # Items are usually at least as large when they are read as in the table, where they are compressed.
        self._first_items = (
            FIRST_BLOCK_ITEMS if info is None or not info.bytes else BLOCK_BYTES * info.size // info.bytes
        )
        self._items = self._steps = self._bytes = 0.0  # decaying sums

    @property
    def is_estimated(self) -> bool:
        """True if the size is 1, or follows from items that were read. A size before the first block is a guess."""
        return self.is_single or self._items > 0

    def add(self, items: int, steps: int, nbytes: int) -> None:
        """Adds a block to the estimates."""
        self._items = self._items * BLOCK_WEIGHT_DECAY + items
        self._steps = self._steps * BLOCK_WEIGHT_DECAY + steps
        self._bytes = self._bytes * BLOCK_WEIGHT_DECAY + nbytes

    def items(self) -> int:
        """Number of items that make about `BLOCK_BYTES`, but at most as many as a batch needs."""
        if self.is_single:
            return 1
        if self._items == 0:
            return max(1, min(self._max_items, FIRST_BLOCK_ITEMS, self._first_items))
        size = min(self._max_items, int(BLOCK_BYTES * self._items / max(self._bytes, 1)))
        if self._batch_size is not None:
            size = min(size, math.ceil(self._batch_size * self._items / max(self._steps, 1)))
        return max(1, size)

    def is_close_to(self, size: int) -> bool:
        """True if `size` and the best size differ by less than a factor of two: a change of size costs a new stream."""
        return size == (best := self.items()) or best < 2 * size < 4 * best


class _BlockSplitter(Generic[R]):
    """Splits blocks of items into elements.

    Attributes:
        tracker: Counts the fetched items, and their pieces; unless `makes_several`, `TableReader` also sets how many
            are consumed.
        last: Elements to yield after the end of the data.
        has_ended: True if there is no more data.
    """

    def __init__(
        self,
        reader: TableReader,
        make: Callable[[ColumnBlock], R],
        make_together: Callable[[ColumnBlock], R] | None = None,
        batches_per_block: int = 1,
    ) -> None:
        self._steps = reader.steps
        self._batch_size = reader.batch_size
        self._buffer = None if reader.batch_size is None or not reader.steps else BatchBuffer(reader.batch_size)
        self._drop_remainder = reader.drop_remainder
        self._make = make
        self._make_together = make_together
        self._batches_per_block = batches_per_block
        self.tracker = ConsumptionTracker(self._make_last)
        self.last: list[R] = []
        self.has_ended = False

    def start(self, info: TableInfo | None) -> _BlockSize:
        """Prepares for a table in this state; returns the size of its blocks."""
        batch_size = None if self._batch_size is None else self._batch_size * self._batches_per_block
        self._block_size = _BlockSize(info, batch_size, steps=self._steps)
        self.tracker.removes_items = self._block_size.is_single
        if self._block_size.is_single:
            self._make_together = None
        return self._block_size

    def prefetched_blocks(self, prefetch: int) -> int:
        """Returns the number of blocks to fetch in advance so that they have about `prefetch` batches."""
        has_several_batches = self._batch_size is not None and not self._block_size.is_single
        return math.ceil(prefetch / self._batches_per_block) if has_several_batches else prefetch

    @property
    def makes_several(self) -> bool:
        """True if one result may stand for several elements; then consumed items are not counted here."""
        return self._make_together is not None

    def split(self, native: _engram.Batch) -> Iterator[R]:
        """Returns the elements of a block.

        The first element is made before anything is counted, so that an error, which all elements of a block share,
        leaves no item consumed.
        """
        if self._steps:
            block, lengths = column_block.step_block(native)
        else:
            block, lengths = column_block.item_block(native), [1] * len(native)
        make = self._make
        if self._make_together is not None and all(split is None for split in block.splits):
            make = self._make_together
            parts = iter([block if self._buffer is None else self._buffer.rows_of_full_batches(block)])
        elif not self._steps:
            parts = column_block.split_items(block)
        elif self._buffer is None:
            parts = column_block.split_steps(block)
        else:
            parts = iter(self._buffer.full_batches(block))
        first = next(parts, None)
        elements = iter(()) if first is None else chain((make(first),), map(make, parts))
        if self._buffer is not None:
            self._buffer.add(block)
        self.tracker.add_items(lengths)
        self._block_size.add(len(native), block.size, sum(column.nbytes for column in block.columns))
        return elements

    def _make_last(self) -> bool:
        """Makes the last, smaller batch of steps; False if there is none, so that its items are not consumed."""
        rest = None if self._buffer is None or self._drop_remainder else self._buffer.remainder()
        if rest is not None:
            self.last = [self._make(rest)]
        return rest is not None
