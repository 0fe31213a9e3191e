"""The columns of a replay buffer: the leaves of its items."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from engram import Nest, _engram
from engram._text import column_text
from engram.compat.tf_agents.replay_buffers._python_calls import GraphInvalidArgumentError, Tensor, invalid_argument

__all__ = ["Columns", "describe", "without_axes"]

_RING_DTYPES = frozenset(
    {
        tf.bool,
        *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    }
)
"""The dtypes of columns that a ring stores."""


class Columns:
    """The columns of items, and conversions of items to columns and back. As in TF-Agents, an item is one frame.

    Attributes:
        specs: `tf.TensorSpec` of one item, for each column.
        batch_size: Number of items that are added together.
        layout: NumPy's dtype and the shape of one item, for each column.
        names: The path of each column in the nest.
    """

    def __init__(self, data_spec: Nest, batch_size: int) -> None:
        """Reads the specs of the columns from `data_spec`, a nest of `tf.TensorSpec` that describes one item."""
        self._data_spec = data_spec
        self.batch_size = batch_size
        leaves, names, _ = _engram.flatten(data_spec)
        self.specs = tf.nest.flatten(data_spec)
        if not self.specs:
            raise ValueError("`data_spec` must have at least one tf.TensorSpec; got none")
        # TensorFlow also flattens types that Engram does not know.
        known = len(leaves) == len(self.specs) and all(map(lambda a, b: a is b, leaves, self.specs))
        self.names = names if known else [str(number) for number in range(len(self.specs))]
        for name, spec in zip(self.names, self.specs, strict=True):
            if not isinstance(spec, tf.TensorSpec):
                raise TypeError(f"`data_spec`: {describe(name)} must be a tf.TensorSpec; got {spec!r}")
            if not spec.shape.is_fully_defined():
                raise ValueError(f"`data_spec`: {describe(name)} must have axes of known size; got {spec.shape}")
        self.layout = [(np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)) for spec in self.specs]

    @property
    def fit_a_ring(self) -> bool:
        """True if Engram's rings can store all columns."""
        return _RING_DTYPES.issuperset(spec.dtype for spec in self.specs)

    def with_axes(self, axes: Sequence[int | None]) -> list[Any]:
        """Returns the specs with further leading axes."""
        return [tf.TensorSpec([*axes, *spec.shape], spec.dtype) for spec in self.specs]

    def pack(self, leaves: Sequence[Any]) -> Nest:
        """Returns the nest of these leaves."""
        return tf.nest.pack_sequence_as(self._data_spec, leaves)

    def flatten(self, items: Nest) -> list[Any]:
        """Returns the leaves of items, which must have the structure of `data_spec`."""
        try:
            tf.nest.assert_same_structure(items, self._data_spec)
        except (TypeError, ValueError) as error:  # a TypeError if types of containers differ
            raise ValueError(f"`items` must have the structure of `data_spec`: {error}") from None
        return tf.nest.flatten(items)  # type: ignore[no-any-return]  # TensorFlow has no types

    def arrays(self, leaves: Sequence[Any]) -> list[npt.NDArray[Any]]:
        """Returns the leaves of items as arrays."""
        arrays = []
        for leaf, spec, (dtype, shape), name in zip(leaves, self.specs, self.layout, self.names, strict=True):
            if type(leaf) is np.ndarray and leaf.dtype == dtype:
                array = leaf
            else:
                tensor = (
                    leaf if isinstance(leaf, tf.Tensor) and leaf.dtype == spec.dtype else _as_tensor(leaf, spec, name)
                )
                array = tensor.numpy()
            if array.shape != (self.batch_size, *shape):
                raise _wrong_shape(name, array.shape, (self.batch_size, *shape))
            arrays.append(array)
        return arrays

    def tensors(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the leaves of items as tensors. In a graph, unknown shapes are checked when it is executed."""
        tensors = []
        for leaf, spec, name in zip(leaves, self.specs, self.names, strict=True):
            tensor, shape = _as_tensor(leaf, spec, name), (self.batch_size, *spec.shape)
            if not tensor.shape.is_compatible_with(shape):
                raise _wrong_shape(name, tensor.shape, shape)
            tensors.append(tensor if tensor.shape.is_fully_defined() else tf.ensure_shape(tensor, shape))
        return tensors


def without_axes(values: Nest, batch_size: int | None, num_steps: int | None) -> Nest:
    """Returns an array or a tensor `[B, T, ...]` without the axes, of size 1, whose argument is None."""
    if num_steps is None:
        values = values[:, 0]
    return values[0] if batch_size is None else values


def _as_tensor(leaf: Nest, spec: Any, name: str) -> Tensor:  # noqa: ANN401, a tf.TensorSpec
    try:
        return tf.convert_to_tensor(leaf, spec.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`items`: {describe(name)} must be {spec.dtype.name}, or convert to it: {error}") from None


def _wrong_shape(name: str, shape: Sequence[int | None], expected: Sequence[int]) -> GraphInvalidArgumentError:
    return invalid_argument(
        f"`items`: {describe(name)} must have shape {list(expected)}, with the batch axis first; got {list(shape)}"
    )


def describe(name: str) -> str:
    """Names a column in a text."""
    return f"column {column_text(name)}" if name else "the data"
