"""Checks items against the signature of their table before they are sent, as Reverb's clients do."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.compat.reverb import _arguments
from engram.compat.reverb._signatures import columns_text, named_specs, shape_text
from engram.compat.reverb.tensor_spec import dtype_name, is_compatible

__all__ = ["ColumnType", "check_steps", "check_trajectory", "checked_priority", "column_types"]


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


def checked_priority(priority: float) -> float:
    """Returns the priority of an item, a number but not NaN, as a float."""
    if type(priority) is not float:
        priority = _arguments.number("priority", priority)
    if math.isnan(priority):
        raise ValueError("`priority` must not be nan.")
    return priority


def column_types(signature: Any) -> list[ColumnType] | None:  # noqa: ANN401, a nest of specs
    """The columns of a signature; None if there is no signature."""
    if signature is None:
        return None
    return [ColumnType(name, spec.dtype, spec.shape) for name, spec in named_specs(signature)]


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
    problem = None
    if len(signature) != len(steps):
        problem = (
            f"inconsistent with table signature. Append was called with {len(steps)} tensors, but table requires "
            f"{len(signature)} tensors per entry"
        )
    for number, (expected, step) in enumerate(zip(signature, steps, strict=False)):
        item = step._replace(shape=(num_timesteps, *(step.shape or ())))
        if problem is None and not (expected.fits(step) or expected.fits(item)):
            name = f" '{expected.name}'" if expected.name else ""
            problem = (
                f"inconsistent with the table signature. At flattened index {number}, saw a tensor of dtype "
                f"{dtype_name(step.dtype)}, shape {shape_text(step.shape)}, but expected tensor{name} of "
                f"dtype {dtype_name(expected.dtype)} and shape compatible with {shape_text(expected.shape)}"
            )
    if problem is not None:
        raise ValueError(
            f"Unable to CreateItem in table '{table}' because Append was called with a tensor signature {problem}. "
            f"(Flattened) table signature: {columns_text(signature)}, data signature: {columns_text(steps)}."
        )
