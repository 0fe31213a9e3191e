"""Tensor specs, of which signatures consist: the shape, dtype and name of a column.

TensorFlow's specs are accepted, too. The signature of items with observations `[T, 4]` is
`{"observation": TensorSpec([None, 4], np.float32)}`.
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BoundedTensorSpec", "TensorSpec", "as_public_spec", "as_spec", "dtype_name", "is_compatible", "is_spec"]

_TF_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


class TensorSpec:
    """Shape, dtype and name of a tensor. Immutable by convention, hashable and comparable.

    Attributes:
        shape: A tuple of sizes, with None for axes of any size; or None for any rank.
        dtype: A `numpy.dtype` in native byte order; `object` for text.
        name: Text, or None.
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, shape: Any, dtype: Any = np.float32, name: str | None = None) -> None:  # noqa: ANN401, TensorFlow's too
        """Creates a spec.

        Args:
            shape: Sizes, with None for axes of any size; a single size for rank 1; a `tf.TensorShape`; or None for any
                rank.
            dtype: A `tf.DType`, or anything that `numpy.dtype` accepts. Text dtypes and `"string"` mean text. Default:
                `float32`.
            name: Name in error texts, after the path of the column. Default: no name.

        Raises:
            TypeError: The dtype is invalid, or a date or record dtype; or the shape is not a sequence of sizes of at
                least 0.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.shape, self.dtype, self.name))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={dtype_name(self.dtype)}, name={self.name!r})"


class BoundedTensorSpec(TensorSpec):
    """A tensor spec with bounds. Data is not checked against the bounds.

    Attributes:
        minimum: The lowest allowed value: an array of the spec's dtype, scalar or broadcastable to the spec's shape.
        maximum: The highest allowed value, in the same form.
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
        """Creates a spec. The other arguments and errors are those of `TensorSpec`.

        Args:
            minimum: Lowest allowed value, inclusive: a number or an array.
            maximum: Highest allowed value, inclusive: a number or an array.

        Raises:
            TypeError: The dtype is text, or a bound is None.
            ValueError: A bound cannot be converted to the dtype, or its shape does not broadcast with the spec's.
        """
        super().__init__(shape, dtype, name)
        if self.dtype == object:
            raise TypeError("text has no bounds; use a TensorSpec")
        self.minimum = self._bound("minimum", minimum)
        self.maximum = self._bound("maximum", maximum)

    def _bound(self, which: str, bound: npt.ArrayLike) -> npt.NDArray[Any]:
        if bound is None:  # NumPy would convert it to NaN
            raise TypeError(f"`{which}` must be a number, or an array of them; got None")
        try:
            array = np.asarray(bound, dtype=self.dtype)
        except (OverflowError, ValueError):
            raise ValueError(f"`{which}` must be of the dtype {dtype_name(self.dtype)}; got {bound!r}") from None
        sizes = zip(reversed(array.shape), reversed(self.shape or ()), strict=False)
        if any(size not in (1, axis) and axis not in (None, 1) for size, axis in sizes):
            raise ValueError(f"`{which}` has the shape {array.shape}, which does not broadcast with {self.shape}")
        return array

    def _key(self) -> tuple[Any, ...]:
        bounds = ((bound.shape, bound.tobytes()) for bound in (self.minimum, self.maximum))
        return (*super()._key(), *bounds)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.shape, self.dtype, self.minimum, self.maximum, self.name))

    def __repr__(self) -> str:
        return (
            f"BoundedTensorSpec(shape={self.shape}, dtype={dtype_name(self.dtype)}, name={self.name!r}, "
            f"minimum={self.minimum!r}, maximum={self.maximum!r})"
        )


def is_spec(value: object) -> bool:
    """True if `value` is a spec of this module or of TensorFlow. Other objects with shape and dtype are not specs."""
    if isinstance(value, TensorSpec):
        return True
    tf = sys.modules.get("tensorflow")
    return tf is not None and hasattr(tf, "TensorSpec") and isinstance(value, tf.TensorSpec)


def as_spec(value: Any) -> TensorSpec:  # noqa: ANN401, TensorFlow's too
    """Returns a spec as a spec of this module.

    Args:
        value: Any object with `shape`, `dtype` and `name`, and optionally `minimum` and `maximum`.

    Raises:
        TypeError: An attribute is missing, or `TensorSpec` does not accept the dtype.
        ValueError: The bounds do not fit the shape or the dtype.
    """
    if isinstance(value, TensorSpec):
        return value
    if not all(hasattr(value, part) for part in ("shape", "dtype", "name")):
        raise TypeError(f"a tensor spec must have a shape, a dtype and a name; got {value!r} ({type(value).__name__})")
    if hasattr(value, "minimum") and hasattr(value, "maximum"):
        return BoundedTensorSpec(value.shape, value.dtype, value.minimum, value.maximum, value.name)
    return TensorSpec(value.shape, value.dtype, value.name)


def as_public_spec(spec: TensorSpec) -> Any:  # noqa: ANN401, TensorFlow's too
    """Returns `spec`, a spec of this module, as TensorFlow's if TensorFlow is imported, and otherwise unchanged."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "TensorSpec"):
        return spec
    dtype = tf.dtypes.as_dtype("string" if spec.dtype == object else spec.dtype)
    if isinstance(spec, BoundedTensorSpec):
        from tensorflow.python.framework import tensor_spec  # noqa: PLC0415, not among TensorFlow's public names

        return tensor_spec.BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, spec.name)
    return tf.TensorSpec(spec.shape, dtype, spec.name)


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Returns the name of `dtype`, of any kind, in Reverb's error texts: `float`, `double`, `int64`, `string`.

    Raises:
        TypeError: `dtype` is not a dtype.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "OUS":
        return "string"
    return _TF_NAMES.get(dtype.name, dtype.name)


def is_compatible(expected: tuple[int | None, ...] | None, actual: tuple[int | None, ...] | None) -> bool:
    """True if `expected` and `actual` have equal rank and equal sizes. None, as size or shape, matches anything."""
    if expected is None or actual is None or expected == actual:
        return True
    return len(expected) == len(actual) and all(
        a is None or b is None or a == b for a, b in zip(expected, actual, strict=True)
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
    if dtype is None:  # NumPy would use float64
        raise TypeError("`dtype` must be a dtype; got None")
    if dtype == "string":
        return np.dtype(object)
    try:
        converted = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    except KeyError:  # a TensorFlow dtype without a NumPy equivalent, for example tf.resource
        raise TypeError(f"the dtype {dtype!r} is not supported") from None
    if converted.kind in "OUS":
        return np.dtype(object)
    is_void = converted.names is not None or converted.type is np.void
    if converted.kind not in "?biufc" and (converted.kind != "V" or is_void):
        raise TypeError(f"the dtype {converted} is not supported")
    native: np.dtype[Any] = converted.newbyteorder("=")
    return native
