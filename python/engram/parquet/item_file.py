"""A Parquet file as items: which columns are read, and what nest they become."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engram import _engram
from engram._text import columns_text, printable
from engram.errors import InvalidArgumentError, SignatureError, StorageError
from engram.parquet.column_reader import Cells, ColumnReader
from engram.parquet.item_schema import INFO, PRIORITY, ItemSchema

__all__ = ["ItemFile", "Rows"]

_READ_BUFFER = 1 << 20
"""Bytes of a column that are read at once."""


class Rows(NamedTuple):
    """Consecutive rows of a file.

    Attributes:
        first: Number of the first row.
        columns: The columns of the items, in the order of the nest's leaves.
        priorities: `[B]` numbers; None if the file has none, or they are not read.
    """

    first: int
    columns: list[Cells]
    priorities: npt.NDArray[Any] | None

    def __len__(self) -> int:
        cells = self.columns[0]
        return len(cells.values) if cells.splits is None else len(cells.splits) - 1


class _Leaf(NamedTuple):
    """A column of a file, or a field of a struct column, which is read as a column of its own."""

    path: tuple[str, ...]
    """The name of the column, and for a struct column the names of the nested fields."""
    type: pa.DataType


class ItemFile:
    """A Parquet file whose columns have been checked.

    Attributes:
        num_rows: Number of rows.
        structure: The nest of an item, as the engine encodes it; None if the file has no columns of items and no rows.
        has_time_axis: True if a column has a time axis.

    Args:
        path: The file.
        columns: Names in the file of the columns to read, by their names in the items. None: all columns.
        time_axis: True if the outermost lists of a row have its steps. Not used for files that Engram has written.
        read_priorities: True to read the column of the priorities, if there is one.

    Raises:
        StorageError: The file cannot be read.
        SignatureError: A column has a type that items do not support, or the names of the columns do not form a nest.
        InvalidArgumentError: There is no column of a name in `columns`.
    """

    def __init__(
        self, path: Path, columns: Mapping[str, str] | None, *, time_axis: bool, read_priorities: bool
    ) -> None:
        self._path = path
        self._name = printable(str(path))
        with self._open() as file:
            schema: pa.Schema = file.schema_arrow
            self.num_rows: int = file.metadata.num_rows
        item_schema = ItemSchema.from_arrow(schema, self._name)
        described = {} if item_schema is None else {column.name: column for column in item_schema.columns}
        leaves = self._leaves(schema)
        self._reads_priorities = read_priorities and PRIORITY in leaves
        selected = self._selected(leaves, columns, item_schema)

        def reader(name: str) -> ColumnReader:
            where, column = f"{self._name}: column `{name}`", described.get(name)
            if column is not None:
                return ColumnReader.described(where, leaves[name].type, column)
            return ColumnReader.plain(where, leaves[name].type, time_axis=time_axis)

        if item_schema is not None and columns is None:
            self.structure: str | None = item_schema.structure
            names = [column.name for column in item_schema.columns]
        elif selected:
            numbers, _, self.structure = _engram.flatten(self._nest(selected))
            names_in_file = list(selected.values())
            names = [names_in_file[number] for number in numbers]
        else:
            self.structure, names = None, []
        self._readers = [(leaves[name].path, reader(name)) for name in names]
        self.has_time_axis = any(each.time_axis for _, each in self._readers)
        if self._reads_priorities:
            self._priorities = ColumnReader.plain(
                f"{self._name}: column `{PRIORITY}`", leaves[PRIORITY].type, time_axis=False
            )

    def __str__(self) -> str:
        return self._name

    def read(self, batch_size: int) -> Iterator[Rows]:
        """Reads all rows, at most `batch_size` at once.

        Raises:
            StorageError: The file cannot be read.
            SignatureError: A value is missing, or lists differ in size.
        """
        names = {path[0] for path, _ in self._readers}
        names |= {PRIORITY} if self._reads_priorities else set()
        first = 0
        with self._open() as file:
            for batch in file.iter_batches(batch_size, columns=sorted(names)):
                columns = [reader.read(_array(batch, path), first) for path, reader in self._readers]
                priorities = self._priorities.read(batch[PRIORITY], first).values if self._reads_priorities else None
                yield Rows(first, columns, priorities)
                first += len(batch)

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        """Opens the file; errors inside the `with` block name it."""
        try:
            with pq.ParquetFile(self._path, buffer_size=_READ_BUFFER) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{self._name} cannot be read as a Parquet file: {error}") from error

    def _leaves(self, schema: pa.Schema) -> dict[str, _Leaf]:
        """Returns the columns by name; fields of struct columns are columns of their own."""
        leaves: dict[str, _Leaf] = {}

        def add(name: str, path: tuple[str, ...], data_type: pa.DataType) -> None:
            if pa.types.is_struct(data_type):
                for field in data_type:
                    add(f"{name}/{_escaped(field.name)}", (*path, field.name), field.type)
            elif name in leaves:
                raise SignatureError(f"{self._name} must not have several columns of the same name; got `{name}` twice")
            else:
                leaves[name] = _Leaf(path, data_type)

        for field in schema:
            add(field.name, (field.name,), field.type)
        return leaves

    def _selected(
        self, leaves: Collection[str], columns: Mapping[str, str] | None, item_schema: ItemSchema | None
    ) -> dict[str, str]:
        """Returns the names in the file of the columns to read, by names in the items."""
        if columns is not None:
            selected = dict(columns)
        elif item_schema is not None:
            selected = {column.name: column.name for column in item_schema.columns}
        else:
            selected = {name: name for name in leaves if name not in INFO}
        for name in selected.values():
            if name not in leaves:
                got = columns_text(sorted(leaves))
                if columns is not None:
                    raise InvalidArgumentError(f"`columns`: {self._name} has no column `{name}`; it has {got}")
                raise SignatureError(
                    f"{self._name} must have the column `{name}`, according to its metadata `engram`; got {got}; "
                    "another program has changed the file: select other columns with `columns`"
                )
        if columns is None:
            others = [name for name in leaves if name not in INFO and name not in selected]
            if others:
                raise SignatureError(
                    f"{self._name} must have no other columns than {columns_text(list(selected))}, according to its "
                    f"metadata `engram`; got also {columns_text(others)}; another program has changed the file: select "
                    "the columns to read with `columns`"
                )
        if self.num_rows and not selected:
            raise SignatureError(f"{self._name} must have a column of the items; got {columns_text(sorted(leaves))}")
        return selected

    def _nest(self, names: Collection[str]) -> dict[str, Any]:
        """Returns the nest of dicts that has columns of these names; its leaves are the numbers of the columns."""
        root: dict[str, Any] = {}
        for number, name in enumerate(names):
            node: Any = root
            *parents, last = _keys(name)
            for key in parents:
                node = node.setdefault(key, {}) if isinstance(node, dict) else node
            if not isinstance(node, dict) or last in node:
                above, below = next(
                    (one, other)
                    for one, other in permutations(names, 2)
                    if _keys(other)[: len(_keys(one))] == _keys(one)
                )
                raise SignatureError(
                    f"{self._name} must not have the column `{above}`, which has values, and below it the column "
                    f"`{below}`; select or rename columns with `columns`"
                )
            node[last] = number
        return root


def _array(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """Returns the values of the column, or of the field of a struct column, at `path`."""
    column, *fields = path
    array = batch[column]
    return pc.struct_field(array, fields) if fields else array


_PARTS = re.compile(r"\\[/\\0]|/|[^/\\]+|\\")


def _keys(name: str) -> list[str]:
    r"""Returns the keys of a column's name, as tables spell it: `a/b\/c` has the keys `a` and `b/c`."""
    keys = [""]
    for part in _PARTS.findall(name):
        if part == "/":
            keys.append("")
        elif part in {"\\/", "\\\\"}:
            keys[-1] += part[1]
        elif part != "\\0":
            keys[-1] += part
    return keys


def _escaped(key: str) -> str:
    """Returns a key as a part of a column's name."""
    return key.replace("\\", "\\\\").replace("/", "\\/") or "\\0"
