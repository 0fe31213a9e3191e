"""Checks of arguments: what has another type is a `TypeError`, as in Reverb."""

import operator
import re
from typing import SupportsFloat

import numpy as np

__all__ = ["boolean", "describe", "host_and_port", "instance", "integer", "number", "text"]

_SCHEME = re.compile(r"dns:(///)?|ipv[46]:(?!\d+$)")
"""What gRPC allows in front of an address; not a host of such a name."""


def host_and_port(address: str) -> str:
    """`host:port` of an address as gRPC takes them."""
    found = _SCHEME.match(address)
    rest = address[found.end() :] if found else address
    return rest if ":" in rest else address


def integer(name: str, value: object) -> int:
    """An integer; NumPy's integers are integers, True is not."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301, what `operator.index` says of anything else
        return operator.index(value)  # type: ignore[arg-type]  # what it is for
    except TypeError:
        raise TypeError(f"`{name}` must be an integer; got {describe(value)}") from None


def number(name: str, value: object) -> float:
    """A number; True, text and arrays of several are none."""
    if isinstance(value, bool | str | bytes) or not isinstance(value, SupportsFloat):
        raise TypeError(f"`{name}` must be a number; got {describe(value)}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number; got {describe(value)}") from None


def boolean(name: str, value: object) -> None:
    """True or False; NumPy's count, other things that are true or false do not."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False; got {describe(value)}")


def text(name: str, value: object) -> str:
    """Text, which bytes are not."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be text; got {describe(value)}")
    return value


def describe(value: object) -> str:
    """A value and its type, for a message."""
    return f"{value!r} ({type(value).__name__})" if value is not None else "None"


def instance(name: str, value: object, kind: type, hint: str) -> None:
    """An instance of a class; the class itself is the likeliest slip."""
    if isinstance(value, kind):
        return
    found = f"the class {value.__name__} itself; call it" if isinstance(value, type) else describe(value)
    raise TypeError(f"`{name}` must be {hint}; got {found}")
