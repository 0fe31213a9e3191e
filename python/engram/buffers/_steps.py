"""Prepares steps for a replay buffer: derives their signature, and converts values to the dtype of their column."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._casts import cast, is_same_kind
from engram._nest_checks import check_equal_lists, check_number_lists, check_one_nest
from engram.errors import InvalidArgumentError, SignatureError
from engram.specs import ArraySpec

__all__ = [
    "as_array",
    "check_same_spec",
    "convert",
    "derive_signature",
    "env_id_array",
    "spec_text",
]


def derive_signature(steps: Nest, leading_axes: Sequence[str], *, are_columns: bool = False) -> Nest:
    """Returns the signature of steps whose leaves have these leading axes.

    With `are_columns`, the elements of a list are columns, also if there are as many as environments.
    """
    num_leading_axes = len(leading_axes)
    check_number_lists(steps)
    if leading_axes:
        check_one_nest("`steps`", steps, "step", tuples="T" in leading_axes)
    leaves, names, structure = _engram.flatten(steps)
    arrays = [as_array(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    for array, name in zip(arrays, names, strict=True):
        if array.ndim < num_leading_axes:
            advice = (
                "for a single step, use `ReplayBuffer.add`"
                if num_leading_axes == 1
                else "if there is one environment, add an axis of size 1 in front"
            )
            raise SignatureError(
                f"{_column(name)} must have shape [{', '.join(leading_axes)}, ...]; got {list(array.shape)}; {advice}"
            )
    specs = [ArraySpec(array.shape[num_leading_axes:], array.dtype) for array in arrays]
    if arrays and leading_axes and not are_columns:
        num_envs = len(arrays[0]) if "num_envs" in leading_axes else None
        check_equal_lists(steps, "step" if "T" in leading_axes else "environment", num_envs=num_envs)
    return _engram.unflatten(structure, specs)


def convert(value: object, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """Returns a value as an array of this dtype, in C order.

    The native engine calls it for values that it cannot copy as they are, such as arrays of another dtype.
    """
    array = as_array(value, name)
    if array.dtype != dtype:
        if not is_same_kind(array.dtype, dtype):
            raise SignatureError(
                f"{_column(name)} must be {dtype}, or of the same kind; got {array.dtype}; convert it, or declare "
                "the dtype in `signature`"
            )
        return cast(array, dtype, f"{_column(name)} has")
    return np.require(array, dtype, ["C", "A"])


def spec_text(spec: ArraySpec) -> str:
    """Returns the dtype and shape of a column for error texts."""
    return f"{np.dtype(spec.dtype)}{list(spec.shape)}"


def check_same_spec(what: str, names: Sequence[str], specs: Sequence[ArraySpec], one: int, other: int) -> None:
    """Checks that two columns of a step have the same dtype and shape. Errors name what needs that."""
    given, expected = spec_text(specs[one]), spec_text(specs[other])
    if given != expected:
        raise SignatureError(
            f"{what}: columns `{names[one]}` and `{names[other]}` must have one dtype and shape; got {given} and "
            f"{expected}"
        )


def env_id_array(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Returns the numbers of environments as i64 `[B]`."""
    _checks.not_masked("`env_ids`", values)
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgumentError(
            f"`env_ids` must be integers with one axis; got {_checks.short_repr(values)}; for a mask, pass "
            "np.flatnonzero(mask)"
        )
    return array.astype(np.int64)


def _column(name: str) -> str:
    """Returns a column's name for error texts, as the native engine formats it."""
    return f"column `{name}`" if name else "the data"


def as_array(value: object, name: str) -> npt.NDArray[Any]:
    """Returns a value of a step as an array of numbers. Rejects text, objects and what hides missing values."""
    array = np.asarray(_engram.as_array(value, name))
    if array.dtype.kind in "OSUT":
        if array.dtype.kind != "O":
            kind = "text"
        elif isinstance(value, np.ndarray):
            kind = "an array of dtype object"
        else:
            kind = f"a {type(value).__name__}"
        raise SignatureError(f"{_column(name)} must be an array of numbers or a number; got {kind}")
    return array
