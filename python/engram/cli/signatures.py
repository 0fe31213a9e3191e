"""Signatures in a TOML file.

    [replay.signature]
    observation = "float32[?,84,84]"
    action = { move = "int64[?]", jump = "bool[?]" }

A column is a string: its dtype and its shape, in which `?` means any size. TOML tables become mappings, arrays lists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import engram
from engram.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["read_reverb_signature", "read_signature"]

_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
    "string",
    "str",
)
_NOT_SUPPORTED_BY_REVERB = ("float8_e4m3fn", "float8_e5m2", "str")

_COLUMN = re.compile(r"\s*(\w+)\s*(?:\[([^\[\]]*)\])?\s*")
_SIZE = re.compile(r"\?|\d{1,18}")


def read_signature(nest: object) -> engram.Nest:
    """Returns the value of the key `signature`: a nest of `ArraySpec`.

    Raises:
        InvalidArgumentError: A column is not valid, or there are none. The text names the column and what is allowed.
    """
    return _read("`signature`", nest, _DTYPES, lambda dtype, shape: engram.ArraySpec(shape, dtype))


def read_reverb_signature(nest: object, max_times_sampled: int | None) -> str:
    """Returns the table note that stores the value of the key `reverb_signature`.

    Raises:
        InvalidArgumentError: As in `read_signature`, or the signature is too large.
    """
    from engram.compat.reverb import _table_note  # noqa: PLC0415, needed by few tables
    from engram.compat.reverb.tensor_spec import TensorSpec  # noqa: PLC0415, needed by few tables

    what = "`reverb_signature`"
    dtypes = tuple(each for each in _DTYPES if each not in _NOT_SUPPORTED_BY_REVERB)
    signature = _read(what, nest, dtypes, lambda dtype, shape: TensorSpec(shape, _table_note.dtype_named(dtype)))
    try:
        return _table_note.encode(max_times_sampled or 0, signature)
    except ValueError as error:
        raise InvalidArgumentError(f"{what}: {error}") from error


def _read(
    what: str, nest: object, dtypes: tuple[str, ...], make: Callable[[str, tuple[int | None, ...]], Any]
) -> object:
    """Returns `nest` with each column replaced by what `make` returns for its dtype and its shape."""
    if not any(True for _ in _leaves(nest)):
        raise InvalidArgumentError(f'{what} has no columns; a column is text such as "float32[?,84,84]"')

    def convert(place: str, value: object) -> object:
        if isinstance(value, dict):
            return {key: convert(f"{place}.{key}" if place else key, each) for key, each in value.items()}
        if isinstance(value, list):
            return [convert(f"{place}[{index}]", each) for index, each in enumerate(value)]
        column = _COLUMN.fullmatch(value) if isinstance(value, str) else None
        sizes = [] if column is None or not (column[2] or "").strip() else column[2].split(",")
        if column is None or not all(_SIZE.fullmatch(size.strip()) for size in sizes):
            raise InvalidArgumentError(
                f'{_named(what, place)} must be a dtype and a shape, such as "float32[?,84,84]"; got {value!r}'
            )
        if column[1] not in dtypes:
            raise InvalidArgumentError(
                f"{_named(what, place)} has the dtype `{column[1]}`; supported are {', '.join(dtypes)}"
            )
        return make(column[1], tuple(None if size.strip() == "?" else int(size) for size in sizes))

    return convert("", nest)


def _named(what: str, place: str) -> str:
    return f"{what}: `{place}`" if place else what


def _leaves(nest: object) -> Iterator[object]:
    if isinstance(nest, dict | list):
        for each in nest.values() if isinstance(nest, dict) else nest:
            yield from _leaves(each)
    else:
        yield nest
