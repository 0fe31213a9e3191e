"""What batches of tables and of replay buffers have in common."""

from typing import Any, ClassVar

import numpy.typing as npt

from engram._display import aligned, array_text, column_rows, html_table
from engram._text import counted

__all__ = ["BatchBase", "BatchInfoBase"]


class BatchInfoBase:
    """Arrays of a batch, by name; each is created on first access."""

    __slots__ = ("_arrays", "_native")

    _names: ClassVar[tuple[str, ...]]
    """Names of the arrays."""

    def __init__(self, native: Any) -> None:  # noqa: ANN401, the engine's batch
        self._native = native
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def _array(self, name: str) -> npt.NDArray[Any]:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = getattr(self._native, name)()
        return array

    def __repr__(self) -> str:
        arrays = {name: getattr(self, name) for name in self._names}
        rows = [(name, str(each.dtype), array_text(each)) for name, each in arrays.items() if each is not None]
        return f"{type(self).__name__}({counted(len(self._native), 'item')})" + aligned(rows)


class BatchBase:
    """A batch, displayed as a table of its columns."""

    __slots__ = ("_native", "data", "info")

    _native: Any
    data: Any

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return self._title + aligned(self._rows)

    def _repr_html_(self) -> str:
        return html_table(self._title, ("column", "dtype", "shape", ""), self._rows)

    @property
    def _title(self) -> str:
        return f"{type(self).__name__}({counted(len(self), 'item')})"

    @property
    def _rows(self) -> list[tuple[str, str, str, str]]:
        return column_rows(self.data, getattr(self, "row_splits", None), getattr(self, "lengths", None))
