"""Arrays of item keys and priorities, as arguments."""

from typing import Any

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["batch_priorities", "key_array", "priority_array"]


def _one_dimensional(what: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    _checks.not_masked(what, values)
    array = np.ascontiguousarray(values)
    if array.ndim != 1:
        raise InvalidArgumentError(f"{what} must have one axis; got shape {array.shape}")
    return array


def key_array(values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Returns keys as u64 `[B]`. Integers of fewer than 64 bits are rejected: by default, JAX cuts keys to 32 bits."""
    array = _one_dimensional("`keys`", values)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgumentError(f"`keys` must be integers; got {array.dtype}")
    if array.dtype.itemsize < np.dtype(np.uint64).itemsize and array.size:
        raise InvalidArgumentError(
            f"`keys` must be integers of 64 bits, as in `batch.info.key`; got {array.dtype}. JAX cuts keys to 32 bits: "
            "keep `batch.info` as NumPy arrays"
        )
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise InvalidArgumentError(f"`keys` must be at least 0; got {array.min()}")
    return array.astype(np.uint64, copy=False)


def priority_array(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns priorities as f64 `[B]`."""
    return _float64(_one_dimensional("`priorities`", values))


def batch_priorities(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns priorities as f64 `[B]`, or a single priority for all items as f64 `[]`."""
    _checks.not_masked("`priorities`", values)
    array = np.asarray(values)
    if array.ndim > 1:
        raise InvalidArgumentError(f"`priorities` must be a number or have one axis; got shape {array.shape}")
    return _float64(np.array(array, order="C"))


def _float64(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    try:
        return array.astype(np.float64, casting="same_kind", copy=False)
    except TypeError:
        # To NumPy, floats of other packages, such as bfloat16, are not of the same kind as its own.
        if array.dtype.kind == "V" and array.dtype.names is None and np.can_cast(array.dtype, np.float64):
            return array.astype(np.float64)
        raise InvalidArgumentError(f"`priorities` must be numbers; got {array.dtype}") from None
