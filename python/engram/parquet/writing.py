"""Writes the items of a table to Parquet files."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from engram import _checks
from engram._complete_output import complete_output
from engram._progress import progress_bar
from engram._text import printable
from engram.errors import InvalidArgumentError, StorageError
from engram.parquet.output import Output
from engram.scan import Order
from engram.table_store import TableStore

__all__ = ["write_parquet"]


def write_parquet(
    store: TableStore,
    table: str,
    path: str | os.PathLike[str],
    *,
    items_per_file: int | None = None,
    row_group_size: int | None = None,
    batch_size: int = 256,
    keys: Iterable[int] | None = None,
    order: Order = "oldest_first",
    progress: bool = False,
) -> int:
    """Writes the items of a table to a Parquet file or to a directory of Parquet files, one row per item.

        write_parquet(store, "replay", "replay.parquet")

    The items are read with `TableStore.scan`: from a snapshot, without sampling them. Memory is needed for a batch and
    a row group, not for the whole table.

    Columns of the file have the names of the table's columns, such as `obs/pixels`. A column with a time axis is a list
    of steps. A cell with axes is a list of fixed size with its values in C order; the shape is in the file's metadata.
    Text is a string, a complex number a list of two floats; bfloat16 and float8 are stored as their bits, as unsigned
    integers. The column of items that are a single array is `data`. Additional columns are `_key` (uint64),
    `_priority` (float64) and `_times_sampled` (int32).

    The file or directory appears under its name only once it is complete. If it replaces another, it gets the mode of
    that one. If `path` is a symbolic link, the file or directory that it points to is replaced.

    Args:
        store: A `Store` or a `Client`.
        table: Name of the table.
        path: The file, which is replaced if it exists; with `items_per_file` the directory, which must not exist or be
            empty.
        items_per_file: Write a directory of files `part-0000000000.parquet` and so on, with at most this many items
            each. A new file also begins where the items' columns differ from those before. Default: None, a single
            file.
        row_group_size: Number of items per row group. Default: as many as make about 64 MiB before compression, at most
            1,048,576.
        batch_size: Maximum number of items that are read at once, as in `TableStore.scan`.
        keys: As in `TableStore.scan`.
        order: As in `TableStore.scan`.
        progress: True for a progress bar on stderr, if that is a terminal, or in a notebook.

    Returns:
        Number of items written.

    Raises:
        SignatureError: Items differ in name, nesting, dtype or cell shape of their columns, which a single file does
            not allow; a column has the name of an additional one, or NUL in its name; or a text is not valid Unicode.
            Nothing is written.
        StorageError: The file cannot be written, or the one at `path` is in use, for example by a replay buffer. No
            file of this name is created or changed.
        OutOfMemoryError: A batch does not fit into memory.
        InvalidArgumentError: An argument is invalid.
        UnknownTableError: There is no table of this name.
        ClosedError: The store was closed, or the table dropped.
    """
    _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
    target = Path(_checks.path("`path`", path))
    _checks.boolean("`progress`", progress)
    items_per_file = _checks.optional_integer("`items_per_file`", items_per_file)
    row_group_size = _checks.optional_integer("`row_group_size`", row_group_size)
    _check_target(target, is_directory=items_per_file is not None)
    with (
        store.scan(table, batch_size=batch_size, keys=keys, order=order) as scan,
        complete_output(target, is_directory=items_per_file is not None) as temporary,
        progress_bar(f"writing {target.name}", scan.num_items, show=progress) as advance,
        _naming_file(target),
        Output(temporary, items_per_file, row_group_size) as output,
    ):
        for batch in scan:
            output.add(batch)
            advance(len(batch))
        return scan.num_items


@contextmanager
def _naming_file(target: Path) -> Iterator[None]:
    """Converts PyArrow's errors in the `with` block, for example that a value is too large."""
    try:
        yield
    except pa.ArrowException as error:
        if isinstance(error, OSError | MemoryError):
            raise
        raise StorageError(f"cannot write {printable(str(target))}: {error}") from error


def _check_target(target: Path, *, is_directory: bool) -> None:
    """Checks that a file or a directory can be created, before anything is read."""
    if not target.parent.is_dir():
        raise InvalidArgumentError(f"`path`: the directory {printable(str(target.parent))} does not exist; create it")
    if is_directory:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise InvalidArgumentError(
                f"`path` must not exist, or be an empty directory, with `items_per_file`; got {printable(str(target))}"
            )
    elif target.is_dir():
        raise InvalidArgumentError(
            f"`path` must be a file; {printable(str(target))} is a directory; for a directory of files, pass "
            "`items_per_file`"
        )
