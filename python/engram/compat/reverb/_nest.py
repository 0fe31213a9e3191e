"""Flattens and rebuilds nests in the order of dm-tree, and converts leaves to arrays."""

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_array", "flatten", "flatten_with_path", "is_namedtuple", "map_structure", "unflatten_as"]

_SIMPLE = frozenset("?bhilqBHILQefdFD")  # type characters of dtypes that are stored unchanged

_FIRST_USER_DTYPE = 256
"""The lowest `dtype.num` of dtypes that other packages register with NumPy."""

_MAX_REPR = 80
"""Maximum number of characters of a value in an error text."""


def is_namedtuple(value: object) -> bool:
    """True for an instance of a namedtuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def flatten(nest: Any) -> list[Any]:  # noqa: ANN401, any nest
    """Returns the leaves: of mappings by sorted key, of other containers in order. None is a leaf."""
    leaves: list[Any] = []
    _collect(nest, leaves)
    return leaves


def _collect(nest: Any, leaves: list[Any]) -> None:  # noqa: ANN401, any nest
    if isinstance(nest, Mapping):
        for key in sorted(nest):
            _collect(nest[key], leaves)
    elif isinstance(nest, list | tuple):
        for each in nest:
            _collect(each, leaves)
    elif _is_attrs(nest):
        for name in _attrs_fields(nest):
            _collect(getattr(nest, name), leaves)
    else:
        leaves.append(nest)


def flatten_with_path(nest: Any) -> list[tuple[tuple[Any, ...], Any]]:  # noqa: ANN401, any nest
    """Returns the leaves with their paths: keys of mappings, fields of namedtuples and attrs classes, else indices."""
    return list(_walk((), nest))


def column_names(nest: Any) -> list[str]:  # noqa: ANN401, any nest
    """Returns the path of each leaf as text, such as `data/obs`."""
    return ["/".join(map(str, path)) for path, _ in flatten_with_path(nest)]


def _walk(path: tuple[Any, ...], nest: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:  # noqa: ANN401, any nest
    children = _children(nest)
    if children is None:
        yield path, nest
        return
    for key, child in children:
        yield from _walk((*path, key), child)


def _children(nest: Any) -> list[tuple[Any, Any]] | None:  # noqa: ANN401, any nest
    if isinstance(nest, Mapping):
        return [(key, nest[key]) for key in sorted(nest)]
    if is_namedtuple(nest):
        return list(zip(nest._fields, nest, strict=True))
    if isinstance(nest, list | tuple):
        return list(enumerate(nest))
    if _is_attrs(nest):
        return [(name, getattr(nest, name)) for name in _attrs_fields(nest)]
    return None


def unflatten_as(structure: Any, leaves: list[Any]) -> Any:  # noqa: ANN401, any nest
    """Returns a nest with the structure of `structure` and the given leaves."""
    count = len(flatten(structure))
    if count != len(leaves):
        raise ValueError(f"the structure has {count} leaves; got {len(leaves)}")
    return _build(structure, iter(leaves))


def _build(structure: Any, leaves: Iterator[Any]) -> Any:  # noqa: ANN401, any nest
    if isinstance(structure, Mapping):
        built = {key: _build(structure[key], leaves) for key in sorted(structure)}
        ordered = [(key, built[key]) for key in structure]
        if isinstance(structure, collections.defaultdict):
            return type(structure)(structure.default_factory, ordered)
        return type(structure)(ordered)  # type: ignore[call-arg]  # mapping classes accept pairs
    if is_namedtuple(structure):
        return type(structure)(*[_build(each, leaves) for each in structure])
    if isinstance(structure, list | tuple):
        return type(structure)([_build(each, leaves) for each in structure])
    if _is_attrs(structure):
        return type(structure)(*[_build(getattr(structure, name), leaves) for name in _attrs_fields(structure)])
    return next(leaves)


def map_structure(function: Callable[..., Any], *nests: Any) -> Any:  # noqa: ANN401, any nests
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


def _is_attrs(value: object) -> bool:
    return hasattr(type(value), "__attrs_attrs__")


def _attrs_fields(value: Any) -> list[str]:  # noqa: ANN401, an instance of an attrs class
    return [attribute.name for attribute in type(value).__attrs_attrs__]
