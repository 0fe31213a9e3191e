"""Array specs: the columns of a table's signature."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["ArraySpec"]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one column of an item.

    A signature is a nest of specs. It describes whole items: a column of `T` steps has the shape `(T, ...)`, a column
    without a time axis the shape `(...)`.

    Attributes:
        shape: Sizes of the axes. None allows any size.
        dtype: Anything that `numpy.dtype` accepts. `str` or any text dtype stands for text; `"string"`, `bytes` or
            `object` for bytes; `"bfloat16"`, `"float8_e4m3fn"` or `"float8_e5m2"` by name.
        name: Description for people who read the signature; not compared with items.
    """

    shape: tuple[int | None, ...]
    dtype: npt.DTypeLike
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.shape, Sequence) or isinstance(self.shape, str):
            raise InvalidArgumentError(f"`shape` must be a sequence of sizes; got {self.shape!r}")
        axes = (None if axis is None else _checks.integer("each axis of `shape`", axis, low=0) for axis in self.shape)
        object.__setattr__(self, "shape", tuple(axes))
