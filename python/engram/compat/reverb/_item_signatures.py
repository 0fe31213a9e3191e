"""Items of writers held against tables' signatures, as Reverb's clients do before they send them."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.compat.reverb import _arguments
from engram.compat.reverb._signatures import columns_text, named_specs, shape_text
from engram.compat.reverb.tensor_spec import dtype_name, is_compatible

__all__ = ["ColumnType", "check_steps", "check_trajectory", "checked_priority", "column_types"]


class ColumnType(NamedTuple):
    """A column, as a signature or an item has it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def fits(self, other: "ColumnType") -> bool:
        """The dtypes are equal and the shapes compatible; names do not count."""
        return self.dtype == other.dtype and is_compatible(self.shape, other.shape)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)} {shape_text(self.shape)}"


def checked_priority(priority: float) -> float:
    """The priority of an item, if it is a number.

    Raises:
        TypeError: It has another type.
        ValueError: It is NaN.
    """
    if type(priority) is not float:
        priority = _arguments.number("priority", priority)
    if math.isnan(priority):
        raise ValueError("`priority` must not be nan.")
    return priority


def column_types(signature: Any) -> list[ColumnType] | None:  # noqa: ANN401, a nest of specs
    """The columns of a signature; None: there is none."""
    if signature is None:
        return None
    return [ColumnType(name, spec.dtype, spec.shape) for name, spec in named_specs(signature)]


def check_trajectory(table: str, asked: Sequence[ColumnType], found: Sequence[ColumnType]) -> None:
    """Checks the columns of an item.

    Raises:
        ValueError: They are not those of the table.
    """
    why = None
    if len(asked) != len(found):
        why = f"The trajectory has {len(found)} columns but the table signature has {len(asked)} columns."
    for number, (want, have) in enumerate(zip(asked, found, strict=False)):
        if why is None and not want.fits(have):
            why = f"The table expects column {number} to be a {want} tensor but got a {have} tensor."
    if why is not None:
        raise ValueError(
            f"Unable to create item in table '{table}' since the provided trajectory is inconsistent with the table "
            f"signature. {why}\n\nThe table signature is:\n\t{columns_text(asked)}\n\n"
            f"The provided trajectory signature is:\n\t{columns_text(found)}.\n"
        )


def check_steps(table: str, asked: Sequence[ColumnType], steps: Sequence[ColumnType], num_timesteps: int) -> None:
    """Checks an item of all columns of so many steps: the signature may tell of a step, or of the item.

    Raises:
        ValueError: It fits neither.
    """
    why = None
    if len(asked) != len(steps):
        why = (
            f"inconsistent with table signature. Append was called with {len(steps)} tensors, but table requires "
            f"{len(asked)} tensors per entry"
        )
    for number, (want, have) in enumerate(zip(asked, steps, strict=False)):
        whole = have._replace(shape=(num_timesteps, *(have.shape or ())))
        if why is None and not (want.fits(have) or want.fits(whole)):
            why = (
                f"inconsistent with the table signature. At flattened index {number}, saw a tensor of dtype "
                f"{dtype_name(have.dtype)}, shape {shape_text(have.shape)}, but expected tensor '{want.name}' of "
                f"dtype {dtype_name(want.dtype)} and shape compatible with {shape_text(want.shape)}"
            )
    if why is not None:
        raise ValueError(
            f"Unable to CreateItem in table '{table}' because Append was called with a tensor signature {why}. "
            f"(Flattened) table signature: {columns_text(asked)}, data signature: {columns_text(steps)}."
        )
