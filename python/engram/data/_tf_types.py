"""Types of TensorFlow's objects. A type checker sees `Any`: TensorFlow has no types."""

from typing import Any, TypeAlias

__all__ = ["Tensor", "TfDataset"]

Tensor: TypeAlias = Any
"""A tensor or a variable; in a graph, also an operation that returns nothing."""

TfDataset: TypeAlias = Any
"""A `tf.data.Dataset`."""
