"""The columns of items, as a Parquet file stores them and as its metadata describes them."""

import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from engram import _engram
from engram._text import columns_text, nest_text
from engram.batch import Batch
from engram.errors import StorageError

__all__ = ["INFO", "KEY", "PLAIN_TYPES", "PRIORITY", "TIMES_SAMPLED", "FileColumn", "ItemSchema", "list_of"]

KEY, PRIORITY, TIMES_SAMPLED = "_key", "_priority", "_times_sampled"

INFO = {KEY: pa.uint64(), PRIORITY: pa.float64(), TIMES_SAMPLED: pa.int32()}
"""Columns that a file has in addition to those of the items."""

_METADATA = b"engram"
"""Key of the schema's metadata under which a file describes its items."""

_FORMAT = 1
"""Version of that description."""

_WHOLE_ITEM = "data"
"""Name in a file of the column of items that are a single array; in a table, it has no name."""

PLAIN_TYPES = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "text": pa.large_string(),
    "bytes": pa.large_binary(),
}
"""Arrow's types of values, by dtype, of the dtypes that Arrow has."""

# Arrow lacks these dtypes: a complex number is two floats, the others are stored as their bits.
_TYPES = PLAIN_TYPES | {
    "complex64": pa.float32(),
    "complex128": pa.float64(),
    "bfloat16": pa.uint16(),
    "float8_e4m3fn": pa.uint8(),
    "float8_e5m2": pa.uint8(),
}
"""Arrow's types of values, by dtype."""


def list_of(element: pa.DataType, size: int | None = None) -> pa.DataType:
    """Returns the type of a list without nulls: of `size` elements, or of any number."""
    field = pa.field("element", element, nullable=False)
    return pa.large_list(field) if size is None else pa.list_(field, size)


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file that Engram writes.

    Attributes:
        name: Name in the file.
        dtype: Name of the NumPy dtype, or `"text"` or `"bytes"`.
        shape: Shape of a cell.
        time_axis: True if a row is a list of cells, one per step.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    time_axis: bool

    @property
    def stored_size(self) -> int | None:
        """Number of values of a cell in the file; None for a single value, which is not in a list."""
        shape = (*self.shape, 2) if self.dtype.startswith("complex") else self.shape
        return math.prod(shape) if shape else None

    @property
    def value_type(self) -> pa.DataType:
        """Arrow's type of a value."""
        return _TYPES[self.dtype]

    @property
    def cell_type(self) -> pa.DataType:
        """Arrow's type of a cell: a value, or a list of fixed size, which must not be 0 in Parquet."""
        size = self.stored_size
        return self.value_type if size is None else list_of(self.value_type, size or None)

    @property
    def row_type(self) -> pa.DataType:
        """Arrow's type of a row."""
        return list_of(self.cell_type) if self.time_axis else self.cell_type


@dataclass(frozen=True, slots=True)
class ItemSchema:
    """The columns of items, and their nest.

    Attributes:
        structure: The nest, as the engine encodes it.
        columns: The columns, in the order of the nest's leaves.
    """

    structure: str
    columns: tuple[FileColumn, ...]

    @classmethod
    def of_batch(cls, batch: Batch) -> "ItemSchema":
        """Returns the schema of the items of a scan's batch."""
        native = batch._native  # noqa: SLF001, this package's own
        arrays, row_splits, _, structure = native.flat()  # type: ignore[union-attr]  # a scan's batches are native
        columns = zip(_engram.names(structure), arrays, row_splits, native.squeezed, strict=True)
        return cls(
            structure,
            tuple(
                FileColumn(
                    name or _WHOLE_ITEM,
                    _dtype_name(array),
                    array.shape[1 if squeezed or splits is not None else 2 :],
                    time_axis=not squeezed,
                )
                for name, array, splits, squeezed in columns
            ),
        )

    def difference(self, other: "ItemSchema") -> str:
        """Returns what this schema has where it first differs from `other`, for an error text."""
        if [column.name for column in self.columns] != [column.name for column in other.columns]:
            return columns_text([column.name for column in self.columns])
        for column, before in zip(self.columns, other.columns, strict=True):
            if column != before:
                steps = " per step" if column.time_axis else ""
                return f"column `{column.name}` {column.dtype}{list(column.shape)}{steps}"
        nest = nest_text(partial(_engram.unflatten, self.structure), len(self.columns))
        return f"the nest {nest}, where * is a column"

    def to_arrow(self) -> pa.Schema:
        """Returns the schema of a file of these items."""
        fields = [pa.field(column.name, column.row_type, nullable=False) for column in self.columns]
        columns = [asdict(column) for column in self.columns]
        description = {"format": _FORMAT, "structure": self.structure, "columns": columns}
        return pa.schema([*fields, *info_fields()], metadata={_METADATA: json.dumps(description)})

    @classmethod
    def from_arrow(cls, schema: pa.Schema, file: str) -> "ItemSchema | None":
        """Returns the schema that the metadata of a file describes; None if Engram has not written the file.

        Args:
            schema: The file's schema.
            file: The file's path, for errors.

        Raises:
            StorageError: The description is damaged, or a later version of Engram has written it.
        """
        text = (schema.metadata or {}).get(_METADATA)
        if text is None:
            return None
        try:
            description = json.loads(text)
            version = description["format"]
            if version == _FORMAT:
                return cls(_checked_structure(description), tuple(map(_checked_column, description["columns"])))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{file}: the description of its items in the metadata is damaged: {error!r}") from None
        raise StorageError(
            f"{file} has format {version!r}; this version of Engram reads format {_FORMAT}; use a newer version"
        )


def info_fields() -> list[pa.Field]:
    """Returns the fields of the columns in `INFO`."""
    return [pa.field(name, each, nullable=False) for name, each in INFO.items()]


def _dtype_name(array: Any) -> str:  # noqa: ANN401, an array
    if array.dtype != object:
        return str(array.dtype)
    # An empty array has no element to check. Either dtype will do, since there is nothing to store.
    return "bytes" if array.size and isinstance(array.flat[0], bytes) else "text"


def _checked_structure(description: Any) -> str:  # noqa: ANN401, JSON
    """Returns the structure of a description, after checking it."""
    structure = description["structure"]
    if len(_engram.names(structure)) != len(description["columns"]):
        raise ValueError("the nest and the list of columns differ in length")
    return str(structure)


def _checked_column(description: Any) -> FileColumn:  # noqa: ANN401, JSON
    """Returns a column of a description, after checking it."""
    name, dtype, shape, time_axis = (description[key] for key in ("name", "dtype", "shape", "time_axis"))
    valid = (
        isinstance(name, str)
        and dtype in _TYPES
        and isinstance(time_axis, bool)
        and isinstance(shape, list)
        and all(isinstance(size, int) and size >= 0 for size in shape)
    )
    if not valid:
        raise ValueError(f"not a column: {description}")
    return FileColumn(name, dtype, tuple(shape), time_axis)
