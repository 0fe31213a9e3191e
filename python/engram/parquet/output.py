"""Writes batches of items to Parquet files."""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from engram._text import printable
from engram.batch import Batch
from engram.errors import SignatureError
from engram.parquet.arrow_arrays import arrow_array
from engram.parquet.item_schema import INFO, ItemSchema, info_fields

__all__ = ["Output"]

_MAX_GROUP_ROWS = 1_048_576
_MAX_GROUP_BYTES = 64 << 20
"""Limits of a row group, which is in memory while it is written. The bytes are those before compression."""


class Output:
    """A file, or a directory of files, that batches are added to. The `with` block completes it.

    Args:
        path: The file, which is overwritten if it exists, or the directory, which must exist.
        items_per_file: Maximum number of items per file of a directory. None: `path` is a file.
        row_group_size: Number of items per row group; None for as many as fit.
    """

    def __init__(self, path: Path, items_per_file: int | None, row_group_size: int | None) -> None:
        self._path = path
        self._items_per_file = items_per_file
        self._row_group_size = row_group_size
        self._item_schema: ItemSchema | None = None  # of the current file
        self._arrow_schema = pa.schema(info_fields())
        self._file: _File | None = None
        self._num_files = 0

    def add(self, batch: Batch) -> None:
        """Writes the items of a scan's batch.

        Raises:
            SignatureError: They do not fit into the file; see `write_parquet`.
        """
        item_schema = ItemSchema.of_batch(batch)
        if item_schema != self._item_schema:
            self._begin(item_schema, int(batch.info.key[0]))
        rows = _record_batch(batch, item_schema, self._arrow_schema)
        while rows.num_rows:
            file = self._file or self._open()
            room = rows.num_rows if self._items_per_file is None else self._items_per_file - file.num_rows
            file.add(rows.slice(0, room))
            rows = rows.slice(room)
            if file.num_rows == self._items_per_file:
                self._close_file()

    def _begin(self, item_schema: ItemSchema, key: int) -> None:
        """Begins a file for items with other columns; `key` is the key of the first of them."""
        if self._item_schema is not None and self._items_per_file is None:
            raise SignatureError(
                f"the items of a file must have the same columns; item {key} has "
                f"{item_schema.difference(self._item_schema)}, and those before it have "
                f"{self._item_schema.difference(item_schema)}; for a directory of files, pass `items_per_file`"
            )
        for column in item_schema.columns:
            if column.name in INFO:
                raise SignatureError(
                    f"column `{column.name}` must have another name: Engram adds a column of this name to the file"
                )
            if "\0" in column.name:
                raise SignatureError(
                    f"column `{printable(column.name)}` must have a name without NUL, at which other programs end it"
                )
        self._close_file()
        self._item_schema = item_schema
        self._arrow_schema = item_schema.to_arrow()

    def _open(self) -> "_File":
        """Opens the next file."""
        path = self._path if self._items_per_file is None else self._path / f"part-{self._num_files:010}.parquet"
        self._num_files += 1
        self._file = _File(path, self._arrow_schema, self._row_group_size)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            if self._file is not None:
                self._file.abandon()
            return
        if not self._num_files:  # the table is empty
            self._open()
        self._close_file()


class _File:
    """A Parquet file, written in row groups.

    Attributes:
        num_rows: Number of rows that were added.
    """

    def __init__(self, path: Path, schema: pa.Schema, row_group_size: int | None) -> None:
        self.num_rows = 0
        self._schema = schema
        self._max_group_rows = row_group_size or _MAX_GROUP_ROWS
        self._max_group_bytes = None if row_group_size else _MAX_GROUP_BYTES
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0
        self._path = path
        self._writer = pq.ParquetWriter(
            str(path),
            schema,
            filesystem=LocalFileSystem(),
            compression="zstd",
            # Statistics of lists take time, and readers do not use them.
            write_statistics=[field.name for field in schema if not pa.types.is_nested(field.type)],
        )

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows."""
        self.num_rows += rows.num_rows
        while rows.num_rows:
            part = rows.slice(0, self._max_group_rows - self._group_rows)
            rows = rows.slice(part.num_rows)
            self._group.append(part)
            self._group_rows += part.num_rows
            self._group_bytes += part.nbytes
            is_large = self._max_group_bytes is not None and self._group_bytes >= self._max_group_bytes
            if self._group_rows == self._max_group_rows or is_large:
                self._write_group()

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._group, self._schema)
        self._group.clear()
        self._writer.write_table(group, row_group_size=max(1, self._group_rows))
        self._group_rows = self._group_bytes = 0

    def close(self) -> None:
        """Completes the file, and waits until it is on disk."""
        if self._group:
            self._write_group()
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def abandon(self) -> None:
        """Closes the file although rows are missing."""
        with suppress(pa.ArrowException, OSError, ValueError):
            self._writer.close()


def _record_batch(batch: Batch, item_schema: ItemSchema, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the items of a batch as rows."""
    arrays, row_splits, _, _ = batch._native.flat()  # type: ignore[union-attr]  # noqa: SLF001, a scan's are native
    columns = map(arrow_array, item_schema.columns, arrays, row_splits)
    info = batch.info
    info_columns = map(pa.array, (info.key, info.priority, info.times_sampled))
    return pa.RecordBatch.from_arrays([*columns, *info_columns], schema=schema)
