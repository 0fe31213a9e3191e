"""Inserts the rows of Parquet files into a table."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram._item_arrays import priority_array
from engram._progress import progress_bar
from engram._text import dropped_items_text, printable
from engram.errors import EngramError, InvalidArgumentError
from engram.parquet.item_file import ItemFile, Rows
from engram.parquet.item_inserter import ItemInserter
from engram.scan import MAX_BATCH_SIZE
from engram.table_store import TableStore

__all__ = ["read_parquet"]


def read_parquet(
    store: TableStore,
    table: str,
    path: str | os.PathLike[str],
    *,
    columns: Iterable[str] | Mapping[str, str] | None = None,
    time_axis: bool = False,
    priorities: float | Literal["stored"] = "stored",
    batch_size: int = 256,
    progress: bool = False,
    timeout: float | None = None,
) -> int:
    """Inserts the rows of a Parquet file, or of all files of a directory, into a table, one item per row.

        read_parquet(store, "replay", "replay.parquet")

    If `write_parquet` has written the files, the items are equal bit for bit to those that were written: nest, dtypes,
    shapes, time axes and values. They get new keys, and `times_sampled` 0.

    Other files can be read as well. Their columns become those of the items:

    - A name such as `obs/pixels`, and a struct column `obs` with a field `pixels`, become `{"obs": {"pixels": ...}}`.
    - Booleans, integers and floats keep their dtype; strings become text, binary values become bytes. Columns that
      Arrow encodes with a dictionary are read as their values, not as indices.
    - A list, also a nested one, becomes an array: all rows must have lists of the same size. With `time_axis`, the
      outermost list of a column has the steps of an item, and may differ in size from row to row.
    - Arrow's `fixed_shape_tensor` is read as nested lists of its shape, `uuid` as bytes, `json` as text. Other
      extension types are errors.
    - Columns `_key` and `_times_sampled` are not read, unless `columns` names them.

    Memory is needed for a batch and a row group, not for the whole file. The columns of all files are checked before
    the first item is inserted. If an error names rows, the items of all rows before these stay in the table.

    Args:
        store: A `Store` or a `Client`.
        table: Name of the table.
        path: The file, or a directory, whose files `*.parquet` are read in the order of their names.
        columns: Columns to read, as names, or as a mapping from names in the items to names in the file, for example
            `{"obs": "observations", "reward": "rewards"}`. The columns become a nest of dicts. Default: all.
        time_axis: True if rows are trajectories, as in `Store.insert`. Not used for files that `write_parquet` has
            written: their metadata states which columns have a time axis.
        priorities: Priority of all items, or `"stored"`: that of the column `_priority`, or 1 if there is none.
            With a number, that column is not read.
        batch_size: Maximum number of rows that are read at once, at most 65,536.
        progress: True for a progress bar on stderr, if that is a terminal, or in a notebook.
        timeout: Seconds that each batch may wait for the table's rate limiter. `None` waits forever.

    Returns:
        Number of items inserted.

    Raises:
        SignatureError: A column has a type that items do not support, a value is missing, lists differ in size, or the
            items do not match the table's signature.
        StorageError: A file cannot be read.
        PriorityError: A priority is not allowed.
        DeadlineExceededError: The table did not accept a batch in time.
        InvalidArgumentError: An argument is invalid, or a file or column does not exist.
        UnknownTableError: There is no table of this name.
        ClosedError: The store was closed, or the table dropped.
    """
    _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
    _checks.table_name("`table`", table)
    source = Path(_checks.path("`path`", path))
    selected = _checked_columns(columns)
    _checks.boolean("`time_axis`", time_axis)
    if priorities == "stored":
        priority = None
    elif isinstance(priorities, str):
        raise InvalidArgumentError(f'`priorities` must be a number or "stored"; got {priorities!r}')
    else:
        priority = _checks.number("`priorities`", priorities)
    batch_size = _checks.integer("`batch_size`", batch_size, high=MAX_BATCH_SIZE)
    _checks.boolean("`progress`", progress)
    timeout = _checks.seconds("`timeout`", timeout)

    read_priorities = priority is None
    files = [ItemFile(file, selected, time_axis=time_axis, read_priorities=read_priorities) for file in _files(source)]
    total = sum(file.num_rows for file in files)
    with progress_bar(f"reading {source.name}", total, show=progress) as advance:
        for file in files:
            if file.structure is None:  # the file has neither columns of items nor rows
                continue
            has_time_axis = file.has_time_axis
            with ItemInserter(store, table, file.structure, has_time_axis=has_time_axis, timeout=timeout) as inserter:
                for rows in file.read(batch_size):
                    with _naming_rows(file, rows):
                        inserter.insert(rows.columns, _priorities(rows, priority))
                    advance(len(rows))
    return total


def _checked_columns(columns: Iterable[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    """Returns the names in the file of the columns to read, by their names in the items; None for all columns."""
    if columns is None:
        return None
    if not isinstance(columns, Mapping):
        names = _checks.elements("`columns`", columns, "a sequence of names, or a mapping from names in the items")
        columns = {name: name for name in names}
    for name in (*columns, *columns.values()):
        _checks.text("each name of `columns`", name)
    if not columns:
        raise InvalidArgumentError("`columns` must name a column; got none")
    return dict(columns)


def _files(path: Path) -> list[Path]:
    """Returns the file at a path, or all Parquet files of the directory."""
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise InvalidArgumentError(f"`path`: the directory {printable(str(path))} has no files `*.parquet`")
        return files
    if not path.exists():
        raise InvalidArgumentError(f"`path`: there is no file or directory {printable(str(path))}")
    return [path]


def _priorities(rows: Rows, priority: float | None) -> npt.NDArray[np.float64]:
    """Returns the priorities of rows: those that were read, or `priority`, or 1."""
    if rows.priorities is not None:
        return priority_array(rows.priorities)
    return np.full(len(rows), 1.0 if priority is None else priority)


@contextmanager
def _naming_rows(file: ItemFile, rows: Rows) -> Iterator[None]:
    """Names the file and its rows in errors of the `with` block."""
    try:
        yield
    except EngramError as error:
        text = f"{file}, rows {rows.first} to {rows.first + len(rows) - 1}: {dropped_items_text(str(error))}"
        raise type(error)(text) from error
