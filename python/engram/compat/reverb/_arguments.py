"""Checks of arguments. A wrong type raises a `TypeError`, as in Reverb."""

import operator
import re

import numpy as np

from engram._checks import as_float, describe

__all__ = ["boolean", "describe", "host_and_port", "instance", "integer", "number", "positive", "text"]

_SCHEME = re.compile(r"dns:(///)?|ipv[46]:(?!\d+$)")
"""The gRPC scheme of an address. `ipv4:80` is not a scheme, but a host and a port."""


def host_and_port(address: str) -> str:
    """Returns the address without its gRPC scheme; unchanged if there is no `host:port` after the scheme."""
    scheme = _SCHEME.match(address)
    rest = address[scheme.end() :] if scheme else address
    return rest if ":" in rest else address


def integer(name: str, value: object) -> int:
    """Returns an integer. NumPy integers are accepted, bools are not."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301, as `operator.index` does for other types
        return operator.index(value)  # type: ignore[arg-type]  # raises a TypeError for other types
    except TypeError:
        raise TypeError(f"{_quoted(name)} must be an integer; got {describe(value)}") from None


def positive(name: str, value: object) -> int:
    """Returns an integer of at least 1."""
    number = integer(name, value)
    if number < 1:
        raise ValueError(f"{name} ({value}) must be a positive integer")
    return number


def number(name: str, value: object) -> float:
    """Returns a number as a float. Bools, text and arrays of several elements are not accepted."""
    result = as_float(value)
    if result is None:
        raise TypeError(f"`{name}` must be a number; got {describe(value)}")
    return result


def boolean(name: str, value: object) -> None:
    """Checks that the value is a bool or a NumPy bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False; got {describe(value)}")


def text(name: str, value: object) -> str:
    """Returns text. Bytes are not accepted."""
    if not isinstance(value, str):
        raise TypeError(f"{_quoted(name)} must be text; got {describe(value)}")
    return value


def _quoted(name: str) -> str:
    return name if "`" in name else f"`{name}`"


def instance(name: str, value: object, kind: type, hint: str) -> None:
    """Checks that the value is an instance of a class. Passing the class itself is a common mistake."""
    if isinstance(value, kind):
        return
    got = describe(value)
    if isinstance(value, type) and issubclass(value, kind):
        got = f"the class {value.__name__} itself; call it"
    raise TypeError(f"`{name}` must be {hint}; got {got}")
