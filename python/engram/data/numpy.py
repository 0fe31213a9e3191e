"""A table as NumPy arrays."""

from collections.abc import Iterable
from typing import Unpack

from engram.data.elements import Element, Options
from engram.data.reading import Reading
from engram.store import AnyStore

__all__ = ["dataset"]


def dataset(store: AnyStore, table: str, **options: Unpack[Options]) -> Iterable[Element]:
    """A table's items or steps, as NumPy arrays.

        for element in dataset(store, "replay", batch_size=256):
            learn(element.data)

    Nothing changes them later, and no two elements share memory that is theirs to write. Steps and single items are
    views of the block that they were read in, which lives as long as any of them: copy those that you keep.

    Args:
        store: Where the table is.
        table: Its name.
        **options: See `Options`.

    Returns:
        An iterable of `Element`s, whose columns may be `Ragged`. Each iterator fetches ahead on lease: what it has not
        yielded when it ends goes back.

    Raises:
        InvalidArgumentError: An option is not what `Options` says.
        SignatureError: On iteration: `steps` of items that have none, or of items that do not go together; those go
            back.
    """
    return Reading.of(store, table, options)
