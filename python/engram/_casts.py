"""Converts arrays to the dtype of a column."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import EngramError, SignatureError

__all__ = ["cast", "is_same_kind"]


@lru_cache  # NumPy takes longer than to convert a small array
def is_same_kind(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """True if values of a dtype are converted to another one."""
    are_integers = given.kind in "iu" and dtype.kind in "iu"
    return are_integers or np.can_cast(given, dtype, "same_kind")


@lru_cache
def _is_safe(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    return np.can_cast(given, dtype)


def cast(
    array: npt.NDArray[Any], dtype: np.dtype[Any], what: str, error: type[EngramError] = SignatureError
) -> npt.NDArray[Any]:
    """Returns an array in another dtype of the same kind, in C order. `what` begins the text of the error.

    Floats are rounded.

    Raises:
        error: An integer is out of the range of an integer dtype, or a finite number out of that of a float dtype.
    """
    if _is_safe(array.dtype, dtype):
        return array.astype(dtype, "C", copy=False)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for extreme in (array.min(), array.max()) if array.size else ():
            if not limits.min <= int(extreme) <= limits.max:
                raise error(f"{what} {extreme}, which {dtype} cannot hold")
        return array.astype(dtype, "C")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype, "C")
    is_finite = np.isfinite(result)
    if np.count_nonzero(is_finite) < result.size:  # `all` takes longer
        lost = array[np.isfinite(array) & ~is_finite]
        if lost.size:
            largest = f"{_largest(dtype):.8g}"
            raise error(f"{what} {lost[0]}, which {dtype} cannot hold; its largest value is {largest}")
    return result


def _largest(dtype: np.dtype[Any]) -> float:
    if dtype.isbuiltin == 1:  # of NumPy itself
        return float(np.finfo(dtype).max)
    import ml_dtypes  # noqa: PLC0415, only arrays of its dtypes need it

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
