"""Checks of data for lists that were probably not meant as nests: of numbers, or of one nest per environment."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from engram import _engram
from engram._text import counted
from engram.errors import SignatureError
from engram.nests import Nest

__all__ = [
    "IsDeclared",
    "check_env_lists",
    "check_number_lists",
    "check_one_nest",
    "declared_by",
    "has_env_list",
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


def has_env_list(nest: Nest, num_envs: int) -> bool:
    """True if a list or tuple has `num_envs` elements of the same structure."""
    return bool(_found(nest, lambda part: _is_env_list(part, num_envs)))


def check_env_lists(nest: Nest, num_envs: int, is_declared: IsDeclared = lambda _: False) -> None:
    """Checks that no list or tuple has an element of the same structure, dtypes and shapes for each environment.

    Raises:
        SignatureError: There is such a list, and its columns are not declared.
    """
    for path, found in _found(nest, lambda part: _is_env_list(part, num_envs)):
        first, *others = ([_cell(leaf) for leaf in _engram.flatten(part)[0]] for part in found)
        if all(other == first for other in others) and not is_declared(_columns(path, found)):
            what = f"`{path}`" if path else "the nest"
            raise SignatureError(
                f"{what} is a {_kind(found)} of {num_envs} equal nests, the number of environments, so "
                f"that it is unclear whether each is an environment; stack them into one nest of arrays [{num_envs}, "
                "...], as with numpy.stack, or use a dict or a named tuple if each is meant as columns of its own"
            )


def check_one_nest(what: str, value: Nest, each: str, is_declared: IsDeclared = lambda _: False) -> None:
    """Checks that an argument, `what`, is not a list of mappings. `each` is what they are, such as "step".

    Raises:
        SignatureError: It is one, and its columns are not declared.
    """
    if type(value) is not list or not value or not all(isinstance(element, Mapping) for element in value):
        return
    if not is_declared(_engram.flatten(value)[1]):
        raise SignatureError(
            f"{what} must be one nest of arrays; got a list of {counted(len(value), each)}; stack each column, as with "
            "numpy.stack"
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
    if isinstance(nest, Mapping):
        children: Iterable[tuple[Any, Nest]] = nest.items()
    elif isinstance(nest, list | tuple | deque):
        children = zip(getattr(nest, "_fields", range(len(nest))), nest, strict=False)
    else:
        return
    for key, child in children:
        if not isinstance(child, _LEAVES):
            yield from _find(child, matches, _child_path(path, key))


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
    """True if a list or lists in it have numbers and nothing else."""
    return len(nest) > 0 and all(_is_number(part) or (_is_list(part) and _has_only_numbers(part)) for part in nest)


def _is_number(value: object) -> bool:
    """True for Python's and NumPy's numbers, bools included. Arrays without axes are none."""
    return isinstance(value, int | float | complex) or (
        isinstance(value, np.generic) and not isinstance(value, np.flexible)
    )


def _is_env_list(nest: Nest, num_envs: int) -> bool:
    """True for a list or tuple of this many elements of the same structure, with columns."""
    if not isinstance(nest, list | tuple) or hasattr(nest, "_fields") or len(nest) != num_envs:
        return False
    structures = {_engram.flatten(element)[2] for element in nest}
    return len(structures) == 1 and bool(_engram.flatten(nest)[0])


def _cell(leaf: object) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns what the columns of environments have in common."""
    array = np.asanyarray(leaf)
    return array.dtype, array.shape
