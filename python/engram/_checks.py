"""Checks of arguments: each returns the value that it allows, in its plain Python type."""

import math
import operator
from typing import SupportsFloat

import numpy as np

from engram.errors import InvalidArgumentError

# What the native engine counts with.
MAX_I32 = 2**31 - 1
MAX_I64 = 2**63 - 1
MAX_U64 = 2**64 - 1

# Items of one batch: more are likelier a slip than meant, and would not fit into memory.
MAX_BATCH = 2**24


def integer(what: str, value: object, *, low: int = 1, high: int = MAX_I64) -> int:
    """An integer from `low` to `high`; NumPy's integers are integers, `True` is not."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301, what `operator.index` says of anything else
        found = operator.index(value)  # type: ignore[arg-type]  # what it is for
    except TypeError:
        raise InvalidArgumentError(f"{what} must be an integer; got {_describe(value)}") from None
    if found < low:
        raise InvalidArgumentError(f"{what} must be at least {low}; got {found}")
    if found > high:
        raise InvalidArgumentError(f"{what} must be at most {high}; got {found}")
    return found


def number(what: str, value: object) -> float:
    """A number that is not NaN; NumPy's scalars are numbers, `True` and text are not."""
    if isinstance(value, bool | str | bytes) or not isinstance(value, SupportsFloat):
        raise InvalidArgumentError(f"{what} must be a number; got {_describe(value)}")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"{what} must be a number; got {_describe(value)}") from None
    if math.isnan(found):
        raise InvalidArgumentError(f"{what} must be a number; got nan")
    return found


def finite(what: str, value: object) -> float:
    """A number that is neither NaN nor infinite."""
    found = number(what, value)
    if math.isinf(found):
        raise InvalidArgumentError(f"{what} must be finite; got {found}")
    return found


def positive(what: str, value: object) -> float:
    """A finite number above zero."""
    found = finite(what, value)
    if found <= 0:
        raise InvalidArgumentError(f"{what} must be greater than 0; got {found:g}")
    return found


def fraction(what: str, value: object) -> float:
    """A number from 0 to 1."""
    found = number(what, value)
    if not 0 <= found <= 1:
        raise InvalidArgumentError(f"{what} must be from 0 to 1; got {found:g}")
    return found


def boolean(what: str, value: object) -> None:
    """True or False; NumPy's count, other things that are true or false do not."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgumentError(f"{what} must be True or False; got {_describe(value)}")


def seconds(what: str, value: object) -> float | None:
    """Seconds to wait; None for ever."""
    if value is None:
        return None
    found = number(what, value)
    if found < 0:
        raise InvalidArgumentError(f"{what} must be at least 0, or None to wait for ever; got {found:g}")
    return found


def instance_of(what: str, value: object, union: object, hint: str) -> None:
    """An instance of one of `union`'s classes; the class itself is the likeliest slip."""
    if isinstance(value, union):  # type: ignore[arg-type]  # a union of classes is allowed
        return
    found = f"the class {value.__name__} itself; call it" if isinstance(value, type) else _describe(value)
    raise InvalidArgumentError(f"{what} must be {hint}; got {found}")


def text(what: str, value: object) -> None:
    """Text, which bytes are not."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be text; got {_describe(value)}")


def secret(what: str, value: object) -> None:
    """Text that no message repeats."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be text; got something of type {type(value).__name__}")


def table_name(what: str, value: object) -> None:
    """The name of a table."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be the name of a table; got {_describe(value)}")


def _describe(value: object) -> str:
    return f"{value!r} ({type(value).__name__})" if value is not None else "None"
