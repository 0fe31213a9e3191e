"""What datasets yield, as NumPy arrays: whole items or single steps, one by one or in batches."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt
import optree

from engram import _checks, _engram
from engram.batch import Batch, BatchInfo, Sample
from engram.dataset import Dataset
from engram.errors import SignatureError
from engram.store import AnyStore

__all__ = ["Element", "Info", "Options", "Ragged", "Reading", "converted"]

Array = npt.NDArray[Any]


class Info(NamedTuple):
    """What is known about the items of an element: NumPy arrays `[B]`, or scalars where there is no batch.

    Attributes:
        key: u64, to update priorities with.
        probability: f64, with which the item was drawn.
        table_size: i64, items in the table at the draw.
        priority: f64, at the draw.
        times_sampled: i32, this time included.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any


class Ragged(NamedTuple):
    """A column of items of different lengths.

    Attributes:
        values: `[sum of T, ...]`, the items' steps end to end.
        row_splits: i64 `[B + 1]`: item `i` is `values[row_splits[i]:row_splits[i + 1]]`.
    """

    values: Any
    row_splits: Any


class Element(NamedTuple):
    """What a dataset yields.

    Attributes:
        info: Of the items, or of each step's item.
        data: The nest that was written. Of items its leaves are `[B, T, ...]` (`[B, ...]` for squeezed columns), of
            steps `[B, ...]`; without a batch there is no `B`.
        mask: With `pad`: a nest like `data` with bool `[B, T]` leaves, True where there is a step, and None where a
            column needed no padding; None where none did.
    """

    info: Info
    data: Any
    mask: Any = None


class Options(TypedDict, total=False):
    """What every dataset can be told.

    Attributes:
        batch_size: Items, or steps, per element, exactly; a dataset that ends may end with fewer steps. None (the
            default): one by one.
        steps: Yield the items' steps, in order, instead of whole items. All columns must have a time axis of one
            length. An item counts as used with its first step. Default False.
        pad: Fill shorter items of a batch up with zeros; otherwise their columns are ragged. Default False.
        prefetch: Batches kept ready; of steps, or without a batch, single items. Default 2.
        max_batches: Elements to end after. None (the default): never.
        timeout: Seconds that a reader waits in vain until the dataset ends. None (the default): for ever.
    """

    batch_size: int | None
    steps: bool
    pad: bool
    prefetch: int
    max_batches: int | None
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """Iterates over a table's items; each iterator fetches ahead, on lease, as `engram.Dataset` does."""

    store: AnyStore
    table: str
    batch_size: int | None = None
    steps: bool = False
    pad: bool = False
    prefetch: int = 2
    max_batches: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        _checks.boolean("`steps`", self.steps)
        _checks.boolean("`pad`", self.pad)
        if self.batch_size is not None:
            _checks.integer("`batch_size`", self.batch_size, high=_checks.MAX_BATCH)
        if self.max_batches is not None:
            _checks.integer("`max_batches`", self.max_batches)
        self._samples()  # checks the rest

    def limited(self, max_batches: int) -> "Reading":
        """The same, ending after so many elements."""
        return replace(self, max_batches=max_batches)

    def __iter__(self) -> Iterator[Element]:
        if self.steps:
            return self._in_steps()
        return map(_of_sample, self._samples()) if self.batch_size is None else map(_of_batch, self._batches())

    def _batches(self) -> Dataset[Batch]:
        return Dataset(
            self.store,
            self.table,
            self.batch_size or 1,
            prefetch=self.prefetch,
            max_batches=self.max_batches,
            timeout=self.timeout,
            pad=self.pad,
        )

    def _samples(self) -> Dataset[Sample]:
        most = None if self.steps else self.max_batches
        return Dataset(self.store, self.table, prefetch=self.prefetch, max_batches=most, timeout=self.timeout)

    def _in_steps(self) -> Iterator[Element]:
        with closing(cast("Generator[Sample]", iter(self._samples()))) as samples:
            items = map(_steps_of, samples)
            elements = _one_by_one(items) if self.batch_size is None else _batched(items, self.batch_size)
            yield from islice(elements, self.max_batches)


def _one_by_one(items: Iterable[Element]) -> Iterator[Element]:
    for item in items:
        for step in range(len(item.info.key)):
            yield _part(item, step)


def _batched(items: Iterable[Element], size: int) -> Iterator[Element]:
    """The items' steps, `size` by `size`; at the end, perhaps fewer."""
    held: list[Element] = []
    count = 0
    for item in items:
        held.append(item)
        count += len(item.info.key)
        if count < size:
            continue
        steps = _joined(held)
        whole = count - count % size
        for start in range(0, whole, size):
            yield _part(steps, slice(start, start + size))
        held = [_part(steps, slice(whole, None))]
        count -= whole
    if count > 0:
        yield _joined(held)


def _part(element: Element, at: int | slice) -> Element:
    return converted(element, lambda leaf: leaf[at])


def converted(element: Element, leaf: Callable[[Any], Any], *, info: bool = True) -> Element:
    """The element with `leaf` of each array and `Ragged`; of those of `info` only if so."""

    def nest(of: Any) -> Any:  # noqa: ANN401, a nest
        return optree.tree_map(
            lambda found: None if found is None else leaf(found),
            of,
            is_leaf=lambda found: isinstance(found, Ragged),
            none_is_leaf=True,
            namespace="engram",
        )

    return Element(Info(*map(leaf, element.info)) if info else element.info, nest(element.data), nest(element.mask))


def _info(info: BatchInfo) -> Info:
    return Info(info.key, info.probability, info.table_size, info.priority, info.times_sampled)


def _of_sample(sample: Sample) -> Element:
    return Element(Info(*(array[0] for array in _info(sample.info))), sample.data)


def _of_batch(batch: Batch) -> Element:
    data = batch.data
    if batch.row_splits is not None:
        columns, _, structure = _engram.flatten(data)
        splits, _, _ = _engram.flatten(batch.row_splits)
        leaves = [
            column if split is None else Ragged(column, split) for column, split in zip(columns, splits, strict=True)
        ]
        data = _engram.unflatten(structure, leaves)
    return Element(_info(batch.info), data, batch.mask)


def _steps_of(sample: Sample) -> Element:
    """The steps of an item, side by side."""
    columns, names, _ = _engram.flatten(sample.data)
    lengths = {name: column.shape[0] if column.ndim else None for name, column in zip(names, columns, strict=True)}
    length = next(iter(lengths.values()), None)
    if length is None or set(lengths.values()) != {length}:
        found = ", ".join(f"`{name}` {'none' if size is None else size}" for name, size in lengths.items())
        raise SignatureError(f"`steps` needs items whose columns have as many steps each; found: {found}")
    return Element(Info(*(np.repeat(array, length) for array in _info(sample.info))), sample.data)


def _joined(elements: list[Element]) -> Element:
    if len(elements) == 1:
        return elements[0]
    info = Info(*(np.concatenate(arrays) for arrays in zip(*(element.info for element in elements), strict=True)))
    data = optree.tree_map(
        lambda *columns: np.concatenate(columns),
        *(element.data for element in elements),
        none_is_leaf=True,
        namespace="engram",
    )
    return Element(info, data)
