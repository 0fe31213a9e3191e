"""Items of one table in blocks of many: how far ahead they are fetched, how long one waits, and what goes back."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy.typing as npt

from engram import Batch, Dataset
from engram.compat.reverb import _nest
from engram.errors import ClosedError, SignatureError, UnavailableError
from engram.store import AnyStore

__all__ = ["Block", "Fetching", "blocks", "first_block"]

_LOG = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class Block(NamedTuple):
    """Items side by side, in the order in which they were drawn.

    Attributes:
        info: Five arrays `[B]`, as the fields of `SampleInfo`.
        columns: Arrays `[B, T, ...]`; `[B, ...]` where squeezed; `[sum of T, ...]` where ragged.
        splits: For a ragged column i64 `[B + 1]`: item `i` has its rows from `splits[i]` to `splits[i + 1]`. Else None.
        squeezed: Of each column: whether it has no time axis.
    """

    info: tuple[Array, ...]
    columns: list[Array]
    splits: list[Array | None]
    squeezed: list[bool]

    def __len__(self) -> int:
        return len(self.info[0])

    def items(self) -> "Iterator[Block]":
        """Each item as a block of its own."""
        for at in range(len(self)):
            columns = [
                column[at : at + 1] if splits is None else column[None, splits[at] : splits[at + 1]]
                for column, splits in zip(self.columns, self.splits, strict=True)
            ]
            info = tuple(field[at : at + 1] for field in self.info)
            yield Block(info, columns, [None] * len(columns), self.squeezed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How items are fetched.

    Attributes:
        ahead: Items that may have been drawn and not be used yet.
        per_stream: Items after which a new stream is opened; None: never.
        timeout: Seconds to wait in vain before it ends; None: for ever.
        max_items: Ends after so many; None: never.
        returns: Wait for a server that went away, for ever.
    """

    ahead: int
    per_stream: int | None = None
    timeout: float | None = None
    max_items: int | None = None
    returns: bool = False


_POLL = 0.2
"""Seconds after which a waiting reader says so: whoever wants to stop it can do so then."""


def blocks(store: AnyStore, table: str, fetching: Fetching) -> Iterator[Block | None]:
    """Yields what the table gives, and None now and then while it gives nothing.

    Once it is closed, what was fetched and not yielded goes back: counters are undone, and items of a queue regain
    their place.

    Raises:
        UnknownTableError, ClosedError, UnavailableError, OutOfMemoryError: As of `engram.Dataset`.
    """
    reader = _Reader(store, table, fetching)
    while not reader.is_done():
        try:
            yield from reader.stream()
        except SignatureError:
            if reader.one_by_one:
                raise
            reader.one_by_one = True  # cells of several shapes, which went back
        except (UnavailableError, ClosedError) as error:
            if not fetching.returns:
                raise
            reader.lost(error)
            yield None


def first_block(store: AnyStore, table: str) -> Block:
    """One item, waiting until there is one."""
    return _block(store.sample(table, 1))


class _Reader:
    """Opens one stream after the other."""

    def __init__(self, store: AnyStore, table: str, fetching: Fetching) -> None:
        self._store = store
        self._table = table
        self._fetching = fetching
        self._left = fetching.max_items
        self._waiting_since: float | None = None
        self._times_lost = 0
        self._in_vain = False
        self.one_by_one = False

    def is_done(self) -> bool:
        """Everything was had, or waited for in vain."""
        return self._left == 0 or self._in_vain

    def stream(self) -> Iterator[Block | None]:
        """Yields what one stream gives; a last None if it ended for want of items."""
        bounds = [bound for bound in (self._left, self._fetching.per_stream) if bound is not None]
        ahead = self._fetching.ahead
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        batches = Dataset(
            self._store,
            self._table,
            1 if self.one_by_one else max(1, ahead // 2),  # one half is in use while the other is being fetched
            at_least=1,
            prefetch=max(1, ahead - 1) if self.one_by_one else 1,
            max_items=min(bounds, default=None),
            timeout=min(_POLL, self._patience()),
        )
        count = 0
        with closing(cast("Any", iter(batches))) as stream:
            for batch in stream:
                block = _block(batch)
                count += len(block)
                if self._left is not None:
                    self._left -= len(block)
                self._times_lost = 0
                self._waiting_since = None
                yield block
                self._waiting_since = time.monotonic()
        if not bounds or count < min(bounds):
            self._in_vain = self._patience() == 0
            yield None

    def _patience(self) -> float:
        """Seconds that may still be waited."""
        timeout = self._fetching.timeout
        if timeout is None:
            return math.inf
        waited = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        return max(0.0, timeout - waited)

    def lost(self, error: Exception) -> None:
        """Rests a while: the server is away."""
        if self._times_lost == 0:
            _LOG.warning("sampling from `%s` waits for its server: %s", self._table, error)
        self._waiting_since = None  # the clock is the rate limiter's
        time.sleep(min(1.0, 0.01 * 2**self._times_lost))
        self._times_lost += self._times_lost < _LONGEST_REST


_LONGEST_REST = 7
"""Doublings of a rest of 10 ms, up to a second."""


def _block(batch: Batch) -> Block:
    info = batch.info
    fields = (info.key, info.probability, info.table_size, info.priority, info.times_sampled)
    columns = _leaves(batch.data)
    splits = [None] * len(columns) if batch.row_splits is None else _leaves(batch.row_splits)
    return Block(fields, columns, splits, _leaves(batch.squeezed))


def _leaves(nest: Any) -> list[Any]:  # noqa: ANN401, a nest
    if type(nest) is tuple and not any(isinstance(each, list | tuple | dict) for each in nest):
        return list(nest)  # all that is written through this package
    return _nest.flatten(nest)
