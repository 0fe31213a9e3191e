"""Text of errors and reports: columns, nests, numbers, and text from outside, such as names of tables."""

import re
from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "bytes_text",
    "column_text",
    "columns_text",
    "counted",
    "dropped_items_text",
    "nest_text",
    "number_text",
    "printable",
]

_KIBI = 1024


def dropped_items_text(text: str) -> str:
    """Changes a writer's error text for a function that drops the writer, and its waiting items with it.

    "They stay queued" becomes "they are dropped", and the advice becomes to sample in another thread.
    """
    text = re.sub(r", and `flush` sends (?:it|them) again$", "", text)
    text = text.replace("it stays queued", "it is dropped").replace("they stay queued", "they are dropped")
    text = re.sub(r" \(`max_(?:waiting|in_flight)_items` = \d+\)", " (these items are dropped)", text)
    advice = ": sample in another thread meanwhile, or read into a table that does not wait"
    batch_advice = "insert fewer items at once, or sample in another thread"
    return re.sub(rf": (?:sample (?:first|before you write more.*)|{batch_advice})$", advice, text)


def column_text(name: str) -> str:
    """Returns a column's name in backticks. Data that is one array has one column, whose name is empty."""
    return f"`{name}`" if name else "the data"


def columns_text(names: Sequence[str]) -> str:
    """Returns the names of all columns: "the columns `a`, `b`", or "a single array"."""
    if list(names) == [""]:
        return "a single array"
    return "the columns " + ", ".join(f"`{name}`" for name in names)


def counted(count: int, what: str) -> str:
    """Returns a number of things: `1 item`, `2,000 items`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number_text(number: float) -> str:
    """Returns a float as text that is unique to it, whole numbers without `.0`: `2`, `0.1`, `999999.5`."""
    text = f"{number:.15g}"
    return text if float(text) == number else repr(float(number))


def bytes_text(count: float) -> str:
    """Returns a number of bytes in a unit of matching size."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _KIBI:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _KIBI
    return f"{count:,.1f} TiB"


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
