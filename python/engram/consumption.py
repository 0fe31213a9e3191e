"""Counts how many of a dataset's fetched items are consumed, for readers that split or combine items."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from engram import _engram

__all__ = ["ConsumptionTracker"]

MAX_HOLD = 120.0
"""Seconds after which, at the next request, all fetched items count as consumed.

A timer starts at a request and covers the items fetched until then. It restarts at the first request at which all of
these are consumed. At a request after it has expired, all items fetched so far count as consumed: also those fetched
after the timer started. An item fetched right after the start may wait for almost twice the time."""

_LEASE_FRACTION = 0.2
"""Share of the server's `lease_timeout` that replaces `MAX_HOLD` if it is less. After `lease_timeout`, the server would
return the item to its table and hand it out again."""


class ConsumptionTracker:
    """Counts consumed items whose pieces are delivered in order: an item is consumed with its first piece.

    A piece is an item, or one of the steps or sequences that the reader splits it into; a batch has several pieces. A
    block (`ColumnBlock`) has all pieces that one call fetched.

    The code that delivers pieces assigns the result of `count_pieces` or `count_pieces_up_to` to `delivered`, or to
    `consumed`, right before it delivers. No call happens in between, so Ctrl-C cannot strike there. TensorFlow takes
    all pieces of a block without further calls: its readers assign `consumed` when TensorFlow requests more. If
    sampling removes items, the reader of `engram.compat.reverb` has one item per block, and assigns `fetched` to
    `delivered` before it delivers the block.

    Assigning `delivered` also acknowledges the items at once, which is required if sampling removes items from the
    table. Items counted by `consumed` are acknowledged when the next ones are requested. One reader may use a tracker
    for several streams, one after the other.

    Attributes:
        consumed: Number of consumed items, in the order they were fetched. Set by the code that delivers pieces.
        fetched: Number of items fetched so far. Set by the code that reads the streams.
        num_pieces: Number of pieces of all items so far.
        removes_items: Whether sampling removes items from the table, so that they must be acknowledged at once. Set by
            the code that reads the streams.
    """

    def __init__(self, all_consumed_at_end: Callable[[], bool] | None = None) -> None:
        """Starts with nothing fetched.

        Args:
            all_consumed_at_end: Called by `finish`, before unconsumed items are returned to their table. Returns True
                if every fetched item counts as consumed. Default: all do.
        """
        self.consumed = 0
        self.fetched = 0
        self.num_pieces = 0
        self.removes_items = False
        self._delivered_pieces = 0  # as of the last `count_pieces` or `count_pieces_up_to`
        self._passed_items = 0  # number of items that `_first_pieces` no longer lists
        self._first_pieces: list[int] = []  # of each later item, the number of pieces before its first one
        self._holding = True  # until `stop_holding`
        self._all_consumed_at_end = all_consumed_at_end
        self._timed_items = 0  # number of items that had been fetched at `_timer_begin`
        self._timer_begin = 0.0  # in seconds of `time.monotonic`
        self._stream: _engram.Stream | None = None
        self._consumed_before = 0  # items of earlier streams
        self._max_hold = MAX_HOLD  # seconds; less if the server's lease timeout is short

    def begin(self, stream: _engram.Stream) -> None:
        """Counts the items of a new stream from now on. Items that are not consumed have returned to their table.

        Args:
            stream: The engine's stream, which `Dataset.read` passes.
        """
        if (kept := self.consumed - self._passed_items) < len(self._first_pieces):
            self.num_pieces = self._first_pieces[kept]
            del self._first_pieces[kept:]
        self.fetched = self._consumed_before = self.consumed
        self._stream = stream
        lease_timeout = stream.lease_timeout
        self._max_hold = MAX_HOLD if lease_timeout is None else min(MAX_HOLD, _LEASE_FRACTION * lease_timeout)

    @property
    def delivered(self) -> int:
        """The same as `consumed`; assigning it also acknowledges the items."""
        return self.consumed

    @delivered.setter
    def delivered(self, consumed: int) -> None:
        of_this_stream = max(0, consumed - self._consumed_before)
        # No call after this: if Ctrl-C strikes before, nothing is counted.
        self.consumed = consumed
        if self._stream is not None:
            self._stream.delivered = of_this_stream

    def end(self) -> None:
        """Acknowledges the consumed items. Called before a stream is closed, and after `finish` if that is called."""
        self.delivered = self.consumed

    def add_items(self, pieces: Iterable[int]) -> None:
        """Adds the next items.

        Args:
            pieces: The number of pieces of each item.
        """
        passed = bisect_left(self._first_pieces, self._delivered_pieces)
        del self._first_pieces[:passed]
        self._passed_items += passed
        self._first_pieces += accumulate(pieces, initial=self.num_pieces)
        self.num_pieces = self._first_pieces.pop()

    def count_pieces(self, pieces: int) -> int:
        """Counts more pieces as delivered.

        Args:
            pieces: Number of pieces delivered since the last call.

        Returns:
            The number of items that are then consumed, for `consumed` or `delivered`.
        """
        return self.count_pieces_up_to(self._delivered_pieces + pieces)

    def count_pieces_up_to(self, total: int) -> int:
        """Counts the first `total` pieces as delivered.

        Args:
            total: Number of pieces delivered in total, as counted by `num_pieces`.

        Returns:
            The number of items that are then consumed, for `consumed` or `delivered`.
        """
        self._delivered_pieces = total
        return max(self.consumed, self._passed_items + bisect_left(self._first_pieces, total))

    def consume_all(self) -> None:
        """Counts all fetched items as consumed, although the reader still has pieces of them to deliver."""
        self.consumed = self.fetched

    def finish(self) -> None:
        """Decides whether all fetched items count as consumed.

        Called when the data ends or the engine raises an error, but not when the reader is closed early.
        """
        if self._all_consumed_at_end is None or self._all_consumed_at_end():
            self.consume_all()

    def stop_holding(self) -> None:
        """From now on, counts all fetched items as consumed when the next ones are requested.

        Called when an insert waits for the space that held items occupy.
        """
        self._holding = False

    def on_request(self) -> None:
        """Acknowledges the consumed items; called before the next ones are requested.

        If items have been held for too long, or after `stop_holding`, all fetched items count as consumed.
        """
        if self.consumed >= self._timed_items:
            self._timed_items, self._timer_begin = self.fetched, time.monotonic()
        elif time.monotonic() - self._timer_begin > self._max_hold:
            self.consume_all()
        if not self._holding:
            self.consume_all()
        self.delivered = self.consumed

    @property
    def is_holding(self) -> bool:
        """True if there are fetched items that are not consumed, and `stop_holding` was not called."""
        return self._holding and self.consumed < self.fetched
