"""Flattens and rebuilds nests in the order of dm-tree, and converts leaves to arrays."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.nests import Nest

__all__ = [
    "as_array",
    "children",
    "flatten",
    "flatten_with_path",
    "is_leaf",
    "is_namedtuple",
    "map_structure",
    "unflatten_as",
    "with_children",
    "with_items",
]

_SIMPLE = frozenset("?bhilqBHILQefdFD")  # type characters of dtypes that are stored unchanged

_FIRST_USER_DTYPE = 256
"""The lowest `dtype.num` of dtypes that other packages register with NumPy."""

_MAX_REPR = 80
"""Maximum number of characters of a value in an error text."""


def is_namedtuple(value: object) -> bool:
    """True for an instance of a namedtuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_leaf(value: object) -> bool:
    """True for values that are not containers: mappings, lists, tuples and instances of attrs classes."""
    return not (isinstance(value, list | tuple | Mapping) or hasattr(type(value), "__attrs_attrs__"))


def children(nest: Nest) -> list[tuple[Any, Any]] | None:
    """Returns key and value of each child: of mappings by sorted key, of other containers in order. None for a leaf."""
    if isinstance(nest, Mapping):
        return [(key, nest[key]) for key in sorted(nest)]
    if is_namedtuple(nest):
        return list(zip(nest._fields, nest, strict=True))
    if isinstance(nest, list | tuple):
        return list(enumerate(nest))
    if hasattr(type(nest), "__attrs_attrs__"):
        return [(field.name, getattr(nest, field.name)) for field in type(nest).__attrs_attrs__]
    return None


def with_children(nest: Nest, values: Sequence[Any]) -> Nest:
    """Returns a container like `nest`, with other values of its children, in the order of `children`."""
    if isinstance(nest, Mapping):
        return with_items(nest, dict(zip(sorted(nest), values, strict=True)))
    if isinstance(nest, list | tuple) and not is_namedtuple(nest):
        return type(nest)(values)
    return type(nest)(*values)


def with_items(mapping: Mapping[Any, Any], items: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns a mapping of the same class with these items, whose keys include those of `mapping`."""
    if not isinstance(mapping, dict):
        return type(mapping)(items)  # type: ignore[call-arg]  # mapping classes accept a mapping
    copied = copy.copy(mapping)  # not all subclasses of dict accept items
    copied.update(items)
    return copied


def flatten(nest: Nest) -> list[Any]:
    """Returns the leaves: of mappings by sorted key, of other containers in order. None is a leaf."""
    return [leaf for _, leaf in _walk((), nest)]


def flatten_with_path(nest: Nest) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the leaves with their paths: keys of mappings, fields of namedtuples and attrs classes, else indices."""
    return list(_walk((), nest))


def column_names(nest: Nest) -> list[str]:
    """Returns the path of each leaf as text, such as `data/obs`."""
    return ["/".join(map(str, path)) for path, _ in _walk((), nest)]


def _walk(path: tuple[Any, ...], nest: Nest) -> Iterator[tuple[tuple[Any, ...], Any]]:
    parts = children(nest)
    if parts is None:
        yield path, nest
        return
    for key, child in parts:
        yield from _walk((*path, key), child)


def unflatten_as(structure: Nest, leaves: list[Any]) -> Nest:
    """Returns a nest with the structure of `structure` and the given leaves."""
    count = len(flatten(structure))
    if count != len(leaves):
        raise ValueError(f"the structure has {count} leaves; got {len(leaves)}")
    return _build(structure, iter(leaves))


def _build(structure: Nest, leaves: Iterator[Any]) -> Nest:
    parts = children(structure)
    if parts is None:
        return next(leaves)
    return with_children(structure, [_build(child, leaves) for _, child in parts])


def map_structure(function: Callable[..., Any], *nests: Nest) -> Nest:
    """Returns a nest with the structure of the first one; each leaf is `function` of the corresponding leaves."""
    columns = [flatten(nest) for nest in nests]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"the nests differ: they have {', '.join(str(len(column)) for column in columns)} leaves")
    return unflatten_as(nests[0], [function(*leaves) for leaves in zip(*columns, strict=True)])


def as_array(value: Any) -> npt.NDArray[Any]:  # noqa: ANN401, anything NumPy understands
    """Converts a leaf to an array as `numpy.asarray` does, and text to an object array of bytes.

    Python numbers become int64 and float64; integers from 2**63 on become uint64. Arrays are converted to the native
    byte order. TensorFlow tensors are accepted. None, elements that are not numbers, bools or text (for example dates
    or records), and rows that differ in length are a TypeError.
    """
    if isinstance(value, str | bytes):
        return _encode_text(np.array(value, dtype=object), value)  # NumPy's bytes dtype would drop trailing zero bytes
    if isinstance(value, np.ndarray | np.generic):
        array: npt.NDArray[Any] = np.asarray(value)
    elif value is None:
        raise TypeError("cannot convert None to a tensor; a value must be an array, a number or text")
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise TypeError(f"cannot convert {_describe(value)} to a tensor: {error}") from error
    kind = array.dtype
    if kind.char in _SIMPLE:
        return array if kind.isnative else array.astype(kind.newbyteorder("="))
    if kind.kind in "OUS":
        return _encode_text(array.astype(object), value)
    if kind.kind == "V" and kind.names is None and kind.num >= _FIRST_USER_DTYPE:
        return array  # for example bfloat16
    raise TypeError(f"cannot convert {_describe(value)} to a tensor: the dtype {kind} is not supported")


def text_as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the array. If it contains text, returns a copy with the text encoded as bytes, as Reverb does."""
    if array.dtype != object or not any(isinstance(element, str) for element in array.flat):
        return array
    return _encode_text(array, array)


def _encode_text(array: npt.NDArray[Any], value: object) -> npt.NDArray[Any]:
    """Converts the elements of an object array to bytes. `value` is named in the error."""
    encoded = np.empty(array.shape, dtype=object)
    flat = encoded.reshape(-1)
    for index, element in enumerate(array.reshape(-1).tolist()):
        if isinstance(element, str):
            flat[index] = element.encode()
        elif isinstance(element, bytes):
            flat[index] = element
        else:
            raise TypeError(
                f"cannot convert {_describe(value)} to a tensor: it contains an object of type {type(element).__name__}"
            )
    return encoded


def _describe(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= _MAX_REPR else text[:_MAX_REPR] + '...'} ({type(value).__name__})"
