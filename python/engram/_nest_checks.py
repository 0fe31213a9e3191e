"""Checks of data for lists that were probably not meant as nests: of numbers, or one nest per item or environment."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import optree

from engram import _engram
from engram._text import counted
from engram.errors import SignatureError
from engram.nests import Nest

__all__ = [
    "IsDeclared",
    "check_equal_lists",
    "check_number_lists",
    "check_one_nest",
    "children_of",
    "declared_by",
    "env_list_kind",
    "has_doubtful_list",
]

IsDeclared = Callable[[list[str]], bool]
"""Returns True if the elements of a list are meant as columns of these names."""


def declared_by(signatures: Callable[[], Iterable[Nest]]) -> IsDeclared:
    """Returns a function that finds columns in signatures, which are only requested if it is called."""

    def is_declared(columns: list[str]) -> bool:
        declared = (_engram.flatten(signature)[1] for signature in signatures() if signature is not None)
        return any(set(columns) <= set(names) for names in declared)

    return is_declared


def check_number_lists(nest: Nest, is_declared: IsDeclared = lambda _: False) -> None:
    """Checks that no list, tuple or deque consists of numbers. Named tuples may, and lists of arrays without axes.

    Raises:
        SignatureError: There is such a list, and its columns are not declared.
    """
    for path, found in _found(nest, lambda part: _is_list(part) and _has_only_numbers(part)):
        columns = _columns(path, found)
        if not is_declared(columns):
            what = f"`{path}`" if path else "the nest"
            raise SignatureError(
                f"{what} is a {_kind(found)} of {counted(len(columns), 'number')}, and each would be a column of its "
                "own; wrap it in numpy.asarray to store one array column, or use a dict or a named tuple if one column "
                "per number is meant"
            )


def check_equal_lists(
    nest: Nest, each: str, is_declared: IsDeclared = lambda _: False, *, num_envs: int | None = None
) -> None:
    """Checks that no list or deque of a nest of arrays with an axis of items or steps consists of equal nests.

    Each was probably meant as one item or step, which `each` names. Equal nests have the same columns and shapes. With
    `num_envs`, a tuple of this many equal nests is refused too: each could be an environment.

    Raises:
        SignatureError: There is such a list, and its columns are not declared.
    """

    def matches(part: Nest) -> bool:
        return _is_list(part) and (not isinstance(part, tuple) or len(part) == num_envs) and _are_equal(part)

    for path, found in _found(nest, matches):
        if is_declared(_columns(path, found)):
            continue
        what, count = f"`{path}`" if path else "the nest", len(found)
        if count == num_envs:
            raise SignatureError(
                f"{what} is a {_kind(found)} of {count} equal nests, the number of environments, so "
                f"that it is unclear whether each is an environment; stack them into one nest of arrays [{count}, "
                "...], as with numpy.stack, or use a dict or a named tuple if each is meant as columns of its own"
            )
        leaves, names, _ = _engram.flatten(next(part for part in found if part is not None))
        elements = (
            counted(count, "equal nest") if any(names) else f"{counted(count, 'value')} of shape {_shape(*leaves)}"
        )
        raise SignatureError(
            f"{what} is a {_kind(found)} of {elements}, and each would be stored in columns of its own; stack them "
            f"into one array, as with numpy.stack, if each is the value of one {each}; if columns are meant, use a "
            "tuple, or a signature that has them"
        )


def has_doubtful_list(nest: Nest, num_envs: int) -> bool:
    """True if a list, tuple or deque has `num_envs` elements, or a list or deque consists of equal nests."""

    def matches(part: Nest) -> bool:
        return _is_list(part) and (len(part) == num_envs or (not isinstance(part, tuple) and _are_equal(part)))

    return bool(_found(nest, matches))


def env_list_kind(nest: Nest, num_envs: int) -> str | None:
    """Returns "list", "tuple" or "deque" if a nest has one of `num_envs` elements with a column in common."""

    def matches(part: Nest) -> bool:
        if not _is_list(part) or len(part) != num_envs:
            return False
        return bool(set.intersection(*(set(_engram.flatten(element)[1]) for element in part)))

    return next((_kind(found) for _, found in _found(nest, matches)), None)


def check_one_nest(
    what: str, value: Nest, each: str, is_declared: IsDeclared = lambda _: False, *, tuples: bool = True
) -> None:
    """Checks that an argument, `what`, is no sequence of mappings or named tuples: rows instead of columns.

    `each` is what they are, such as "step". A tuple may have a single one, different ones, or any without `tuples`.

    Raises:
        SignatureError: It is one, and its columns are not declared.
    """
    if not _is_list(value) or not value:
        return
    if not all(isinstance(part, Mapping) or hasattr(part, "_fields") for part in value):
        return
    if isinstance(value, tuple) and not (tuples and len(value) > 1 and _are_equal(value)):
        return
    if not is_declared(_columns("", value)):
        raise SignatureError(
            f"{what} must be one nest of arrays; got a {_kind(value)} of {counted(len(value), each)}; stack each "
            "column, as with numpy.stack"
        )


_USUAL_LEAVES = {np.ndarray, np.float32, np.float64, np.int32, np.int64, np.bool_, float, int, bool, str, type(None)}

_LEAVES = (np.ndarray, np.generic, float, int, str, bytes, type(None))


def _may_have_lists(nest: Nest) -> bool:
    """False for the usual data: arrays and numbers, or dicts of them. This takes a tenth of the time of `_find`."""
    kind = type(nest)
    return kind not in _USUAL_LEAVES and (kind is not dict or any(map(_may_have_lists, nest.values())))


def _found(nest: Nest, matches: Callable[[Nest], bool]) -> list[tuple[str, Nest]]:
    """Returns what `_find` yields; nothing for a nest that contains itself, which the engine rejects."""
    try:
        return list(_find(nest, matches)) if _may_have_lists(nest) else []
    except RecursionError:
        return []


def _find(nest: Nest, matches: Callable[[Nest], bool], path: str = "") -> Iterator[tuple[str, Nest]]:
    """Yields the outermost parts of a nest that match, each with its path."""
    if isinstance(nest, _LEAVES):
        return
    if matches(nest):
        yield path, nest
        return
    for key, child in (children_of(nest) or {}).items():
        if not isinstance(child, _LEAVES):
            yield from _find(child, matches, _child_path(path, key))


def children_of(nest: Nest) -> dict[Any, Nest] | None:
    """Returns the children of a nest by key, field or index; None for a leaf."""
    if isinstance(nest, _LEAVES):
        return None
    if isinstance(nest, Mapping):
        return dict(nest)
    if isinstance(nest, list | tuple | deque):
        return dict(zip(getattr(nest, "_fields", range(len(nest))), nest, strict=False))
    if optree.register_pytree_node.get(type(nest), namespace="engram") is None:
        return None  # the error of the call below would have the text of the whole leaf
    try:
        children, _, entries, *_ = optree.tree_flatten_one_level(nest, none_is_leaf=True, namespace="engram")
    except Exception:  # noqa: BLE001, the engine takes it for a leaf, too
        return None
    return dict(zip(entries, children, strict=True))


def _child_path(path: str, key: object) -> str:
    """Returns the path of an entry, as the engine writes it in names of columns."""
    entry = str.__str__(key) if isinstance(key, str) else str(key)
    entry = entry.replace("\\", "\\\\").replace("/", "\\/") or "\\0"
    return f"{path}/{entry}" if path else entry


def _columns(path: str, nest: Nest) -> list[str]:
    """Returns the names of the columns of the part of a nest at this path."""
    return [f"{path}/{name}" if path else name for name in _engram.flatten(nest)[1]]


def _kind(nest: Nest) -> str:
    """Returns what error texts call a list; its class may be a subclass."""
    return next(kind.__name__ for kind in (list, tuple, deque) if isinstance(nest, kind))


def _is_list(nest: Nest) -> bool:
    """True for a list, tuple or deque that is not a named tuple."""
    return isinstance(nest, list | tuple | deque) and not hasattr(nest, "_fields")


def _has_only_numbers(nest: Nest) -> bool:
    """True if a list or lists in it have numbers, or None instead of some, and nothing else."""
    parts = [part for part in nest if part is not None]
    return len(parts) > 0 and all(_is_number(part) or (_is_list(part) and _has_only_numbers(part)) for part in parts)


def _is_number(value: object) -> bool:
    """True for Python's and NumPy's numbers, bools included. Arrays without axes are none."""
    return isinstance(value, int | float | complex) or (
        isinstance(value, np.generic) and not isinstance(value, np.flexible)
    )


def _are_equal(parts: Nest) -> bool:
    """True for nests with the same columns and shapes; None, which has no value, is equal to all."""
    flat = (_engram.flatten(part)[:2] for part in parts if part is not None)
    all_cells = [[(name, _shape(leaf)) for leaf, name in zip(leaves, names, strict=True)] for leaves, names in flat]
    return bool(all_cells) and bool(all_cells[0]) and all(cells == all_cells[0] for cells in all_cells)


def _shape(leaf: Any) -> list[int]:  # noqa: ANN401, a leaf of any kind
    try:
        return list(leaf.shape if hasattr(leaf, "shape") else np.shape(leaf))
    except Exception:  # noqa: BLE001, not an array, which the engine reports
        return []
