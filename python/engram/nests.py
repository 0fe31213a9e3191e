"""Types of nested data. Type checkers see `Any`: Python's types cannot express them."""

from typing import Any, TypeAlias

__all__ = ["Nest"]

Nest: TypeAlias = Any
"""A nest, or pytree: arrays, numbers and text in mappings, lists, tuples and named tuples, at any depth.

A list, tuple or deque of numbers is an error where data is stored, because an array was probably meant: wrap it in
`numpy.asarray`. It is allowed if a signature of the store or buffer has a column for each of its numbers.

Other types that are registered with optree are nests, too, and so is a single array. None is a leaf: no value. Nests of
specs, such as a `signature`, have specs as leaves; those of a framework's datasets have its tensors, and nests of
parameters may be any pytree of JAX.
"""
