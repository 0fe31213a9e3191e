"""How objects are shown: as aligned text, and as HTML tables in notebooks."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram import Nest, _engram
from engram._text import counted, printable

__all__ = ["MAX_ROWS", "aligned", "array_text", "column_rows", "html_table"]

MAX_ROWS = 40
"""Maximum number of columns of a batch that are shown."""


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns one indented line per row, each after a line break; the cells of a column are aligned."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"\n  {line}" for line in lines)


def html_table(caption: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns an HTML table; all texts are escaped."""
    from html import escape  # noqa: PLC0415, only notebooks need it

    def html_row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(html_row("td", row) for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{html_row('th', header)}{body}</table>"


def array_text(array: npt.NDArray[Any]) -> str:
    """Returns the values of an array on one line; of a long array, the first and last ones."""
    return np.array2string(array, separator=", ", threshold=6, max_line_width=10_000)


def column_rows(data: Nest, row_splits: Nest, lengths: Nest) -> list[tuple[str, str, str, str]]:
    """Returns name, dtype, shape, and range of lengths of each column of a batch, given its nests."""
    ragged = {name: np.diff(splits) for name, splits in _columns(row_splits).items() if splits is not None}
    padded = {name: column for name, column in _columns(lengths).items() if column is not None}
    columns = _columns(data)
    rows = [
        (
            printable(name) or "(data)",
            str(getattr(column, "dtype", type(column).__name__)),
            str(list(getattr(column, "shape", ()))),
            _lengths_text("ragged", ragged.get(name)) or _lengths_text("padded", padded.get(name)),
        )
        for name, column in list(columns.items())[:MAX_ROWS]
    ]
    if len(columns) > MAX_ROWS:
        rows.append((f"... {counted(len(columns) - MAX_ROWS, 'more column')}", "", "", ""))
    return rows


def _columns(nest: Nest) -> dict[str, Any]:
    """Returns the leaves of a nest by name."""
    leaves, names, _ = _engram.flatten(nest)
    return dict(zip(names, leaves, strict=True))


def _lengths_text(kind: str, lengths: npt.NDArray[np.int64] | None) -> str:
    return "" if lengths is None else f"{kind}: {min(lengths)} to {max(lengths)} steps per item"
