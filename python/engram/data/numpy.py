"""A table as NumPy arrays."""

from collections.abc import Iterable
from typing import Unpack

from engram.data.elements import Element, Options
from engram.data.table_reader import TableReader
from engram.table_store import TableStore

__all__ = ["dataset"]


def dataset(store: TableStore, table: str, **options: Unpack[Options]) -> Iterable[Element]:
    """Returns a dataset of a table's items or steps as NumPy arrays.

        for element in dataset(store, "replay", batch_size=256):
            learn(element.data)

    Elements are not changed after they are yielded, and writing to one does not change another. Steps and single items
    are views of the block that they were read in, and keep its memory alive: copy the ones that you store.

    Args:
        store: The `engram.Store` or `engram.Client` that has the table.
        table: The table's name.
        **options: Options of `engram.data.Options`.

    Returns:
        An iterable of `Element`s with leaves `[B, T, ...]`, or `Ragged` if the items of a batch differ in length. It
        can be iterated any number of times. Each iterator fetches ahead, on lease; items of which it has yielded
        nothing when it ends are returned to the table.

    Raises:
        InvalidArgumentError: An argument has a type or value that is not allowed.
        TypeError: An option is unknown.
        SignatureError: On iteration: items of a batch differ in columns, dtypes or shapes; or, with `steps`, a column
            has no time axis or the columns of an item differ in length. These items are returned to the table; elements
            read before are yielded first.
        UnsatisfiableError: On iteration: the table has `max_times_sampled` and can never hold enough items for a batch.
        UnknownTableError: On iteration: the table does not exist.
        ClosedError: On iteration: the table was dropped, or the store closed.
        UnavailableError: On iteration: the server cannot be reached.
        DeadlineExceededError: On iteration: the server did not reply in time when the iteration began, or before it
            ended because of `timeout`; or it did not confirm the last items in time.
    """
    return TableReader.of(store, table, options)
