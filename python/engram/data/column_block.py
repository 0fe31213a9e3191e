"""Items and steps side by side, as flat columns: made from what the engine hands over, cut, and joined."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram import _engram
from engram.data.elements import Element, Info, Ragged
from engram.errors import SignatureError

__all__ = [
    "Array",
    "BatchBuffer",
    "ColumnBlock",
    "Convert",
    "arrays",
    "element",
    "item_block",
    "items",
    "rows",
    "step_block",
]

Array = npt.NDArray[Any]

Convert = Callable[[list[Array], list[Array | None]], list[Any]]
"""Columns and their row splits (None: even) into a framework's leaves."""


class ColumnBlock(NamedTuple):
    """Items, or steps, side by side.

    Attributes:
        info: Arrays `[N]`.
        columns: Of items `[N, T, ...]`, `[N, ...]` (squeezed) or `[sum of T, ...]` (ragged), of steps `[N, ...]`.
        splits: Per column, i64 `[N + 1]` where it is ragged, else None.
        lengths: Per column, i64 `[N]` where it was padded, else None.
        squeezed: Per column, whether it has no time axis.
        structure: How the columns nest.
    """

    info: Info
    columns: list[Array]
    splits: list[Array | None]
    lengths: list[Array | None]
    squeezed: list[bool]
    structure: str

    @property
    def number(self) -> int:
        """`N`."""
        return len(self.info.key)


def arrays(columns: list[Array], splits: list[Array | None]) -> list[Any]:
    """NumPy's leaves."""
    return [column if split is None else Ragged(column, split) for column, split in zip(columns, splits, strict=True)]


def item_block(native: _engram.Batch) -> ColumnBlock:
    """The items of a batch."""
    columns, _, structure = _engram.flatten(native.data)
    info = Info(native.key(), native.probability(), native.table_size(), native.priority(), native.times_sampled())
    nothing: list[Array | None] = [None] * len(columns)
    return ColumnBlock(
        info,
        columns,
        nothing if native.row_splits is None else _engram.flatten(native.row_splits)[0],
        nothing if native.lengths is None else _engram.flatten(native.lengths)[0],
        native.squeezed,
        structure,
    )


def element(convert: Convert, block: ColumnBlock) -> Element:
    """What a dataset yields of a block."""
    data = _engram.unflatten(block.structure, convert(block.columns, block.splits))
    if all(length is None for length in block.lengths):
        return Element(block.info, data)
    masks = [
        None if length is None else np.arange(column.shape[1]) < length[:, None]
        for column, length in zip(block.columns, block.lengths, strict=True)
    ]
    padded = [mask for mask in masks if mask is not None]
    made = iter(convert(padded, [None] * len(padded)))
    leaves = [None if mask is None else next(made) for mask in masks]
    return Element(block.info, data, _engram.unflatten(block.structure, leaves))


def items(block: ColumnBlock) -> Iterator[ColumnBlock]:
    """Each item by itself, without the axis of the batch."""
    splits = [None if split is None else split.tolist() for split in block.splits]
    even: list[Array | None] = [None] * len(splits)
    for i in range(block.number):
        columns = [
            column[i, ...] if split is None else column[split[i] : split[i + 1]]
            for column, split in zip(block.columns, splits, strict=True)
        ]
        yield ColumnBlock(
            Info(*(array[i, ...] for array in block.info)), columns, even, even, block.squeezed, block.structure
        )


def rows(block: ColumnBlock) -> Iterator[ColumnBlock]:
    """Each step by itself."""
    return (_part(block, (i, ...)) for i in range(block.number))


def step_block(native: _engram.Batch) -> tuple[ColumnBlock, list[int]]:
    """The steps of all items, end to end; `info` is of each step's item. Beside it, how many each item has.

    Raises:
        SignatureError: A column has no time axis, or an item's columns differ in length.
    """
    block = item_block(native)
    number = block.number
    lengths = [
        None if squeezed else np.full(number, column.shape[1]) if split is None else np.diff(split)
        for column, split, squeezed in zip(block.columns, block.splits, block.squeezed, strict=True)
    ]
    first = lengths[0]
    if first is None or any(each is None or not np.array_equal(each, first) for each in lengths):
        raise SignatureError(_uneven(block, lengths))
    columns = [
        column.reshape(-1, *column.shape[2:]) if split is None else column
        for column, split in zip(block.columns, block.splits, strict=True)
    ]
    info = Info(*(np.repeat(array, first) for array in block.info))
    # The block's lengths: none.
    steps = ColumnBlock(info, columns, block.lengths, block.lengths, block.squeezed, block.structure)
    return steps, first.tolist()


def _uneven(block: ColumnBlock, lengths: list[Array | None]) -> str:
    """Says how long the columns of the first bad item are."""

    def of_item(i: int) -> list[int | None]:
        return [None if each is None else int(each[i]) for each in lengths]

    bad = next(i for i in range(block.number) if len(set(of_item(i))) > 1 or None in of_item(i))
    names = _engram.names(block.structure)
    found = ", ".join(
        f"`{name}` {'no time axis' if n is None else n}" for name, n in zip(names, of_item(bad), strict=True)
    )
    return f"`steps` needs items whose columns have as many steps each; found: {found}"


class BatchBuffer:
    """Steps, or items, that do not fill a batch yet; they are joined once, when they do."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: list[ColumnBlock] = []
        self._count = 0

    def filled(self, block: ColumnBlock) -> list[ColumnBlock]:
        """The batches that a block fills together with what is held; `keep` the block once they are of use.

        Raises:
            SignatureError: The block is not like what is held.
        """
        batches, start = [], 0
        count = block.number
        if self._parts:
            _check_alike(self._parts[0], block)
            start = self._size - self._count
            if count < start:
                return []
            batches.append(_joined([*self._parts, _part(block, slice(0, start))]))
        return batches + [
            _part(block, slice(at, at + self._size)) for at in range(start, count - self._size + 1, self._size)
        ]

    def keep(self, block: ColumnBlock) -> None:
        """Holds what of a block fills no batch."""
        count = block.number
        rest = (self._count + count) % self._size
        if self._count + count >= self._size:
            self._parts = []
            block = _part(block, slice(count - rest, None))
        if rest:
            self._parts.append(block)
        self._count = rest

    def rest(self) -> ColumnBlock | None:
        """What is held."""
        return _joined(self._parts) if self._parts else None


def _part(steps: ColumnBlock, at: slice | tuple[Any, ...]) -> ColumnBlock:
    return ColumnBlock(
        Info(*(array[at] for array in steps.info)),
        [column[at] for column in steps.columns],
        steps.splits,
        steps.lengths,
        steps.squeezed,
        steps.structure,
    )


def _joined(parts: list[ColumnBlock]) -> ColumnBlock:
    return parts[0]._replace(
        info=Info(*map(np.concatenate, zip(*(part.info for part in parts), strict=True))),
        columns=[np.concatenate(pieces) for pieces in zip(*(part.columns for part in parts), strict=True)],
    )


def _check_alike(held: ColumnBlock, steps: ColumnBlock) -> None:
    said = "the steps of a batch must be alike"
    names, found = _engram.names(held.structure), _engram.names(steps.structure)
    if names != found:
        raise SignatureError(f"{said}; columns were {_listed(names)}, and are {_listed(found)}")
    if held.structure != steps.structure:
        raise SignatureError(f"{said}; their nest was {held.structure}, and is {steps.structure}")
    for name, old, new in zip(names, held.columns, steps.columns, strict=True):
        if (old.dtype, old.shape[1:]) != (new.dtype, new.shape[1:]):
            was, now = (f"{column.dtype} {list(column.shape[1:])}" for column in (old, new))
            raise SignatureError(f"{said}; `{name}` was {was}, and is {now}")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
