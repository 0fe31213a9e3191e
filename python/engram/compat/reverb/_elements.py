"""What a dataset's elements are: whole trajectories, or one step of one after the other, checked against specs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.compat.reverb import _nest
from engram.compat.reverb._block_reader import MismatchError
from engram.compat.reverb.tensor_spec import TensorSpec, as_spec, dtype_name, is_compatible
from engram.data.column_block import Array, ColumnBlock

__all__ = [
    "Convert",
    "Elements",
    "Rows",
    "check_signature",
    "fixed_length_timesteps",
    "sequences",
    "steps_per_item",
    "timesteps",
    "trajectories",
]

Shape = tuple[int | None, ...] | None


class Rows(NamedTuple):
    """One tensor of several elements.

    Attributes:
        values: `[N, ...]`; where ragged, the elements' rows one after the other.
        splits: i64 `[N + 1]` where ragged: element `i` has its rows from `splits[i]` to `splits[i + 1]`. Else None.
    """

    values: Array
    splits: Array | None = None


Elements = list[Rows]
"""Several elements: the five tensors of `SampleInfo`, then the data's."""

Convert = Callable[[str, Sequence[TensorSpec], ColumnBlock], Elements]


def trajectories(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
    """Each item is an element, of whole columns."""
    found = [
        (column.dtype, column.shape[1:] if splits is None else _ragged_shape(spec.shape, column, splits))
        for spec, column, splits in zip(_padded(specs, block), block.columns, block.splits, strict=True)
    ]
    _check(table, specs, found)
    return [*map(Rows, block.info), *map(Rows, block.columns, block.splits)]


def timesteps(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
    """Each step of each item is an element, with the item's info."""
    lengths = steps_per_item(block)
    columns: list[Array] = [
        column if squeezed or splits is not None else column.reshape(-1, *column.shape[2:])
        for column, splits, squeezed in zip(block.columns, block.splits, block.squeezed, strict=True)
    ]
    _check(table, specs, [(column.dtype, column.shape[1:]) for column in columns])
    return [*(Rows(np.repeat(field, lengths)) for field in block.info), *map(Rows, columns)]


def sequences(sequence_length: int | None) -> Convert:
    """Each item is an element, of whole columns, and so is its info, repeated for each step."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        lengths = steps_per_item(block)
        _check_lengths(table, sequence_length, lengths)
        splits = next((splits for splits in block.splits if splits is not None), None)
        info: list[Array] = [np.repeat(field, lengths) for field in block.info]
        columns: list[Array]
        if splits is None:
            info = [field.reshape(block.size, -1) for field in info]
            columns = [
                column[:, None] if squeezed else column
                for column, squeezed in zip(block.columns, block.squeezed, strict=True)
            ]
            block = block._replace(columns=columns)
        return [*(Rows(field, splits) for field in info), *trajectories(table, specs, block)[len(info) :]]

    return convert


def fixed_length_timesteps(sequence_length: int) -> Convert:
    """As `timesteps`, of items of a given length."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        _check_lengths(table, sequence_length, steps_per_item(block))
        return timesteps(table, specs, block)

    return convert


def _check_lengths(table: str, sequence_length: int | None, lengths: Array) -> None:
    if sequence_length is not None and np.any(lengths != sequence_length):
        wrong = lengths[lengths != sequence_length][0]
        raise MismatchError(
            f"Received sequence of invalid length from table '{table}': it has {wrong} steps, `sequence_length` is "
            f"{sequence_length}."
        )


def steps_per_item(block: ColumnBlock) -> Array:
    """i64 `[B]`: the steps of each item.

    Raises:
        MismatchError: The columns of an item differ in length.
    """
    found: Array | None = None
    for column, splits, squeezed in zip(block.columns, block.splits, block.squeezed, strict=True):
        lengths = np.full(block.size, 1 if squeezed else column.shape[1]) if splits is None else np.diff(splits)
        if found is None:
            found = lengths
        elif not np.array_equal(found, lengths):
            raise MismatchError("Sampled trajectory cannot be decomposed into timesteps: its columns differ in length.")
    return np.zeros(0, np.int64) if found is None else found


def _ragged_shape(wanted: Shape, column: Array, splits: Array) -> Shape:
    """The shape that all items share; where one differs from what is wanted, that one's."""
    cell = column.shape[1:]
    if not wanted or wanted[0] is None:
        return (None, *cell)
    lengths = np.diff(splits)
    wrong = lengths[lengths != wanted[0]]
    return (int(wrong[0]) if len(wrong) else wanted[0], *cell)


def _padded(specs: Sequence[TensorSpec], block: ColumnBlock) -> list[TensorSpec]:
    """As many specs as columns, so that these can be described also where they are too many or too few."""
    missing = len(block.columns) - len(specs)
    filling = [TensorSpec(None, np.float32)] * missing if missing > 0 else []
    return [*specs, *filling][: len(block.columns)]


def _check(table: str, specs: Sequence[TensorSpec], found: Sequence[tuple[Any, Shape]]) -> None:
    if len(specs) != len(found):
        listed = ", ".join(f"{at}: {_spec_text(dtype, shape)}" for at, (dtype, shape) in enumerate(found))
        raise MismatchError(
            f"Inconsistent number of tensors received from table '{table}'.  Specification has {len(specs)} tensors, "
            f"but data coming from the table shows {len(found)} tensors.  Received: {listed}."
        )
    for at, (spec, (dtype, shape)) in enumerate(zip(specs, found, strict=True)):
        if spec.dtype != dtype or not is_compatible(spec.shape, shape):
            raise MismatchError(
                f"Received incompatible tensor at flattened index {at} from table '{table}'.  "
                f"Specification has (dtype, shape): {_spec_text(spec.dtype, spec.shape)}.  "
                f"Tensor has (dtype, shape): {_spec_text(dtype, shape)}."
            )


def check_signature(table: str, specs: Sequence[TensorSpec], signature: Any, axes: int = 0) -> None:  # noqa: ANN401, a nest
    """Checks what is asked for against what the table says of its items.

    Args:
        table: Its name.
        specs: What is asked for.
        signature: A nest of specs.
        axes: Leading axes of `specs` that the signature does not have.

    Raises:
        MismatchError: They do not go together.
    """
    said = [as_spec(leaf) for leaf in _nest.flatten(signature)]
    listed = ", ".join(f"{at}: {_spec_text(spec.dtype, spec.shape)}" for at, spec in enumerate(said))
    if len(specs) != len(said):
        raise MismatchError(
            f"Inconsistent number of tensors requested from table '{table}'.  Requested {len(specs)} tensors, but "
            f"table signature shows {len(said)} tensors.  Table signature: {listed}."
        )
    for at, (spec, other) in enumerate(zip(specs, said, strict=True)):
        shape = None if spec.shape is None else spec.shape[axes:]
        if spec.dtype != other.dtype or not is_compatible(shape, other.shape):
            raise MismatchError(
                f"Requested incompatible tensor at flattened index {at} from table '{table}'.  "
                f"Requested (dtype, shape): {_spec_text(spec.dtype, shape)}.  "
                f"Signature (dtype, shape): {_spec_text(other.dtype, other.shape)}.  Table signature: {listed}."
            )


def _spec_text(dtype: Any, shape: Shape) -> str:  # noqa: ANN401, NumPy's
    axes = "<unknown>" if shape is None else f"[{','.join('?' if axis is None else str(axis) for axis in shape)}]"
    return f"({dtype_name(dtype)}, {axes})"
