"""Items held against a table's signature, as Reverb's clients do before they send them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.compat.reverb import _nest
from engram.compat.reverb._steps import shape_text
from engram.compat.reverb.tensor_spec import as_spec, dtype_name, is_compatible

__all__ = ["Wanted", "check_step", "check_trajectory", "wanted"]


class Wanted(NamedTuple):
    """A column, as a signature or an item has it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        return f"Tensor<name: '{self.name}', dtype: {dtype_name(self.dtype)}, shape: {shape_text(self.shape)}>"

    def fits(self, other: "Wanted") -> bool:
        """Dtypes are equal and the shapes compatible; names do not count."""
        return self.dtype == other.dtype and is_compatible(self.shape, other.shape)


def wanted(signature: Any) -> list[Wanted] | None:  # noqa: ANN401, a nest of specs
    """The columns of a signature; None: it has none."""
    if signature is None:
        return None
    columns = []
    for path, leaf in _nest.flatten_with_path(signature):
        spec = as_spec(leaf)
        name = "/".join(str(part) for part in (*path, *([spec.name] if spec.name else [])))
        columns.append(Wanted(name, spec.dtype, spec.shape))
    return columns


def check_trajectory(table: str, columns: Sequence[Wanted], found: Sequence[Wanted]) -> None:
    """Checks an item's columns.

    Raises:
        ValueError: They are not those of the table.
    """
    why = _why_not(columns, found)
    if why is not None:
        raise ValueError(
            f"Unable to create item in table '{table}' since the provided trajectory is inconsistent with the table "
            f"signature. {why}\n\nThe table signature is:\n\t{_listed(columns)}\n\n"
            f"The provided trajectory signature is:\n\t{_listed(found)}.\n"
        )


def _why_not(columns: Sequence[Wanted], found: Sequence[Wanted]) -> str | None:
    if len(columns) != len(found):
        return f"The trajectory has {len(found)} columns but the table signature has {len(columns)} columns."
    for number, (want, have) in enumerate(zip(columns, found, strict=True)):
        if not want.fits(have):
            return (
                f"The table expects column {number} to be a {_kind(want)} tensor but got a {_kind(have)} tensor."
            )
    return None


def check_step(table: str, columns: Sequence[Wanted], found: Sequence[Wanted], num_timesteps: int) -> None:
    """Checks the steps of an item whose columns are all those of its steps: a signature may tell of either.

    Raises:
        ValueError: They fit neither as a step nor as a trajectory.
    """
    if len(columns) != len(found):
        raise ValueError(
            f"Unable to CreateItem in table '{table}' because Append was called with a tensor signature inconsistent "
            f"with table signature. Append was called with {len(found)} tensors, but table requires {len(columns)} "
            f"tensors per entry. Table signature: {_listed(columns)}, data signature: {_listed(found)}."
        )
    for number, (want, have) in enumerate(zip(columns, found, strict=True)):
        whole = have._replace(shape=(num_timesteps, *(have.shape or ())))
        if not (want.fits(have) or want.fits(whole)):
            raise ValueError(
                f"Unable to CreateItem in table '{table}' because Append was called with a tensor signature "
                f"inconsistent with the table signature. At flattened index {number}, saw a tensor of dtype "
                f"{dtype_name(have.dtype)}, shape {shape_text(have.shape)}, but expected tensor '{want.name}' of "
                f"dtype {dtype_name(want.dtype)} and shape compatible with {shape_text(want.shape)}. (Flattened) table "
                f"signature: {_listed(columns)}, data signature: {_listed(found)}."
            )


def _kind(column: Wanted) -> str:
    return f"{dtype_name(column.dtype)} {shape_text(column.shape)}"


def _listed(columns: Iterable[Wanted]) -> str:
    return ", ".join(f"{number}: {column}" for number, column in enumerate(columns))
