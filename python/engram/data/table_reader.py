"""Reads a table's items or steps, one by one or in batches, and has a framework's converter make elements of them."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, Self, TypeVar, cast

from engram import _checks, _engram
from engram._consumption import ConsumptionTracker
from engram.batch import Batch
from engram.data import column_block
from engram.data.column_block import ColumnBlock, Convert
from engram.data.elements import Element, Options
from engram.dataset import Dataset
from engram.errors import EngramError, InvalidArgumentError, SignatureError
from engram.info import TableInfo
from engram.store import TableStore

__all__ = ["TableReader"]

BLOCK_BYTES = 4 * 2**20
BLOCK_ITEMS = 64  # where nobody named a batch size
FIRST_ITEMS = 16  # before any has been seen
LOOK_AROUND = 0.2  # seconds without anything after which it is asked whether items that are held are in the way
FADES = 0.875  # how much earlier blocks weigh beside a new one

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TableReader:
    """A table and how it is read; each iterator fetches ahead, on lease, as `engram.Dataset` does."""

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
        """Checks what a user gave.

        Raises:
            InvalidArgumentError: An option is not what `Options` says.
            TypeError: There is no such option.
        """
        known = sorted(Options.__optional_keys__)
        for name in options:
            if name not in known:
                listed = ", ".join(f"`{each}`" for each in known)
                raise TypeError(f"dataset() has no option `{name}`; beside its own it has {listed}")
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
                "`pad` is for whole items: steps of items of any lengths need none; leave it out"
            )
        if self.pad and self.batch_size is None:
            raise InvalidArgumentError("`pad` fills items up to the longest of their batch: give a `batch_size`, too")

    def limited(self, max_batches: int) -> Self:
        """The same, ending after so many elements."""
        return replace(self, max_batches=max_batches)

    def __iter__(self) -> Iterator[Element]:
        return self.elements(column_block.arrays)

    def elements(self, convert: Convert) -> Generator[Element]:
        """Elements with the leaves that `convert` makes; items that it refuses are not used."""
        # Nothing is None without a glance.
        return cast("Generator[Element]", self.read(partial(column_block.element, convert)))

    def read(self, make: Callable[[ColumnBlock], R], glance: float | None = None) -> Generator[R | None]:
        """What `make` makes of each element's block; with `glance`, None wherever so many seconds brought nothing."""
        if self.steps or self.batch_size is None:
            return self._cut(make, glance)
        whole = self._dataset(self.batch_size, max_batches=self.max_batches, pad=self.pad)
        return whole._read(lambda native: make(column_block.item_block(native)), glance)  # noqa: SLF001, every dataset's half

    def read_together(
        self,
        make: Callable[[list[ColumnBlock]], R],
        together: int,
        tracker: ConsumptionTracker,
        glance: float | None = None,
    ) -> Generator[R | None]:
        """What `make` makes of the blocks of so many batches, or as many as there are; for tables that keep items.

        A block of items that differ in length comes whole. What of the items is used, `tracker` is to be told.
        """
        size = self.batch_size or 1
        held = column_block.BatchBuffer(size)

        def take(native: _engram.Batch) -> R:
            block = column_block.item_block(native)
            if any(split is not None for split in block.splits):
                return make([block])
            made = make(held.filled(block))
            held.keep(block)
            tracker.add_items([1] * len(native))
            return made

        most = None if self.max_batches is None else min(self.max_batches * size, _checks.MAX_I64)
        source = self._dataset(size * together, prefetch=1, at_least=size, max_items=most)
        return source._read(take, glance, tracker)  # noqa: SLF001, every dataset's half

    @property
    def keeps_items(self) -> bool:
        """Whether the table hands out an item any number of times."""
        info = self.store.info().get(self.table)
        return info is not None and info.max_times_sampled is None

    def _dataset(self, batch_size: int, **options: Any) -> Dataset[Batch]:  # noqa: ANN401, of `Dataset`
        return Dataset(
            self.store, self.table, batch_size, **{"prefetch": self.prefetch, "timeout": self.timeout, **options}
        )

    def _cut(self, make: Callable[[ColumnBlock], R], glance: float | None) -> Generator[R | None]:
        info = self.store.info().get(self.table)
        fit = _Fit(info, self.batch_size, steps=self.steps)
        cutter = _Cutter(self, make, fit)
        left = self.max_batches
        broken: EngramError | None = None
        try:
            while left != 0 and not cutter.has_ended:
                found = self._blocks(cutter, fit, left, glance)
                try:
                    with closing(found) as elements:
                        for each in elements:
                            yield each
                            if each is not None and left is not None:
                                left -= 1
                except SignatureError:
                    # Items that do not go side by side may be read one by one, unless they are to fill batches.
                    if fit.by_one or self.batch_size is not None:
                        raise
                    fit.by_one = True
        except EngramError as error:
            broken = error
        if left != 0:
            yield from cutter.last
        if broken is not None:
            raise broken

    def _blocks(self, cutter: "_Cutter[R]", fit: "_Fit", left: int | None, glance: float | None) -> Generator[R | None]:
        """Elements of blocks of one size: up to `left`, until another fits better or there are no more."""
        size, is_sure = fit.items(), fit.is_sure
        # Every item has one step or more.
        most = None if left is None else min(left * (self.batch_size or 1), _checks.MAX_I64)
        source = self._dataset(size, at_least=1, max_items=most, max_batches=None if is_sure else 1)
        tracker, pieces = cutter.tracker, self.batch_size or 1
        look = LOOK_AROUND if glance is None and self.steps and pieces > 1 else glance
        with closing(source._read(cutter.take, look, tracker)) as taken:  # noqa: SLF001, every dataset's half
            for elements in taken:
                if elements is None:
                    if tracker.is_holding and self._is_in_the_way():
                        tracker.stop_holding()
                    if glance is not None:
                        yield None
                    continue
                for each in islice(elements, left):
                    # No call between these two: Ctrl-C may strike in any.
                    tracker.consumed = tracker.consumed_after(pieces)
                    yield each
                    left = None if left is None else left - 1
                if left == 0:
                    return
                if not is_sure or not fit.still(size):
                    tracker.consume_all()
                    return
        cutter.has_ended = True

    def _is_in_the_way(self) -> bool:
        """Whether somebody waits to insert: maybe for the room of items that are held until they fill a batch."""
        info = self.store.info().get(self.table)
        return info is not None and info.waiting_inserts > 0


class _Fit:
    """How many items a block should have, from what those so far were like."""

    def __init__(self, info: TableInfo | None, batch_size: int | None, *, steps: bool) -> None:
        self._most = batch_size or BLOCK_ITEMS
        self._batch_size = batch_size if steps else None
        self.by_one = info is None or info.max_times_sampled is not None
        # They are no smaller than what the table keeps of them, as a rule.
        self._first = FIRST_ITEMS if info is None or not info.bytes else BLOCK_BYTES * info.size // info.bytes
        self._items = self._steps = self._bytes = 0.0

    @property
    def is_sure(self) -> bool:
        """Whether the size is more than a guess."""
        return self.by_one or self._items > 0

    def saw(self, items: int, steps: int, nbytes: int) -> None:
        """Counts a block."""
        self._items = self._items * FADES + items
        self._steps = self._steps * FADES + steps
        self._bytes = self._bytes * FADES + nbytes

    def items(self) -> int:
        """As many as make `BLOCK_BYTES`, and no more than a batch needs."""
        if self.by_one:
            return 1
        if self._items == 0:
            return max(1, min(self._most, FIRST_ITEMS, self._first))
        fit = min(self._most, int(BLOCK_BYTES * self._items / max(self._bytes, 1)))
        if self._batch_size is not None:
            fit = min(fit, math.ceil(self._batch_size * self._items / max(self._steps, 1)))
        return max(1, fit)

    def still(self, size: int) -> bool:
        """Whether blocks of a size are about right: it costs something to begin with others."""
        return size == (best := self.items()) or best < 2 * size < 4 * best


class _Cutter(Generic[R]):
    """Cuts blocks into elements.

    Attributes:
        tracker: Which items were used.
        last: What is left to yield once nothing more comes.
        has_ended: Nothing more comes.
    """

    def __init__(self, reading: TableReader, make: Callable[[ColumnBlock], R], fit: _Fit) -> None:
        self._steps = reading.steps
        size = reading.batch_size
        self._held = None if size is None or not reading.steps else column_block.BatchBuffer(size)
        self._drops = reading.drop_remainder
        self._make = make
        self._fit = fit
        self.tracker = ConsumptionTracker(self._rest)
        self.last: list[R] = []
        self.has_ended = False

    def take(self, native: _engram.Batch) -> Iterator[R]:
        """The elements of a block. What is the matter with one is so with all: the first is made before any counts."""
        block, lengths = (
            column_block.step_block(native) if self._steps else (column_block.item_block(native), [1] * len(native))
        )
        if not self._steps:
            parts = column_block.items(block)
        elif self._held is None:
            parts = column_block.rows(block)
        else:
            parts = iter(self._held.filled(block))
        first = next(parts, None)
        made = iter(()) if first is None else chain((self._make(first),), map(self._make, parts))
        if self._held is not None:
            self._held.keep(block)
        self.tracker.add_items(lengths)
        self._fit.saw(len(native), block.number, sum(column.nbytes for column in block.columns))
        return made

    def _rest(self) -> bool:
        """Makes what is left of steps that did not fill a batch; whether their items are used."""
        rest = None if self._held is None or self._drops else self._held.rest()
        if rest is not None:
            self.last = [self._make(rest)]
        return rest is not None
