"""Columns of batches as Arrow arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engram.errors import SignatureError
from engram.parquet.item_schema import FileColumn

__all__ = ["arrow_array"]


def arrow_array(column: FileColumn, array: npt.NDArray[Any], row_splits: npt.NDArray[np.int64] | None) -> pa.Array:
    """Returns a column of a batch as an Arrow array.

    Args:
        column: Description of the column.
        array: `[B, ...]`, `[B, T, ...]`, or ragged.
        row_splits: i64 `[B + 1]` for a ragged array, otherwise None.

    Raises:
        SignatureError: A text is not valid Unicode.
    """
    if not column.time_axis:
        return _cells(column, array)
    if row_splits is None:
        items, steps = array.shape[:2]
        row_splits = np.arange(items + 1) * steps
        array = array.reshape(items * steps, *array.shape[2:])
    return pa.LargeListArray.from_arrays(pa.array(row_splits), _cells(column, array), type=column.row_type)


def _cells(column: FileColumn, cells: npt.NDArray[Any]) -> pa.Array:
    """Returns `cells` `[M, ...]` as an Arrow array of M elements."""
    values, size = _values(column, cells.reshape(-1)), column.stored_size
    if size is None:
        return values
    if size == 0:
        offsets = pa.array(np.zeros(len(cells) + 1, np.int64))
        return pa.LargeListArray.from_arrays(offsets, values, type=column.cell_type)
    return pa.FixedSizeListArray.from_arrays(values, type=column.cell_type)


def _values(column: FileColumn, values: npt.NDArray[Any]) -> pa.Array:
    """Returns `values` `[M]` as an Arrow array of a type that Arrow has."""
    if values.dtype != object:
        stored = np.dtype(column.value_type.to_pandas_dtype())
        return pa.array(values if values.dtype == stored else values.view(stored), column.value_type)
    try:
        return pa.array(values.tolist(), column.value_type)
    except UnicodeEncodeError as error:
        raise SignatureError(
            f"column `{column.name}` has a text that is not valid Unicode, which Parquet does not support: "
            f"{error.object!r}"
        ) from None
