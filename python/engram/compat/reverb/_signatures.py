"""Checks data against signatures before it is sent, as Reverb's clients do, with Reverb's error texts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb.tensor_spec import dtype_name, is_compatible
from engram.nests import Nest

__all__ = [
    "ColumnType",
    "check_step",
    "check_steps",
    "check_trajectory",
    "checked_priority",
    "column_types",
    "columns_text",
    "shape_text",
]


class ColumnType(NamedTuple):
    """Name, dtype and shape of a column of a signature or of an item.

    In a signature, an axis of None has any size, and a shape of None is any shape.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def fits(self, other: "ColumnType") -> bool:
        """True if the dtypes are equal and the shapes compatible. Names may differ."""
        return self.dtype == other.dtype and is_compatible(self.shape, other.shape)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)} {shape_text(self.shape)}"


def column_types(signature: Nest) -> list[ColumnType] | None:
    """The columns of a signature, each with its path and then the spec's own name; None if there is no signature.

    The name is empty for a signature that is a single spec without a name.
    """
    if signature is None:
        return None
    return [
        ColumnType("/".join([*map(str, path), *([spec.name] if spec.name else [])]), spec.dtype, spec.shape)
        for path, spec in _nest.flatten_with_path(signature)
    ]


def checked_priority(priority: float) -> float:
    """Returns the priority of an item, a number but not NaN, as a float."""
    if type(priority) is not float:
        priority = _arguments.number("priority", priority)
    if math.isnan(priority):
        raise ValueError("`priority` must not be nan.")
    return priority


def shape_text(shape: Iterable[int | None] | None) -> str:
    """Formats a shape as Reverb does: `[2,?]`."""
    if shape is None:
        return "<unknown>"
    return f"[{','.join('?' if axis is None else str(axis) for axis in shape)}]"


def columns_text(columns: Iterable[ColumnType]) -> str:
    """Formats columns as Reverb does: name, dtype and shape of each. Leaves out empty names."""
    return ", ".join(
        f"{index}: Tensor<{_name_text(name)}dtype: {dtype_name(dtype)}, shape: {shape_text(shape)}>"
        for index, (name, dtype, shape) in enumerate(columns)
    )


def _name_text(name: str) -> str:
    return f"name: '{name}', " if name else ""


def check_step(table: str, signature: Nest, columns: list[npt.NDArray[Any]]) -> None:
    """Checks that an item of one step fits a table's signature. None as signature allows any data.

    The signature may describe the step, `[...]`, or the item, `[1, ...]`.
    """
    expected = column_types(signature)
    if expected is None:
        return
    data = [ColumnType("", column.dtype, column.shape) for column in columns]
    if len(expected) != len(data):
        count = "1 column" if len(data) == 1 else f"{len(data)} columns"
        problem = f"it has {count}, the signature has {len(expected)}"
    elif misfit := _first_misfit(expected, data, 1):
        index, spec, column = misfit
        name = f"'{spec.name}'" if spec.name else "the signature"
        problem = (
            f"flattened index {index} is of dtype {dtype_name(column.dtype)} and shape {shape_text(column.shape)}, "
            f"but {name} is of dtype {dtype_name(spec.dtype)} and shape compatible with {shape_text(spec.shape)}"
        )
    else:
        return
    raise ValueError(
        f"Unable to insert into table '{table}' since the data is inconsistent with the table signature: {problem}. "
        f"Table signature: {columns_text(expected)}. Data signature: {columns_text(data)}."
    )


def check_trajectory(table: str, signature: Sequence[ColumnType], columns: Sequence[ColumnType]) -> None:
    """Checks the columns of an item against the table's signature."""
    problem = None
    if len(signature) != len(columns):
        problem = f"The trajectory has {len(columns)} columns but the table signature has {len(signature)} columns."
    for number, (expected, actual) in enumerate(zip(signature, columns, strict=False)):
        if problem is None and not expected.fits(actual):
            problem = f"The table expects column {number} to be a {expected} tensor but got a {actual} tensor."
    if problem is not None:
        raise ValueError(
            f"Unable to create item in table '{table}' since the provided trajectory is inconsistent with the table "
            f"signature. {problem}\n\nThe table signature is:\n\t{columns_text(signature)}\n\n"
            f"The provided trajectory signature is:\n\t{columns_text(columns)}.\n"
        )


def check_steps(table: str, signature: Sequence[ColumnType], steps: Sequence[ColumnType], num_timesteps: int) -> None:
    """Checks an item of T = `num_timesteps` steps. The signature describes a step, `[...]`, or the item, `[T, ...]`."""
    if len(signature) != len(steps):
        problem = (
            f"inconsistent with table signature. Append was called with {len(steps)} tensors, but table requires "
            f"{len(signature)} tensors per entry"
        )
    elif misfit := _first_misfit(signature, steps, num_timesteps):
        number, expected, step = misfit
        name = f" '{expected.name}'" if expected.name else ""
        problem = (
            f"inconsistent with the table signature. At flattened index {number}, saw a tensor of dtype "
            f"{dtype_name(step.dtype)}, shape {shape_text(step.shape)}, but expected tensor{name} of "
            f"dtype {dtype_name(expected.dtype)} and shape compatible with {shape_text(expected.shape)}"
        )
    else:
        return
    raise ValueError(
        f"Unable to CreateItem in table '{table}' because Append was called with a tensor signature {problem}. "
        f"(Flattened) table signature: {columns_text(signature)}, data signature: {columns_text(steps)}."
    )


def _first_misfit(
    signature: Sequence[ColumnType], steps: Sequence[ColumnType], length: int
) -> tuple[int, ColumnType, ColumnType] | None:
    """The first column whose steps `[...]` fit the signature neither as such nor as an item, `[length, ...]`."""
    for number, (expected, step) in enumerate(zip(signature, steps, strict=True)):
        item = step._replace(shape=(length, *(step.shape or ())))
        if not (expected.fits(step) or expected.fits(item)):
            return number, expected, step
    return None
