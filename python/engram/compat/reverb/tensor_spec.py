"""Tensor specs: what a signature says of each column. TensorFlow's are accepted wherever these are.

A signature of items whose observations are `[T, 4]`: `{"observation": TensorSpec([None, 4], np.float32)}`.
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BoundedTensorSpec", "TensorSpec", "as_spec", "dtype_name", "is_compatible", "is_spec", "public"]

_TF_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


class TensorSpec:
    """Shape, dtype and name of a tensor; a value.

    Attributes:
        shape: A tuple of sizes, None where any will do; or None: of any rank.
        dtype: A `numpy.dtype` of this machine's byte order; `object` for text.
        name: Text, or None.
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, shape: Any, dtype: Any = np.float32, name: str | None = None) -> None:  # noqa: ANN401, TensorFlow's too
        """Makes a spec.

        Args:
            shape: Sizes, None where any will do; one size: of rank 1; a `tf.TensorShape`; or None: of any rank.
            dtype: Anything `numpy.dtype` understands, text's dtypes and `"string"` meaning text; or a `tf.DType`.
                `float32` if none is given.
            name: What to call it in messages; None: by its path alone.

        Raises:
            TypeError: The dtype is none, or one of dates or records; or the shape is no sequence of sizes from 0.
        """
        self.shape = _shape(shape)
        self.dtype = _dtype(dtype)
        self.name = name

    def _key(self) -> tuple[Any, ...]:
        return (self.shape, self.dtype, self.name)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __reduce__(self) -> Any:  # noqa: ANN401, what pickle wants
        return (type(self), (self.shape, self.dtype, self.name))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={dtype_name(self.dtype)}, name={self.name!r})"


class BoundedTensorSpec(TensorSpec):
    """A tensor spec with bounds, which nothing checks.

    Attributes:
        minimum: An array of the spec's dtype, a scalar or of a shape that broadcasts with the spec's: the least value
            that is allowed.
        maximum: Likewise: the greatest.
    """

    __slots__ = ("maximum", "minimum")

    def __init__(
        self,
        shape: Any,  # noqa: ANN401, as of `TensorSpec`
        dtype: Any,  # noqa: ANN401, as of `TensorSpec`
        minimum: npt.ArrayLike,
        maximum: npt.ArrayLike,
        name: str | None = None,
    ) -> None:
        """Makes a spec.

        Args:
            shape: As of `TensorSpec`.
            dtype: As of `TensorSpec`.
            minimum: The least value, or an array of them, inclusive.
            maximum: The greatest, likewise.
            name: As of `TensorSpec`.

        Raises:
            TypeError: As of `TensorSpec`, the dtype is text's, or a bound is None.
            ValueError: A bound is no value of the dtype, or its shape does not broadcast with the spec's.
        """
        super().__init__(shape, dtype, name)
        if self.dtype == object:
            raise TypeError("text has no bounds; use a TensorSpec")
        self.minimum = self._bound("minimum", minimum)
        self.maximum = self._bound("maximum", maximum)

    def _bound(self, which: str, bound: npt.ArrayLike) -> npt.NDArray[Any]:
        try:
            made = np.asarray(bound, dtype=self.dtype)
        except (OverflowError, ValueError):
            raise ValueError(f"`{which}` must be of the dtype {dtype_name(self.dtype)}; got {bound!r}") from None
        sizes = zip(reversed(made.shape), reversed(self.shape or ()), strict=False)
        if any(size not in (1, axis) and axis not in (None, 1) for size, axis in sizes):
            raise ValueError(f"`{which}` has the shape {made.shape}, which does not broadcast with {self.shape}")
        return made

    def _key(self) -> tuple[Any, ...]:
        bounds = ((bound.shape, bound.tobytes()) for bound in (self.minimum, self.maximum))
        return (*super()._key(), *bounds)

    def __reduce__(self) -> Any:  # noqa: ANN401, what pickle wants
        return (type(self), (self.shape, self.dtype, self.minimum, self.maximum, self.name))

    def __repr__(self) -> str:
        return (
            f"BoundedTensorSpec(shape={self.shape}, dtype={dtype_name(self.dtype)}, name={self.name!r}, "
            f"minimum={self.minimum!r}, maximum={self.maximum!r})"
        )


def is_spec(value: object) -> bool:
    """True for a spec of this module's or of TensorFlow's; other things with a shape and a dtype are none.

    Args:
        value: Anything.
    """
    if isinstance(value, TensorSpec):
        return True
    tf = sys.modules.get("tensorflow")
    return tf is not None and hasattr(tf, "TensorSpec") and isinstance(value, tf.TensorSpec)


def as_spec(value: Any) -> TensorSpec:  # noqa: ANN401, TensorFlow's too
    """This module's spec for one of either kind.

    Args:
        value: A spec; anything with a `shape`, a `dtype` and a `name`, and perhaps `minimum` and `maximum`, will do.

    Raises:
        TypeError: It is no such thing, or has a dtype that `TensorSpec` does not take.
        ValueError: Its bounds do not go with its shape or dtype.
    """
    if isinstance(value, TensorSpec):
        return value
    if not all(hasattr(value, part) for part in ("shape", "dtype", "name")):
        raise TypeError(f"a tensor spec has a shape, a dtype and a name; got {value!r} ({type(value).__name__})")
    if hasattr(value, "minimum") and hasattr(value, "maximum"):
        return BoundedTensorSpec(value.shape, value.dtype, value.minimum, value.maximum, value.name)
    return TensorSpec(value.shape, value.dtype, value.name)


def public(spec: TensorSpec) -> Any:  # noqa: ANN401, TensorFlow's too
    """TensorFlow's spec for one of this module's where TensorFlow has been imported; elsewhere the spec itself.

    Args:
        spec: One of this module's.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "TensorSpec"):
        return spec
    dtype = tf.dtypes.as_dtype("string" if spec.dtype == object else spec.dtype)
    if isinstance(spec, BoundedTensorSpec):
        from tensorflow.python.framework import tensor_spec  # noqa: PLC0415, not among TensorFlow's public names

        return tensor_spec.BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, spec.name)
    return tf.TensorSpec(spec.shape, dtype, spec.name)


def dtype_name(dtype: npt.DTypeLike) -> str:
    """What Reverb's messages call a dtype: `float`, `double`, `int64`, `string`.

    Args:
        dtype: Anything `numpy.dtype` understands.

    Raises:
        TypeError: It is no dtype.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "OUS":
        return "string"
    return _TF_NAMES.get(dtype.name, dtype.name)


def is_compatible(wanted: tuple[int | None, ...] | None, found: tuple[int | None, ...] | None) -> bool:
    """True if the shapes have the same rank, and the same sizes where both say one; None fits any.

    Args:
        wanted: Sizes, None where any will do; None: of any rank.
        found: Likewise.
    """
    if wanted is None or found is None or wanted == found:
        return True
    return len(wanted) == len(found) and all(
        a is None or b is None or a == b for a, b in zip(wanted, found, strict=True)
    )


def _shape(shape: Any) -> tuple[int | None, ...] | None:  # noqa: ANN401, TensorFlow's too
    if shape is None:
        return None
    if hasattr(shape, "as_list"):  # a tf.TensorShape
        return None if shape.rank is None else tuple(shape.as_list())
    if isinstance(shape, int | np.integer):
        shape = (shape,)
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise TypeError(f"`shape` must be a sequence of sizes, or None for any rank; got {shape!r}")
    return tuple(_axis(axis) for axis in shape)


def _axis(axis: Any) -> int | None:  # noqa: ANN401, TensorFlow's too
    axis = getattr(axis, "value", axis)  # a tf.compat.v1.Dimension
    if axis is None:
        return None
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or axis < 0:
        raise TypeError(f"each axis of `shape` must be a size, or None for any; got {axis!r}")
    return int(axis)


def _dtype(dtype: Any) -> np.dtype[Any]:  # noqa: ANN401, TensorFlow's too
    if dtype == "string":
        return np.dtype(object)
    found = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    if found.kind in "OUS":
        return np.dtype(object)
    if found.kind not in "?biufc" and (found.kind != "V" or found.names is not None or found.type is np.void):
        raise TypeError(f"the dtype {found} is not supported")
    ordered: np.dtype[Any] = found.newbyteorder("=")
    return ordered
