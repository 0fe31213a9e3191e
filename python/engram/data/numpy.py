"""A table as NumPy arrays."""

from collections.abc import Iterable
from typing import Unpack

from engram.data.elements import Element, Options
from engram.data.table_reader import TableReader
from engram.store import TableStore

__all__ = ["dataset"]


def dataset(store: TableStore, table: str, **options: Unpack[Options]) -> Iterable[Element]:
    """A table's items or steps, as NumPy arrays.

        for element in dataset(store, "replay", batch_size=256):
            learn(element.data)

    Nothing changes them later, and no two elements share memory that is theirs to write. Steps and single items are
    views of the block that they were read in, which lives as long as any of them: copy those that you keep.

    Args:
        store: Where the table is: an `engram.Store` or `engram.Client`.
        table: Its name.
        **options: Each of `engram.data.Options`.

    Returns:
        An iterable of `Element`s, whose leaves are arrays `[B, T, ...]`, or `Ragged` where items of a batch differ in
        length. It may be iterated any number of times. Each iterator fetches ahead on lease: what it has not yielded
        when it ends goes back.

    Raises:
        InvalidArgumentError: An option is not what `Options` says.
        TypeError: There is no such option.
        SignatureError: On iteration: items of a batch differ in columns, dtypes or shapes, or there are no `steps`: a
            column has no time axis, or an item's columns differ in length. They go back; what came before is yielded.
        UnsatisfiableError: On iteration: the table can never hold as many items as make a batch, each of which it hands
            out so many times only.
        UnknownTableError, ClosedError, UnavailableError: On iteration: there is no such table, it or its store is gone,
            or the server is.
    """
    return TableReader.of(store, table, options)
