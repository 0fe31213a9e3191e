"""Reads a column of a Parquet file, and checks each of its rows."""

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engram.errors import SignatureError
from engram.parquet.item_schema import PLAIN_TYPES, FileColumn

__all__ = ["Cells", "ColumnReader"]

_DTYPES = {value_type: dtype for dtype, value_type in PLAIN_TYPES.items()} | {pa.string(): "text", pa.binary(): "bytes"}
"""Dtypes by Arrow's type."""

_TENSOR = "arrow.fixed_shape_tensor"

_PLAIN_EXTENSIONS = {"arrow.json", "arrow.uuid"}
"""Extension types whose values are those of their storage."""


class Cells(NamedTuple):
    """A column of several items.

    Attributes:
        values: `[M, ...]`: the cells of all items.
        splits: i64 `[B + 1]`: item `i` has the cells `splits[i]` to `splits[i + 1] - 1`. None: the column has no time
            axis, and cell `i` is that of item `i`.
    """

    values: npt.NDArray[Any]
    splits: npt.NDArray[np.int64] | None


@dataclass(slots=True)
class ColumnReader:
    """Reads a column of a file.

    Attributes:
        name: File and column, for errors.
        time_axis: True if a row is a list of cells.
        sizes: Sizes of the nested lists that a cell is in the file. None, until the first list is read, for lists
            without a fixed size: those of all rows must have the size of the first.
        column: Description of the column, if Engram has written the file.
    """

    name: str
    time_axis: bool
    sizes: list[int | None]
    column: FileColumn | None = None

    @classmethod
    def described(cls, name: str, data_type: pa.DataType, column: FileColumn) -> "ColumnReader":
        """Returns the reader of a column of a file that Engram has written.

        Raises:
            SignatureError: The column has another type than its description, or an extension type that items do not
                support.
        """
        sizes: list[int | None] = [] if column.stored_size is None else [column.stored_size]
        value_type, levels = _unnested(name, data_type)
        if len(levels) != column.time_axis + len(sizes) or _dtype(value_type) != _dtype(column.value_type):
            raise SignatureError(
                f"{name} must have the type {column.row_type}, according to the metadata `engram` of the file; got "
                f"{data_type}; another program has changed the file: remove that metadata"
            )
        return cls(name, column.time_axis, sizes, column)

    @classmethod
    def plain(cls, name: str, data_type: pa.DataType, *, time_axis: bool) -> "ColumnReader":
        """Returns the reader of a column of any file; with `time_axis`, the outermost list of a row has its steps.

        Raises:
            SignatureError: Items do not support the type.
        """
        value_type, sizes = _unnested(name, data_type)
        if _dtype(value_type) is None:
            raise SignatureError(
                f"{name} must have booleans, integers, floats, text, bytes, or lists or structs of them; got "
                f"{data_type}; convert the column, or select others with `columns`"
            )
        has_steps = time_axis and bool(sizes)
        return cls(name, has_steps, sizes[1:] if has_steps else sizes)

    def read(self, array: pa.Array, first_row: int) -> Cells:
        """Returns the cells of consecutive rows.

        Args:
            array: The rows.
            first_row: Number of the first row in the file, for errors.

        Raises:
            SignatureError: A value is missing, a row has no steps, or lists differ in size.
        """
        rows = np.arange(first_row, first_row + len(array))  # the row of each cell
        splits = None
        if self.time_axis:
            lengths, array = self._elements(array, rows, 1)
            if not lengths.all():
                raise SignatureError(
                    f"{self.name} must have a step in every row; row {rows[lengths.argmin()]} is empty"
                )
            splits = np.concatenate([[0], np.cumsum(lengths)])
            rows = np.repeat(rows, lengths)
        per_cell = 1  # number of elements of `array` per cell
        for level, size in enumerate(self.sizes):
            lengths, array = self._elements(array, rows, per_cell)
            expected = int(lengths[0]) if size is None and len(lengths) else size or 0
            if len(lengths):
                self.sizes[level] = expected
            if not (lengths == expected).all():
                index = (lengths != expected).argmax()
                raise SignatureError(
                    f"{self.name} must have lists of the same size in all rows, here {expected}; got "
                    f"{lengths[index]} in row {rows[index // per_cell]}"
                    + ("" if self.time_axis else "; for items with a time axis, pass `time_axis=True`")
                )
            per_cell *= expected
        values = self._values(array, rows, per_cell)
        return Cells(values.reshape(len(rows), *self._shape), splits)

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of a cell."""
        return self.column.shape if self.column is not None else tuple(size or 0 for size in self.sizes)

    def _elements(self, array: pa.Array, rows: npt.NDArray[np.int64], per_cell: int) -> tuple[Any, pa.Array]:
        """Returns the sizes of the lists in `array`, and all their elements. Each cell has `per_cell` of the lists."""
        array = self._without_nulls(array, rows, per_cell)
        if pa.types.is_fixed_size_list(array.type):
            return np.full(len(array), array.type.list_size), array.flatten()
        return np.diff(array.offsets.to_numpy()), array.flatten()

    def _values(self, array: pa.Array, rows: npt.NDArray[np.int64], per_cell: int) -> npt.NDArray[Any]:
        """Returns values, of which each cell has `per_cell`, as an array of the column's dtype."""
        array = self._without_nulls(array, rows, per_cell)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_fixed_size_binary(array.type):
            array = array.cast(pa.binary())
        values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        if self.column is None or self.column.dtype in {"text", "bytes", str(values.dtype)}:
            return values
        return values.view(_numpy_dtype(self.column.dtype))

    def _without_nulls(self, array: pa.Array, rows: npt.NDArray[np.int64], per_cell: int) -> pa.Array:
        """Returns an array, extension types as their storage, after checking that no value is missing."""
        if array.null_count:
            index = array.is_null().to_numpy(zero_copy_only=False).argmax()
            raise SignatureError(
                f"{self.name} must have a value in every row; row {rows[index // per_cell]} has null; fill or remove it"
            )
        if isinstance(array, pa.ExtensionArray):
            return self._without_nulls(_stored(array), rows, per_cell)
        return array


def _stored(array: pa.ExtensionArray) -> pa.Array:
    """Returns the storage of an array without nulls; tensors become nested lists."""
    if array.type.extension_name != _TENSOR:
        return array.storage
    nested = array.storage.flatten()
    for size in reversed(array.type.shape):
        nested = pa.FixedSizeListArray.from_arrays(nested, size)
    return nested


def _unnested(name: str, data_type: pa.DataType) -> tuple[pa.DataType, list[int | None]]:
    """Returns the type of the values in nested lists, and the size of the lists of each level.

    A tensor is one level per dimension.

    Raises:
        SignatureError: Items do not support an extension type; the error names the column `name`.
    """
    sizes: list[int | None] = []
    while True:
        if isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == _TENSOR:
            permutation = list(data_type.permutation or [])
            if permutation != sorted(permutation):
                raise SignatureError(
                    f"{name} must have tensors whose dimensions are not permuted; got the permutation {permutation}; "
                    "convert the column, or select others with `columns`"
                )
            sizes.extend(data_type.shape)
            data_type = data_type.value_type
        elif isinstance(data_type, pa.BaseExtensionType):
            if data_type.extension_name not in _PLAIN_EXTENSIONS:
                raise SignatureError(
                    f"{name} must not have an extension type, except fixed_shape_tensor, json and uuid; got "
                    f"{data_type}; convert the column, or select others with `columns`"
                )
            data_type = data_type.storage_type
        elif pa.types.is_fixed_size_list(data_type):
            sizes.append(data_type.list_size)
            data_type = data_type.value_type
        elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            sizes.append(None)
            data_type = data_type.value_type
        else:
            return data_type, sizes


def _dtype(data_type: pa.DataType) -> str | None:
    """Returns the dtype of an Arrow type, or `"text"` or `"bytes"`; None for types that items do not support."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    return "bytes" if pa.types.is_fixed_size_binary(data_type) else _DTYPES.get(data_type)


def _numpy_dtype(name: str) -> Any:  # noqa: ANN401, a dtype or a scalar's class
    """Returns the dtype of this name; `ml_dtypes` has those that NumPy lacks."""
    if name.startswith("complex"):
        return name
    try:
        return getattr(importlib.import_module("ml_dtypes"), name)
    except ModuleNotFoundError:
        raise SignatureError(f"columns of {name} need the package `ml_dtypes`: pip install ml_dtypes") from None
