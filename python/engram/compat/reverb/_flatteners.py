"""Fast flattening of nests that have the same structure as an earlier nest."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from engram.compat.reverb import _nest

__all__ = ["LEAF_CLASSES", "Flatten", "flattener", "is_leaf"]

Flatten: TypeAlias = Callable[[Any, list[Any]], bool]
"""Appends the leaves of a nest to a list. If the structure differs, returns False; some leaves may be appended."""

LEAF_CLASSES = frozenset([np.ndarray, int, float, bool, str, bytes, type(None), *np.sctypeDict.values()])
"""Common classes of leaves. Checking for them first is faster than calling `is_leaf`."""


def is_leaf(value: object) -> bool:
    """True for values that `_nest.flatten` treats as leaves."""
    return not (isinstance(value, list | tuple | Mapping) or hasattr(type(value), "__attrs_attrs__"))


def flattener(nest: Any) -> Flatten:  # noqa: ANN401, any nest
    """Returns a function that flattens nests with the structure of `nest`, in the order of `_nest.flatten`.

    Any value in the place of a leaf of `nest` is treated as a leaf.
    """
    kind = type(nest)
    if kind is dict:
        return _dict_flattener(nest)
    if isinstance(nest, list | tuple):
        return _sequence_flattener(kind, nest)
    if is_leaf(nest):
        return _append_leaf
    return _other_flattener(kind, nest)


def _append_leaf(value: Any, leaves: list[Any]) -> bool:  # noqa: ANN401, any leaf
    leaves.append(value)
    return True


def _dict_flattener(nest: dict[Any, Any]) -> Flatten:
    keys, count = sorted(nest), len(nest)
    children = [(key, flattener(nest[key])) for key in keys]
    # For a single key, `itemgetter` would return the value instead of a tuple.
    if count > 1 and all(child is _append_leaf for _, child in children):
        pick = itemgetter(*keys)

        def flatten_leaves(value: Any, leaves: list[Any]) -> bool:  # noqa: ANN401, any nest
            if type(value) is not dict or len(value) != count:
                return False
            try:
                leaves += pick(value)
            except KeyError:
                return False
            return True

        return flatten_leaves

    def flatten_children(value: Any, leaves: list[Any]) -> bool:  # noqa: ANN401, any nest
        if type(value) is not dict or len(value) != count:
            return False
        try:
            for key, child in children:
                if not child(value[key], leaves):
                    return False
        except KeyError:
            return False
        return True

    return flatten_children


def _sequence_flattener(kind: Any, nest: Any) -> Flatten:  # noqa: ANN401, a list or a tuple
    children, count = [flattener(child) for child in nest], len(nest)
    if all(child is _append_leaf for child in children):

        def flatten_leaves(value: Any, leaves: list[Any]) -> bool:  # noqa: ANN401, any nest
            if type(value) is not kind or len(value) != count:
                return False
            leaves += value
            return True

        return flatten_leaves

    def flatten_children(value: Any, leaves: list[Any]) -> bool:  # noqa: ANN401, any nest
        if type(value) is not kind or len(value) != count:
            return False
        return all(child(each, leaves) for child, each in zip(children, value, strict=True))

    return flatten_children


def _other_flattener(kind: Any, nest: Any) -> Flatten:  # noqa: ANN401, another mapping, or an attrs class
    keys = sorted(nest) if isinstance(nest, Mapping) else None
    paths = [path for path, _ in _nest.flatten_with_path(nest)]

    def flatten_by_path(value: Any, leaves: list[Any]) -> bool:  # noqa: ANN401, any nest
        if type(value) is not kind or (keys is not None and sorted(value) != keys):
            return False
        paths_and_leaves = _nest.flatten_with_path(value)
        if [path for path, _ in paths_and_leaves] != paths:
            return False
        leaves += [leaf for _, leaf in paths_and_leaves]
        return True

    return flatten_by_path
