"""Blocks of items or steps as flat columns: creates them from the engine's batches, splits and concatenates them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram import _engram
from engram._text import column_text, columns_text, nest_text
from engram.data.elements import Element, Info, Ragged
from engram.errors import SignatureError

__all__ = [
    "Array",
    "BatchBuffer",
    "ColumnBlock",
    "ColumnConverter",
    "item_block",
    "numpy_leaves",
    "split_items",
    "split_steps",
    "step_block",
    "to_element",
]

Array = npt.NDArray[Any]

ColumnConverter = Callable[[list[Array], list[Array | None]], list[Any]]
"""Converts columns, and their row splits (None for columns that are not ragged), to a framework's leaves."""


class ColumnBlock(NamedTuple):
    """`N` items or steps, stored by column. `split_items` and `split_steps` yield blocks of one, without the axis `N`.

    Attributes:
        info: Arrays `[N]`.
        columns: Of items `[N, T, ...]`, `[N, ...]` (squeezed: no time axis) or `[sum of T, ...]` (ragged); of steps
            `[N, ...]`.
        splits: For each column, its row splits, i64 `[N + 1]`, if it is ragged, else None.
        lengths: For each column, the number of steps before padding, i64 `[N]`, if it was padded, else None.
        squeezed: For each column, True if it has no time axis.
        structure: The nest that the columns are the leaves of, as the engine encodes it.
    """

    info: Info
    columns: list[Array]
    splits: list[Array | None]
    lengths: list[Array | None]
    squeezed: list[bool]
    structure: str

    @property
    def size(self) -> int:
        """Number of items or steps, `N`."""
        return len(self.info.key)

    def step_counts(self) -> list[Array | None]:
        """For each column of items, the number of steps of each item, i64 `[N]`; None without a time axis.

        Columns that are not ragged and have the same number of steps share one array, so that comparing them is quick.
        """
        columns = list(zip(self.columns, self.splits, self.squeezed, strict=True))
        steps = {column.shape[1] for column, split, squeezed in columns if split is None and not squeezed}
        shared = {number: np.full(self.size, number) for number in steps}
        return [
            None if squeezed else shared[column.shape[1]] if split is None else np.diff(split)
            for column, split, squeezed in columns
        ]

    def step_columns(self) -> list[Array]:
        """The columns of items with the steps of all items concatenated; unchanged without a time axis."""
        return [
            column
            if squeezed or split is not None
            else column.reshape(column.shape[0] * column.shape[1], *column.shape[2:])
            for column, split, squeezed in zip(self.columns, self.splits, self.squeezed, strict=True)
        ]


def numpy_leaves(columns: list[Array], splits: list[Array | None]) -> list[Any]:
    """Converts columns to NumPy's leaves: arrays, and `Ragged` for ragged columns."""
    return [column if split is None else Ragged(column, split) for column, split in zip(columns, splits, strict=True)]


def item_block(native: _engram.Batch) -> ColumnBlock:
    """Returns the items of a batch.

    Args:
        native: The engine's batch, which `Dataset.read` passes to `convert`.
    """
    columns, splits, lengths, structure = native.flat()
    info = Info(
        native.key(),
        native.probability(),
        native.table_size(),
        native.priority(),
        native.times_sampled(),
        native.candidates(),
        native.min_probability(),
    )
    return ColumnBlock(info, columns, splits, lengths, native.squeezed, structure)


def to_element(convert: ColumnConverter, block: ColumnBlock) -> Element:
    """Returns a block as an element of a dataset."""
    data = _engram.unflatten(block.structure, convert(block.columns, block.splits))
    if all(length is None for length in block.lengths):
        return Element(block.info, data)
    masks = [
        None if length is None else np.arange(column.shape[1]) < length[:, None]
        for column, length in zip(block.columns, block.lengths, strict=True)
    ]
    present = [mask for mask in masks if mask is not None]
    converted = iter(convert(present, [None] * len(present)))
    leaves = [None if mask is None else next(converted) for mask in masks]
    return Element(block.info, data, _engram.unflatten(block.structure, leaves))


def split_items(block: ColumnBlock) -> Iterator[ColumnBlock]:
    """Yields each item as a block without the batch axis."""
    absent: list[Array | None] = [None] * len(block.columns)
    splits = [None if split is None else split.tolist() for split in block.splits]
    for i in range(block.size):
        columns = [
            column[i, ...] if split is None else column[split[i] : split[i + 1]]
            for column, split in zip(block.columns, splits, strict=True)
        ]
        info = Info(*(array[i, ...] for array in block.info))
        yield ColumnBlock(info, columns, absent, absent, block.squeezed, block.structure)


def split_steps(block: ColumnBlock) -> Iterator[ColumnBlock]:
    """Yields each step as a block without the batch axis."""
    return (_part(block, (i, ...)) for i in range(block.size))


def step_block(native: _engram.Batch) -> tuple[ColumnBlock, list[int]]:
    """Returns the steps of a batch's items, concatenated, and the number of steps of each item.

    Raises:
        SignatureError: A column has no time axis, or the columns of an item differ in length.
    """
    block = item_block(native)
    lengths = block.step_counts()
    first = lengths[0]
    if first is None or any(
        each is not first and (each is None or not np.array_equal(each, first)) for each in lengths
    ):
        raise SignatureError(_different_lengths(block, lengths))
    info = Info(*(array.repeat(first) for array in block.info))
    absent: list[Array | None] = [None] * len(block.columns)
    return ColumnBlock(info, block.step_columns(), absent, absent, block.squeezed, block.structure), first.tolist()


def _different_lengths(block: ColumnBlock, lengths: list[Array | None]) -> str:
    """Returns an error text about the first item that cannot be split into steps, with the lengths of its columns."""

    def of_item(i: int) -> list[int | None]:
        return [None if each is None else int(each[i]) for each in lengths]

    bad_item = next(i for i in range(block.size) if len(set(of_item(i))) > 1 or None in of_item(i))
    names = _engram.names(block.structure)
    described = ", ".join(
        f"{column_text(name)} {'without a time axis' if n is None else f'of length {n}'}"
        for name, n in zip(names, of_item(bad_item), strict=True)
    )
    return f"`steps` requires items whose columns have a time axis of the same length; got {described}"


class BatchBuffer:
    """Collects items or steps until they fill batches; the parts of a batch are concatenated once, when it is full."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._parts: list[ColumnBlock] = []
        self._count = 0

    def full_batches(self, block: ColumnBlock) -> list[ColumnBlock]:
        """Returns the batches that the buffered parts and `block` fill; the buffer changes only with `add`.

        Raises:
            SignatureError: The block differs from the buffered parts in columns, dtypes or shapes.
        """
        batches, start = [], 0
        if self._parts:
            _check_same_layout(self._parts[0], block)
            start = self._batch_size - self._count
            if block.size < start:
                return []
            batches.append(_concatenate([*self._parts, _part(block, slice(0, start))]))
        return batches + [
            _part(block, slice(begin, begin + self._batch_size))
            for begin in range(start, block.size - self._batch_size + 1, self._batch_size)
        ]

    def rows_of_full_batches(self, block: ColumnBlock) -> ColumnBlock:
        """Returns the rows of all batches of `full_batches` as one block; copies them if the buffer is not empty."""
        rows = self._count + block.size
        if self._parts:
            _check_same_layout(self._parts[0], block)
            if rows >= self._batch_size:
                block = _concatenate([*self._parts, block])
        return _part(block, slice(0, rows - rows % self._batch_size))

    def add(self, block: ColumnBlock) -> None:
        """Buffers the part of a block that fills no batch; call it after `full_batches`."""
        total = self._count + block.size
        rest = total % self._batch_size
        if total >= self._batch_size:
            self._parts = []
            block = _part(block, slice(block.size - rest, None))
        if rest:
            self._parts.append(block)
        self._count = rest

    def remainder(self) -> ColumnBlock | None:
        """Returns what is in the buffer, None if it is empty."""
        return _concatenate(self._parts) if self._parts else None


def _part(block: ColumnBlock, items: slice | tuple[Any, ...]) -> ColumnBlock:
    return ColumnBlock(
        Info(*(array[items] for array in block.info)),
        [column[items] for column in block.columns],
        block.splits,
        block.lengths,
        block.squeezed,
        block.structure,
    )


def _concatenate(parts: list[ColumnBlock]) -> ColumnBlock:
    return parts[0]._replace(
        info=Info(*map(np.concatenate, zip(*(part.info for part in parts), strict=True))),
        columns=[np.concatenate(pieces) for pieces in zip(*(part.columns for part in parts), strict=True)],
    )


def _check_same_layout(first: ColumnBlock, other: ColumnBlock) -> None:
    rule = "the items or steps of a batch must have the same columns, dtypes and shapes"
    names, other_names = _engram.names(first.structure), _engram.names(other.structure)
    if names != other_names:
        raise SignatureError(f"{rule}; got {columns_text(names)}, then {columns_text(other_names)}")
    if first.structure != other.structure:
        old_nest, new_nest = (
            nest_text(partial(_engram.unflatten, each.structure), len(names)) for each in (first, other)
        )
        raise SignatureError(f"{rule}; got the nest {old_nest}, then {new_nest}")
    for name, old, new in zip(names, first.columns, other.columns, strict=True):
        if (old.dtype, old.shape[1:]) != (new.dtype, new.shape[1:]):
            old_layout, new_layout = (f"{column.dtype} {list(column.shape[1:])}" for column in (old, new))
            raise SignatureError(f"{rule}; got {old_layout} for {column_text(name)}, then {new_layout}")
