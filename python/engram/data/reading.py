"""Reads a table's items or steps, one by one or in batches, and has a framework's converter make elements of them."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, Self, TypeVar, cast

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

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Reading:
    """A table and how it is read; each iterator fetches ahead, on lease, as `engram.Dataset` does."""

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
            raise InvalidArgumentError(
                "`pad` is for whole items: steps of items of any lengths need none; leave it out"
            )
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
        return cast("Generator[Element]", self.read(partial(blocks.element, convert)))

    def read(self, make: Callable[[Block], R], glance: float | None = None) -> Generator[R | None]:
        """What `make` makes of each element's block; with `glance`, None wherever so many seconds brought nothing."""
        if self.steps or self.batch_size is None:
            return self._cut(make, glance)
        whole = self._dataset(self.batch_size, max_batches=self.max_batches, pad=self.pad)
        return whole._read(lambda native: make(blocks.items_of(native)), glance)  # noqa: SLF001, every dataset's half

    def _dataset(self, batch_size: int, **options: Any) -> Dataset[Batch]:  # noqa: ANN401, of `Dataset`
        return Dataset(self.store, self.table, batch_size, prefetch=self.prefetch, timeout=self.timeout, **options)

    def _cut(self, make: Callable[[Block], R], glance: float | None) -> Generator[R | None]:
        cutter = _Cutter(self.steps, self.batch_size, make)
        # Every item has one step or more.
        most = None if self.max_batches is None else min(self.max_batches * (self.batch_size or 1), _checks.MAX_I64)
        source = self._dataset(self._items_per_block(), at_least=1, max_items=most)
        left = self.max_batches
        broken: EngramError | None = None
        with closing(source._read(cutter.take, glance)) as taken:  # noqa: SLF001, every dataset's half
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
                yield make(cutter.held)
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


class _Cutter(Generic[R]):
    """Cuts blocks into elements."""

    def __init__(self, steps: bool, batch_size: int | None, make: Callable[[Block], R]) -> None:  # noqa: FBT001, an option
        self._steps = steps
        self._size = batch_size
        self._make = make
        self.held: Block | None = None  # steps that do not fill a batch yet

    def take(self, native: _engram.Batch) -> Iterator[R]:
        """The elements of a block. What is the matter with one is so with all: the first is made before any counts."""
        held = None
        if not self._steps:
            parts = blocks.items(blocks.items_of(native))
        elif self._size is None:
            parts = blocks.rows(blocks.steps_of(native))
        else:
            found, held = blocks.cut(self.held, blocks.steps_of(native), self._size)
            parts = iter(found)
        first = next(parts, None)
        made = iter(()) if first is None else chain((self._make(first),), map(self._make, parts))
        self.held = held
        return made
