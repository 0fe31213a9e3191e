"""A table as NumPy arrays."""

from collections.abc import Iterable
from typing import Unpack

from engram.data.elements import Element, Options, Reading
from engram.store import AnyStore

__all__ = ["dataset"]


def dataset(store: AnyStore, table: str, **options: Unpack[Options]) -> Iterable[Element]:
    """A table's items or steps, as NumPy arrays that own their memory.

        for element in dataset(store, "replay", batch_size=256):
            learn(element.data)

    Args:
        store: Where the table is.
        table: Its name.
        **options: See `Options`.

    Returns:
        An iterable of `Element`s, whose columns may be `Ragged`. Each iterator fetches ahead on lease: what it has not
        yielded when it ends goes back.

    Raises:
        InvalidArgumentError: An option is not what `Options` says.
    """
    return Reading(store, table, **options)
