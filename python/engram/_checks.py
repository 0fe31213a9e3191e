"""Argument checks: each raises an error that names the argument (`what`), the value given and what is allowed."""

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsFloat, TypeVar

import numpy as np

from engram._text import number_text
from engram.errors import InvalidArgumentError, SignatureError

T = TypeVar("T")

# Largest values of the native engine's integers.
MAX_I32 = 2**31 - 1
MAX_I64 = 2**63 - 1
MAX_U64 = 2**64 - 1

# Maximum number of items in a batch. A larger number is probably a mistake: the batch would not fit into memory.
MAX_BATCH = 2**24


def integer(what: str, value: object, *, low: int = 1, high: int = MAX_I64) -> int:
    """Returns an integer from `low` to `high` as `int`. NumPy integers are allowed, bools are not."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301, as `operator.index` raises for other types
        number = operator.index(value)  # type: ignore[arg-type]  # it raises TypeError for other types
    except TypeError:
        raise InvalidArgumentError(f"{what} must be an integer; got {describe(value)}") from None
    if number < low:
        raise InvalidArgumentError(f"{what} must be at least {low}; got {number}")
    if number > high:
        raise InvalidArgumentError(f"{what} must be at most {high}; got {number}")
    return number


def optional_integer(what: str, value: object) -> int | None:
    """Returns None for None, otherwise an integer of at least 1 as `integer` does."""
    return None if value is None else integer(what, value)


def at_least(value: object, size_name: str, size: int) -> int:
    """Returns the argument `at_least` as an integer from 1 to `size`, the value of the argument `size_name`."""
    result = integer("`at_least`", value, low=-MAX_I64)
    if not 1 <= result <= size:
        raise InvalidArgumentError(f"`at_least` must be from 1 to {size_name} ({size}); got {result}")
    return result


def number(what: str, value: object) -> float:
    """Returns a number that is not NaN as `float`. NumPy scalars are allowed, bools and strings are not."""
    result = as_float(value)
    if result is None:
        raise InvalidArgumentError(f"{what} must be a number; got {describe(value)}")
    if math.isnan(result):
        raise InvalidArgumentError(f"{what} must be a number; got nan")
    return result


def finite(what: str, value: object) -> float:
    """Returns a number that is neither NaN nor infinite as `float`."""
    result = number(what, value)
    if math.isinf(result):
        raise InvalidArgumentError(f"{what} must be finite; got {result}")
    return result


def positive(what: str, value: object) -> float:
    """Returns a finite number above 0 as `float`."""
    result = finite(what, value)
    if result <= 0:
        raise InvalidArgumentError(f"{what} must be greater than 0; got {result:g}")
    return result


def fraction(what: str, value: object) -> float:
    """Returns a number from 0 to 1 as `float`."""
    result = number(what, value)
    if not 0 <= result <= 1:
        raise InvalidArgumentError(f"{what} must be from 0 to 1; got {number_text(result)}")
    return result


def boolean(what: str, value: object) -> None:
    """Checks for a Python or NumPy bool."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgumentError(f"{what} must be True or False; got {describe(value)}")


def seconds(what: str, value: object) -> float | None:
    """Returns a wait time in seconds; None waits forever."""
    if value is None:
        return None
    result = as_float(value)
    if result is None or not result >= 0:
        got = describe(value) if result is None else f"{result:g}"
        raise InvalidArgumentError(
            f"{what} must be a number of seconds, at least 0, or None to wait forever; got {got}"
        )
    return result


def instance_of(what: str, value: object, union: object, hint: str) -> None:
    """Checks for an instance of a class or of a union of classes.

    If the value is one of these classes itself, for example `Uniform` instead of `Uniform()`, the error advises to call
    it.
    """
    if isinstance(value, union):  # type: ignore[arg-type]  # a union of classes is allowed
        return
    got = describe(value)
    if isinstance(value, type) and issubclass(value, union):  # type: ignore[arg-type]
        got = f"the class {value.__name__} itself; call it"
    raise InvalidArgumentError(f"{what} must be {hint}; got {got}")


def text(what: str, value: object) -> None:
    """Checks for a str."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be a str; got {describe(value)}")


def choice(what: str, value: object, allowed: tuple[object, ...]) -> None:
    """Checks for one of a few values."""
    if not any(value is each or (isinstance(value, str) and value == each) for each in allowed):
        *others, last = (f'"{each}"' if isinstance(each, str) else str(each) for each in allowed)
        raise InvalidArgumentError(f"{what} must be {', '.join(others)} or {last}; got {describe(value)}")


def secret(what: str, value: object) -> None:
    """Checks for a str. The error does not contain the value."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be a str; got a value of type {type(value).__name__}")


def table_name(what: str, value: object) -> None:
    """Checks for a str that names a table."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be a str, the name of a table; got {describe(value)}")


def path(what: str, value: object, *, empty_hint: str = 'use "." for the working directory') -> str:
    """Returns a path as `str`. `empty_hint` is the advice if the path is empty; the default is for a directory."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidArgumentError(f"{what} must be a path, as a str or os.PathLike; got {describe(value)}")
    decoded = os.fsdecode(value)
    if not decoded:
        raise InvalidArgumentError(f"{what} must not be empty; {empty_hint}")
    return decoded


def file(what: str, value: object) -> str:
    """Returns the path of a file as `str`."""
    return path(what, value, empty_hint="give the path of a file")


def function(what: str, value: Callable[..., Any] | None) -> None:
    """Checks for something callable, or None."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(f"{what} must be a function or None; got {describe(value)}")


def elements(what: str, value: Iterable[T], hint: str) -> list[T]:
    """Returns the elements of an iterable as a list; str, bytes and mappings are rejected."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgumentError(f"{what} must be {hint}; got {describe(value)}")
    return list(value)


def table_names(what: str, value: Iterable[str]) -> set[str]:
    """Returns the distinct table names of an iterable."""
    listed = elements(what, value, "a sequence of table names")
    for each in listed:
        table_name(f"each of {what}", each)
    return set(listed)


def table_renames(what: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Returns a mapping of old table names to new ones as a dict, which is empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{what} must map old table names to new ones; got {describe(value)}")
    for old, new in value.items():
        table_name(f"each key of {what}", old)
        table_name(f"each value of {what}", new)
    return dict(value)


def not_masked(what: str, value: object) -> None:
    """Rejects masked arrays, and lists of them: NumPy would convert them to what their masks hide."""
    if has_mask(value):
        raise InvalidArgumentError(f"{what} must not be a masked array; pass `{what.strip('`')}.filled(value)` instead")


def column_not_table(column: str, value: object) -> None:
    """Rejects what an array would not have in full: tables, and arrays of other libraries with missing values.

    `column` names the column in the error.
    """
    kind = type(value).__name__
    if hasattr(value, "columns") and hasattr(value, "__array__") and not hasattr(value, "dtype"):
        raise SignatureError(
            f"{column} is a {kind}, whose columns have dtypes of their own; pass a dict of its columns as NumPy arrays"
        )
    nulls = getattr(value, "null_count", 0)  # of Polars and PyArrow
    if hasattr(getattr(value, "dtype", None), "na_value") and hasattr(value, "isna"):  # of pandas
        nulls = value.isna().sum()
    if nulls() if callable(nulls) else nulls:
        raise SignatureError(
            f"{column} is a {kind} with missing values, which an array cannot have; fill them in, or pass the values "
            "and a mask as two columns"
        )


def has_mask(value: object) -> bool:
    """True for a masked array, and for a list or tuple with one."""
    return is_masked(value) or (isinstance(value, list | tuple) and any(map(has_mask, value)))


def is_masked(value: object) -> bool:
    """True for a masked array. There are none before `numpy.ma` is imported, which takes long."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, getattr(module, "MaskedArray", ()))


def as_float(value: object) -> float | None:
    """Returns a number as `float`; None if the value is not a number."""
    if type(value) is float:  # the check below takes longer than many callers' work
        return value
    if isinstance(value, bool | np.bool_ | str | bytes) or not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def short_repr(value: object) -> str:
    """Returns the repr of a value on one line.

    If it is longer than 100 characters, returns its first 100, or the dtype and shape of an array.
    """
    text = re.sub(r"\n\s*", " ", repr(value))
    if len(text) <= _MAX_REPR:
        return text
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return text[:_MAX_REPR] + "..."


_MAX_REPR = 100


def describe(value: object) -> str:
    """Returns the `short_repr` of a value and its type."""
    return f"{short_repr(value)} ({type(value).__name__})" if value is not None else "None"
