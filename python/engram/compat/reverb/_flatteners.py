"""Fast flattening of nests that have the same structure as an earlier nest."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from engram.compat.reverb import _nest
from engram.compat.reverb._nest import is_leaf
from engram.nests import Nest

__all__ = ["LEAF_CLASSES", "Flatten", "flattener"]

Flatten: TypeAlias = Callable[[Any, list[Any]], bool]
"""Appends the leaves of a nest to a list. If the structure differs, returns False; some leaves may be appended."""

LEAF_CLASSES = frozenset([np.ndarray, int, float, bool, str, bytes, type(None), *np.sctypeDict.values()])
"""Common classes of leaves. Checking for them first is faster than calling `is_leaf`."""


def flattener(nest: Nest) -> Flatten:
    """Returns a function that flattens nests with the structure of `nest`, in the order of `_nest.flatten`.

    Any value in the place of a leaf of `nest` is treated as a leaf.
    """
    kind = type(nest)
    if is_leaf(nest):
        return _append_leaf
    if kind is not dict and not isinstance(nest, list | tuple):
        return _flattener_by_path(kind, nest)
    children = [(key, flattener(nest[key])) for key in (sorted(nest) if kind is dict else range(len(nest)))]
    # For a single key, `itemgetter` would return the value instead of a tuple.
    if all(child is _append_leaf for _, child in children) and (kind is not dict or len(nest) > 1):
        pick = itemgetter(*[key for key, _ in children]) if kind is dict else iter
        return _flattener_of_leaves(kind, len(nest), pick)
    return _flattener_of_children(kind, children)


def _append_leaf(value: object, leaves: list[Any]) -> bool:
    leaves.append(value)
    return True


def _flattener_of_leaves(kind: type[Any], count: int, pick: Callable[[Any], Iterable[Any]]) -> Flatten:
    def flatten_leaves(value: Nest, leaves: list[Any]) -> bool:
        if type(value) is not kind or len(value) != count:
            return False
        try:
            leaves += pick(value)
        except KeyError:
            return False
        return True

    return flatten_leaves


def _flattener_of_children(kind: type[Any], children: list[tuple[Any, Flatten]]) -> Flatten:
    count = len(children)

    def flatten_children(value: Nest, leaves: list[Any]) -> bool:
        if type(value) is not kind or len(value) != count:
            return False
        try:
            for key, child in children:
                if not child(value[key], leaves):
                    return False
        except KeyError:
            return False
        return True

    return flatten_children


def _flattener_by_path(kind: type, nest: Nest) -> Flatten:
    paths = [path for path, _ in _nest.flatten_with_path(nest)]

    def flatten_by_path(value: Nest, leaves: list[Any]) -> bool:
        if type(value) is not kind:
            return False
        paths_and_leaves = _nest.flatten_with_path(value)
        if [path for path, _ in paths_and_leaves] != paths:
            return False
        leaves += [leaf for _, leaf in paths_and_leaves]
        return True

    return flatten_by_path
