"""Text of errors and reports: nests, and text from outside, such as names of tables and notes of files."""

from collections.abc import Callable
from typing import Any

__all__ = ["nest_text", "printable"]


def nest_text(unflatten: Callable[[list[Any]], Any], num_leaves: int) -> str:
    """Returns a nest as text, with `*` for each leaf: `(*,)`, `{'a': *}`.

    Args:
        unflatten: Returns the nest with the given leaves.
        num_leaves: Number of leaves of the nest.
    """
    return str(unflatten(["*"] * num_leaves)).replace("'*'", "*")


def printable(text: str) -> str:
    r"""Returns `text` with control characters escaped, such as `\x1b`, so that a terminal shows them on one line.

    All characters that `str.isprintable` rejects are escaped, also U+00A0, U+3000, and emoji newer than this Python.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
