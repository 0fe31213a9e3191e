"""Reads a table's items or steps, one by one or in batches, and has a framework's converter make elements of them."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Self, cast

from engram import _checks, _engram
from engram.batch import Batch
from engram.data import blocks
from engram.data.blocks import Block, Convert
from engram.data.elements import Element, Options
from engram.dataset import Dataset
from engram.errors import EngramError, InvalidArgumentError
from engram.info import TableInfo
from engram.store import AnyStore

__all__ = ["Reading"]

BLOCK_BYTES = 4 * 2**20
BLOCK_ITEMS = 64  # where nobody named a batch size
UNKNOWN_ITEMS = 16  # of a table that is empty so far

_END = object()


@dataclass(frozen=True, slots=True)
class Reading:
    """A table and the options with which it is read; each iterator fetches ahead, on lease, as `engram.Dataset` does."""

    store: AnyStore
    table: str
    batch_size: int | None = None
    steps: bool = False
    drop_remainder: bool = False
    pad: bool = False
    prefetch: int = 2
    max_batches: int | None = None
    timeout: float | None = None

    @classmethod
    def of(cls, store: AnyStore, table: str, options: Options) -> Self:
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
        _checks.one_of("`store`", self.store, AnyStore, "an engram.Store or an engram.Client")
        _checks.table("`table`", self.table)
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
            raise InvalidArgumentError("`pad` is for whole items: steps of items of any lengths need none; leave it out")
        if self.pad and self.batch_size is None:
            raise InvalidArgumentError("`pad` fills items up to the longest of their batch: give a `batch_size`, too")

    def limited(self, max_batches: int) -> Self:
        """The same, ending after so many elements."""
        return replace(self, max_batches=max_batches)

    def __iter__(self) -> Iterator[Element]:
        return self.elements(blocks.arrays)

    def elements(self, convert: Convert) -> Generator[Element]:
        """Elements with the leaves that `convert` makes; items that it refuses are not used."""
        # Nothing is None without a glance.
        return cast("Generator[Element]", self.now_and_then(partial(blocks.whole, convert), convert, None))

    def now_and_then(
        self, make: Callable[[_engram.Batch], Element], convert: Convert, glance: float | None
    ) -> Generator[Element | None]:
        """Elements, and with `glance` None wherever so many seconds brought nothing.

        `make` is of whole batches, `convert` of what is cut from blocks.
        """
        if self.batch_size is not None and not self.steps:
            whole = cast("Dataset[Batch]", self._dataset(self.batch_size, max_batches=self.max_batches, pad=self.pad))
            return whole._read(make, glance)  # noqa: SLF001, the other half of every dataset
        return self._cut_from_blocks(convert, glance)

    def _dataset(self, batch_size: int, **options: Any) -> Dataset[Batch]:  # noqa: ANN401, of `Dataset`
        return Dataset(
            self.store, self.table, batch_size, prefetch=self.prefetch, timeout=self.timeout, **options
        )

    def _cut_from_blocks(self, convert: Convert, glance: float | None) -> Generator[Element | None]:
        cutter = _Cutter(self.steps, self.batch_size, convert)
        size = self.batch_size or 1
        # Every item has one step or more.
        most = None if self.max_batches is None else min(self.max_batches * size, _checks.MAX_I64)
        source = self._dataset(self._items_per_block(), at_least=1, max_items=most)
        left = self.max_batches
        broken: EngramError | None = None
        with closing(source._read(cutter.take, glance)) as taken:  # noqa: SLF001, likewise
            try:
                for elements in taken:
                    if elements is None:
                        yield None
                        continue
                    for each in islice(elements, left):
                        yield each
                        left = None if left is None else left - 1
                    if left == 0:
                        return
            except EngramError as error:
                broken = error
            # Their items have been used.
            if cutter.held is not None and not self.drop_remainder:
                yield blocks.element(cutter.held, convert)
        if broken is not None:
            raise broken

    def _items_per_block(self) -> int:
        info = self.store.info().get(self.table)
        return 1 if info is None else _items_per_block(info, self.batch_size or BLOCK_ITEMS)


def _items_per_block(info: TableInfo, most: int) -> int:
    if info.max_times_sampled is not None:
        return 1
    fit = BLOCK_BYTES * info.size // info.bytes if info.bytes else UNKNOWN_ITEMS
    return max(1, min(most, fit))


class _Cutter:
    """Cuts blocks into elements."""

    def __init__(self, steps: bool, batch_size: int | None, convert: Convert) -> None:  # noqa: FBT001, an option
        self._steps = steps
        self._size = batch_size
        self._convert = convert
        self.held: Block | None = None  # steps that do not fill a batch yet

    def take(self, native: _engram.Batch) -> Iterator[Element]:
        """The elements of a block. What is the matter with one is so with all: the first is made before any counts."""
        held = None
        if not self._steps:
            parts = blocks.items(blocks.items_of(native))
        elif self._size is None:
            parts = blocks.rows(blocks.steps_of(native))
        else:
            found, held = blocks.cut(self.held, blocks.steps_of(native), self._size)
            parts = iter(found)
        elements = (blocks.element(part, self._convert) for part in parts)
        first = next(elements, _END)
        self.held = held
        return elements if first is _END else chain([cast("Element", first)], elements)

