"""Converts items to dataset elements, whole trajectories or single steps, and checks them against specs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _nest
from engram.compat.reverb._block_reader import DtypeMismatchError, MismatchError
from engram.compat.reverb._signatures import shape_text
from engram.compat.reverb.replay_sample import SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec, as_spec, dtype_name, is_compatible
from engram.data.column_block import Array, ColumnBlock
from engram.nests import Nest

__all__ = [
    "Convert",
    "Elements",
    "TensorBlock",
    "check_signature",
    "fixed_length_timesteps",
    "sequences",
    "split_elements",
    "steps_per_item",
    "timesteps",
    "trajectories",
]

Shape = tuple[int | None, ...] | None


class TensorBlock(NamedTuple):
    """One tensor of several elements.

    Attributes:
        values: The values of N elements, `[N, ...]`. If ragged, the concatenated rows of all elements.
        splits: None, or, if ragged, i64 `[N + 1]`: element `i` has the rows `splits[i] : splits[i + 1]`.
    """

    values: Array
    splits: Array | None = None

    @property
    def size(self) -> int:
        """Number of elements, N."""
        return len(self.values) if self.splits is None else len(self.splits) - 1


Elements = list[TensorBlock]
"""Several elements: the five tensors of `SampleInfo`, followed by the data tensors."""

Convert = Callable[[str, Sequence[TensorSpec], ColumnBlock], Elements]
"""Converts items to elements, given the table's name and the specs of the data."""


def trajectories(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
    """Converts each item to one element of whole columns."""
    types = [
        (column.dtype, column.shape[1:] if splits is None else _ragged_shape(spec.shape, column, splits))
        for spec, column, splits in zip(_with_column_count(specs, block), block.columns, block.splits, strict=True)
    ]
    _check_types(table, specs, types)
    return [*map(TensorBlock, _sample_info(block)), *map(TensorBlock, block.columns, block.splits)]


def timesteps(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
    """Converts each step of each item to one element with the item's info."""
    lengths = steps_per_item(table, block)
    columns = block.step_columns()
    _check_types(table, specs, [(column.dtype, column.shape[1:]) for column in columns])
    return [*(TensorBlock(np.repeat(field, lengths)) for field in _sample_info(block)), *map(TensorBlock, columns)]


def sequences(sequence_length: int | None) -> Convert:
    """Returns a function that converts each item to one element of whole columns, with its info repeated per step.

    The function rejects items that do not have `sequence_length` steps, unless this is None.
    """

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        lengths = steps_per_item(table, block)
        _check_lengths(table, sequence_length, lengths)
        splits = next((splits for splits in block.splits if splits is not None), None)
        info: list[Array] = [np.repeat(field, lengths) for field in _sample_info(block)]
        columns: list[Array]
        if splits is None:
            info = [field.reshape(block.size, -1) for field in info]
            columns = [
                column[:, None] if squeezed else column
                for column, squeezed in zip(block.columns, block.squeezed, strict=True)
            ]
            block = block._replace(columns=columns)
        return [*(TensorBlock(field, splits) for field in info), *trajectories(table, specs, block)[len(info) :]]

    return convert


def fixed_length_timesteps(sequence_length: int) -> Convert:
    """Returns `timesteps` with a check that every item has `sequence_length` steps."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        _check_lengths(table, sequence_length, steps_per_item(table, block))
        return timesteps(table, specs, block)

    return convert


def _sample_info(block: ColumnBlock) -> tuple[Array, ...]:
    """Returns the arrays for the fields of `SampleInfo`, which are the first fields of the block's `Info`."""
    return block.info[: len(SampleInfo._fields)]


def _check_lengths(table: str, sequence_length: int | None, lengths: Array) -> None:
    """Checks that all items have `sequence_length` steps; None allows any number."""
    if sequence_length is not None and np.any(lengths != sequence_length):
        length = lengths[lengths != sequence_length][0]
        raise MismatchError(
            f"Received sequence of invalid length from table '{table}': it has {length} steps, `sequence_length` is "
            f"{sequence_length}."
        )


def steps_per_item(table: str, block: ColumnBlock) -> Array:
    """Returns the number of steps of each item, i64 `[B]`. A column without a time axis has one step."""
    steps: Array | None = None
    for counts in block.step_counts():
        lengths = np.ones(block.size, np.int64) if counts is None else counts
        if steps is None:
            steps = lengths
        elif lengths is not steps and not np.array_equal(steps, lengths):
            item = np.flatnonzero(steps != lengths)[0]
            raise MismatchError(
                f"Sampled trajectory cannot be decomposed into timesteps: columns of an item of table `{table}` have "
                f"{steps[item]} and {lengths[item]} steps."
            )
    return np.zeros(0, np.int64) if steps is None else steps


def split_elements(elements: Elements) -> Iterator[list[Array]]:
    """Yields the arrays of each element, without the axis of the elements."""
    all_splits = [None if tensor.splits is None else tensor.splits.tolist() for tensor in elements]
    for i in range(elements[0].size):
        yield [
            tensor.values[i, ...] if splits is None else tensor.values[splits[i] : splits[i + 1]]
            for tensor, splits in zip(elements, all_splits, strict=True)
        ]


def _ragged_shape(spec_shape: Shape, column: Array, splits: Array) -> Shape:
    """The shape of a ragged column to compare with `spec_shape`: of an item that does not fit, if there is one."""
    value_shape = column.shape[1:]
    if not spec_shape or spec_shape[0] is None:
        return (None, *value_shape)
    lengths = np.diff(splits)
    other_lengths = lengths[lengths != spec_shape[0]]
    return (int(other_lengths[0]) if len(other_lengths) else spec_shape[0], *value_shape)


def _with_column_count(specs: Sequence[TensorSpec], block: ColumnBlock) -> list[TensorSpec]:
    """Cuts or pads the specs to the number of columns, so that the columns can be listed in an error."""
    if (missing := len(block.columns) - len(specs)) <= 0:
        return list(specs[: len(block.columns)])
    return [*specs, *[TensorSpec(None, np.float32)] * missing]


def _check_types(table: str, specs: Sequence[TensorSpec], types: Sequence[tuple[Any, Shape]]) -> None:
    if len(specs) != len(types):
        listed = ", ".join(f"{index}: {_spec_text(dtype, shape)}" for index, (dtype, shape) in enumerate(types))
        raise MismatchError(
            f"Inconsistent number of tensors received from table '{table}'.  Specification has {len(specs)} tensors, "
            f"but data coming from the table shows {len(types)} tensors.  Received: {listed}."
        )
    for index, (spec, (dtype, shape)) in enumerate(zip(specs, types, strict=True)):
        if spec.dtype != dtype or not is_compatible(spec.shape, shape):
            kind = MismatchError if spec.dtype == dtype else DtypeMismatchError
            raise kind(
                f"Received incompatible tensor at flattened index {index} from table '{table}'.  "
                f"Specification has (dtype, shape): {_spec_text(spec.dtype, spec.shape)}.  "
                f"Tensor has (dtype, shape): {_spec_text(dtype, shape)}."
            )


def check_signature(table: str, specs: Sequence[TensorSpec], signature: Nest, extra_axes: int = 0) -> None:
    """Checks specs against a table's signature, which does not include the first `extra_axes` axes of the specs."""
    signature_specs = [as_spec(leaf) for leaf in _nest.flatten(signature)]
    listed = ", ".join(f"{index}: {_spec_text(spec.dtype, spec.shape)}" for index, spec in enumerate(signature_specs))
    if len(specs) != len(signature_specs):
        raise MismatchError(
            f"Inconsistent number of tensors requested from table '{table}'.  Requested {len(specs)} tensors, but "
            f"table signature shows {len(signature_specs)} tensors.  Table signature: {listed}."
        )
    for index, (spec, other) in enumerate(zip(specs, signature_specs, strict=True)):
        shape = None if spec.shape is None else spec.shape[extra_axes:]
        if spec.dtype != other.dtype or not is_compatible(shape, other.shape):
            raise MismatchError(
                f"Requested incompatible tensor at flattened index {index} from table '{table}'.  "
                f"Requested (dtype, shape): {_spec_text(spec.dtype, shape)}.  "
                f"Signature (dtype, shape): {_spec_text(other.dtype, other.shape)}.  Table signature: {listed}."
            )


def _spec_text(dtype: npt.DTypeLike, shape: Shape) -> str:
    return f"({dtype_name(dtype)}, {shape_text(shape)})"
