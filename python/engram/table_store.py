"""`TableStore`: the methods that a store and a client share."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._closing_context import ClosedAtBlockEnd
from engram._item_arrays import batch_priorities, key_array, priority_array
from engram._nest_checks import IsDeclared, check_equal_lists, check_number_lists, check_one_nest, declared_by
from engram._store_options import warn_of_limiter
from engram.batch import Batch, Sample
from engram.errors import InvalidArgumentError
from engram.info import Checkpoint, TableInfo
from engram.patterns import Pattern
from engram.peek import Histogram, HistogramOf, Peek, PeekOrder, histogram, peek
from engram.rate_limiters import AnyRateLimiter
from engram.scan import Order, Scan
from engram.table import Table
from engram.writer import BatchedWriter, PatternWriter, TrajectoryWriter
from engram.writer_options import WriterOptions

__all__ = ["TableStore"]


class TableStore(ClosedAtBlockEnd):
    """Tables that can be written and sampled: the methods shared by `Store` and `Client`.

    All methods are thread-safe. Ctrl-C interrupts calls that wait. If a durable store cannot write a change, because
    the disk is full for example, the call that made the change raises `StorageError`; the change stays in memory and
    is written as soon as that is possible.
    """

    _native: _engram.Store

    def _native_for_writer(self) -> _engram.Store:
        """The tables that a new writer writes to."""
        return self._native

    def _declares(self, tables: Collection[str] | None = None) -> IsDeclared:
        """Returns a function that finds columns in the signatures of some tables; None: of all."""

        def signatures() -> list[Nest]:
            return [info.signature for name, info in self.info().items() if tables is None or name in tables]

        return declared_by(signatures)

    def insert(
        self, data: Nest, priorities: Mapping[str, float], *, timeout: float | None = None, time_axis: bool = False
    ) -> int:
        """Inserts one item into one or several tables, and waits until all of them have it.

        Args:
            data: Nest of arrays, numbers and strings: dicts, lists, tuples, namedtuples, and node types registered with
                optree in the namespace "engram", which are returned as dicts. Each leaf is a column. By default the
                data is one step, whose columns are sampled without a time axis, as `[B, ...]`. A Python number gets the
                dtype that a signature gives its column, otherwise int64, float64, bool or complex128.
            priorities: Priority of the item in each table, by table name. The tables share the data.
            timeout: Seconds to wait for the tables' rate limiters. `None`: no limit, except as stated below.
            time_axis: True if the leaves are `[T, ...]`, to be sampled as `[B, T, ...]`.

        Returns:
            Key of the item, the same in all tables.

        Raises:
            SignatureError: The data does not match a table's signature, or has a list of numbers or, with `time_axis`,
                of equal nests, and no signature has its columns. No table has the item.
            PriorityError: A priority is NaN, or a Prioritized selector of the table does not allow it.
            DeadlineExceededError: A table did not accept the item in time. The text names the tables that have it.
            BackpressureError: Without `timeout`, a table of a `Store` accepts no more items before it is sampled, but
                this is the only thread of the process, so nothing is sampled. The text names the tables that have the
                item.
            UnsatisfiableError: The item is larger than a table's `max_bytes`.
            InvalidArgumentError: `priorities` is empty or not a mapping, or another argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or a table dropped.
        """
        if not isinstance(priorities, Mapping):
            raise InvalidArgumentError(
                f'`priorities` must map table names to priorities, such as {{"replay": 1.0}}; '
                f"got {_checks.short_repr(priorities)}"
            )
        check_number_lists(data, self._declares(priorities))
        if time_axis:
            check_equal_lists(data, "step", self._declares(priorities))
        try:
            return self._native.insert(data, list(priorities.items()), timeout, time_axis)
        except InvalidArgumentError as error:
            if isinstance(data, str):
                hint = f'; `insert` takes the data first, then the priorities, such as {{"{data}": 1.0}}'
                raise InvalidArgumentError(f"{error}{hint}") from None
            raise

    def insert_batch(
        self,
        table: str,
        items: Nest,
        priorities: npt.ArrayLike = 1.0,
        *,
        time_axis: bool = False,
        timeout: float | None = None,
    ) -> npt.NDArray[np.uint64]:
        """Inserts many items into a table, in order, and waits until the table has all of them.

        Recorded transitions, for example, are one call:

            store.insert_batch("replay", {"obs": obs, "action": action, "next_obs": next_obs})  # arrays [N, ...]

        The `data` of a batch of `scan` or `sample` can be inserted again, also into another store; with
        `time_axis=True` if its columns have a time axis. A ragged batch cannot, because its rows are steps, not items;
        lists of equal columns need a signature.
        Small items share chunks of about 16 KiB.

        Args:
            table: Name of the table.
            items: Nest of arrays `[N, ...]`, as in `insert`: row `i` of every leaf is item `i`.
            priorities: Priority of all items, or `[N]`, one for each.
            time_axis: True if the leaves are `[N, T, ...]`: items of `T` steps, as `insert` with `time_axis` and
                patterns create them. False: items of one step, without a time axis.
            timeout: Seconds to wait for the table's rate limiter, for the whole call. `None`: no limit, except as
                stated below.

        Returns:
            u64 `[N]`: keys of the items.

        Raises:
            SignatureError: The arrays differ in `N` or `T`, one is a masked array, the items are a list instead of one
                nest, or they do not match the table's signature; or they have a list of equal nests, and the signature
                does not have its columns. Nothing is inserted.
            PriorityError: A priority is NaN, or a Prioritized selector of the table does not allow it. Nothing is
                inserted.
            InvalidArgumentError: `priorities` has another length, or another argument is invalid. Nothing is inserted.
            DeadlineExceededError: The table did not accept all items in time. The text states how many it has: the
                first ones. The others are not inserted later.
            BackpressureError: The table accepts no more items before it is sampled, but this is the only thread of the
                process, so nothing is sampled. The text states how many items the table has, as for
                `DeadlineExceededError`.
            UnsatisfiableError: An item is larger than the table's `max_bytes`.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        check_number_lists(items)
        check_one_nest("`items`", items, "item", self._declares([table]))
        check_equal_lists(items, "item", self._declares([table]))
        return self._native.insert_batch(table, items, batch_priorities(priorities), timeout, time_axis)

    def writer(self, *, history: int = 64, **options: Unpack[WriterOptions]) -> TrajectoryWriter:
        """Creates a writer that builds items from arbitrary slices of its steps.

        Args:
            history: Number of most recent steps that items can refer to.
            **options: Options of `engram.WriterOptions`.

        Returns:
            The writer. It belongs to one thread.

        Raises:
            InvalidArgumentError: An argument is invalid.
            TypeError: An option is unknown.
        """
        return TrajectoryWriter(self, history=history, **options)

    def pattern_writer(self, patterns: Sequence[Pattern], **options: Unpack[WriterOptions]) -> PatternWriter:
        """Creates a writer whose items are declared as patterns.

        Args:
            patterns: Patterns that create the items; at least one.
            **options: Options of `engram.WriterOptions`.

        Returns:
            The writer. It belongs to one thread.

        Raises:
            InvalidArgumentError: An argument is invalid.
            TypeError: An option is unknown.
        """
        return PatternWriter(self, patterns, **options)

    def batched_writer(
        self, num_envs: int, patterns: Sequence[Pattern], **options: Unpack[WriterOptions]
    ) -> BatchedWriter:
        """Creates a writer for environments that step together, whose items are declared as patterns.

        Args:
            num_envs: Number of environments.
            patterns: Patterns that create the items of each environment; at least one.
            **options: Options of `engram.WriterOptions`.

        Returns:
            The writer. It belongs to one thread.

        Raises:
            InvalidArgumentError: An argument is invalid.
            TypeError: An option is unknown.
        """
        return BatchedWriter(self, num_envs, patterns, **options)

    def sample(
        self, table: str, n: int, *, at_least: int | None = None, timeout: float | None = None, pad: bool = False
    ) -> Batch:
        """Draws `n` items with replacement, and waits until they are available.

        Args:
            table: Name of the table.
            n: Number of items. The rate limiter need not allow all of them at once.
            at_least: Minimum number of items. If at least this many are available, return them instead of waiting for
                `n`. Default: `n`.
            timeout: Seconds to wait. `None`: no limit, except as stated below. On timeout, all drawn items return to
                the table. With 0 and `at_least=1`, the call returns the available items, if there are any, without
                waiting.
            pad: Pad shorter items with zeros instead of returning ragged columns.

        Returns:
            A batch of `B` items with columns `[B, T, ...]`, or `[B, ...]` without a time axis. `B` is `n`, or with
            `at_least` from `at_least` to `n`.

        Raises:
            DeadlineExceededError: Too few items became available in time. The text states how many, and what the call
                waited for.
            UnsatisfiableError: The table can never provide this many items; or, without `timeout`, a `Store` does not
                have them, and this is the only thread of the process, so nothing can be inserted.
            SignatureError: The items' columns differ and cannot be stacked. They do not count as sampled, unless a
                client has received them from several shards.
            OutOfMemoryError: The batch needs more memory than the system provides.
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
            UnavailableError: A server cannot be reached within `reconnect_timeout`. If only its confirmation that
                it has removed the items is missing, the error has them as `batch`, also if it is of another class. So
                has the exception of a signal handler that ends the wait for it, such as `KeyboardInterrupt`.
        """
        n = _checks.integer("`n`", n, high=_checks.MAX_BATCH)
        if at_least is not None:
            at_least = _checks.at_least(at_least, "`n`", n)
        try:
            return Batch(self._native.sample(table, n, at_least, timeout, pad=pad))
        except BaseException as error:
            if isinstance(batch := getattr(error, "batch", None), _engram.Batch):
                error.batch = Batch(batch)  # type: ignore[attr-defined]
            raise

    @overload
    def scan(
        self,
        table: str,
        *,
        batch_size: int = ...,
        order: Order = ...,
        keys: Iterable[int] | None = ...,
        pad: bool = ...,
    ) -> Scan[Batch]: ...

    @overload
    def scan(
        self, table: str, *, batch_size: None, order: Order = ..., keys: Iterable[int] | None = ..., pad: bool = ...
    ) -> Scan[Sample]: ...

    def scan(
        self,
        table: str,
        *,
        batch_size: int | None = 256,
        order: Order = "oldest_first",
        keys: Iterable[int] | None = None,
        pad: bool = False,
    ) -> Scan[Batch] | Scan[Sample]:
        """Reads every item of a table once, without sampling: no counter, order or rate limiter changes.

        The items are read as they are at one moment during this call, with their priorities and counts; later changes
        of the table, and `reset`, do not affect the scan. Other calls use the table meanwhile.

        Args:
            table: Name of the table.
            batch_size: Maximum number of items per batch, at most 65,536. A batch is smaller at the end, and before an
                item that cannot be stacked with it: its columns differ in name, nesting, dtype or cell shape, or only
                some have a time axis. `None`: single items, as `Sample`.
            order: `"oldest_first"`, the order in which the items were inserted, or `"newest_first"`.
            keys: Read only the items with these keys, at most 4,194,304, each item once. Keys that are not in the table
                are skipped. Default: all items.
            pad: Pad shorter items with zeros instead of returning ragged columns.

        Returns:
            An iterator of batches, which can be closed early.

        Raises:
            OutOfMemoryError: The items do not fit into memory, or the server has too many open scans.
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        return Scan(self._native, table, batch_size, order, keys, pad=pad)

    def peek(
        self,
        table: str,
        n: int | None = None,
        *,
        order: PeekOrder = "newest",
        keys: Iterable[int] | None = None,
        max_bytes: int | None = None,
    ) -> Peek:
        """Looks at a few items without sampling them: no counter, order or rate limiter changes.

            for item in store.peek("replay", 3, order="highest_priority").items:
                print(item.key, item.priority, item.data["reward"])

        Takes milliseconds, whatever the size of the table. Of a table with more than 100,000 items, about as many are
        compared, chosen at random; `Peek.is_approximate` states that. The oldest and newest items are exact if the
        sampler or the remover is Fifo or Lifo and no item waits for its last acknowledgement.

        Args:
            table: Name of the table.
            n: Maximum number of items, at most 1,024. Default: 10, or all items with `keys`.
            order: `"newest"` or `"oldest"` by insertion, `"highest_priority"`, `"lowest_priority"` or `"most_sampled"`.
                Of equal items, the older one is first.
            keys: Only the items with these keys, at most 1,024. Keys that are not in the table are skipped.
            max_bytes: The data of an item with more bytes is not read; its `data` is None. Default: unlimited.

        Returns:
            The items, with their data and counters.

        Raises:
            OutOfMemoryError: The server has too many open scans; a peek counts as one.
            UnavailableError: The connection to the server was lost.
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        return peek(self._native, table, n, order, keys, max_bytes)

    def histogram(self, table: str, of: HistogramOf = "priority", *, bins: int = 32) -> Histogram:
        """Counts the items of a table by a value. Changes nothing.

        Takes milliseconds, whatever the size of the table. Of a table with more than 100,000 items, about as many are
        counted, chosen at random; `Histogram.is_approximate` states that.

        Args:
            table: Name of the table.
            of: `"priority"`; `"age"`, the number of items that were inserted after an item; or `"times_sampled"`.
            bins: Maximum number of bins, at most 1,024. The bins have equal width. Those of ages and numbers of samples
                are whole numbers wide, so there can be fewer; if all priorities are equal, there is one.

        Returns:
            The counts, and the edges of the bins.

        Raises:
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        return histogram(self._native, table, of, bins)

    @overload
    def update_priorities(
        self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike, *, wait: Literal[True] = True
    ) -> int: ...

    @overload
    def update_priorities(
        self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike, *, wait: bool
    ) -> int | None: ...

    def update_priorities(
        self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike, *, wait: bool = True
    ) -> int | None:
        """Sets the priorities of items. Keys that are no longer in the table are skipped.

        Updates of thousands of keys are not atomic: other threads can see some of them applied before the rest. A
        client sends more than 8,192 keys in several requests; if the server becomes unreachable, some of them may be
        applied and others not.

        Args:
            table: Name of the table.
            keys: `[B]` integers, as in `batch.info.key`.
            priorities: `[B]` numbers.
            wait: If False, a store does not wait until the change is durable, and a client does not wait for the
                server's reply, unless 8 such changes are in flight. The server applies the changes in order. An error
                of the server is raised by a later change or by `close`; if neither follows, it is logged. If there are
                more than 8,192 priorities, they are first checked against the table's configuration, which may have to
                be fetched from the server.

        Returns:
            Number of keys found in the table; None if `wait` is False.

        Raises:
            PriorityError: A priority is NaN, or a Prioritized selector of the table does not allow it. No priority is
                changed.
            InvalidArgumentError: `keys` and `priorities` differ in length, have more than one axis, or are not numbers.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        return self._native.update_priorities(table, key_array(keys), priority_array(priorities), wait)

    @overload
    def delete(self, table: str, keys: npt.ArrayLike, *, wait: Literal[True] = True) -> int: ...

    @overload
    def delete(self, table: str, keys: npt.ArrayLike, *, wait: bool) -> int | None: ...

    def delete(self, table: str, keys: npt.ArrayLike, *, wait: bool = True) -> int | None:
        """Deletes items. Keys that are no longer in the table are skipped.

        Deleting thousands of keys is not atomic; see `update_priorities`.

        Args:
            table: Name of the table.
            keys: `[B]` integers, as in `batch.info.key`.
            wait: As in `update_priorities`.

        Returns:
            Number of keys found in the table; None if `wait` is False.

        Raises:
            InvalidArgumentError: `keys` has more than one axis, or is not integers.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        return self._native.delete(table, key_array(keys), wait)

    def reset(self, table: str) -> None:
        """Deletes all items of a table and sets its counters to 0.

        Waiting calls continue to wait; a waiting sample loses the items that it has already drawn.

        Args:
            table: Name of the table.

        Raises:
            UnknownTableError: There is no table of this name.
            ClosedError: The store is closed.
        """
        self._native.reset(table)

    def info(self) -> dict[str, TableInfo]:
        """Returns each table's configuration and statistics, by table name."""
        return {info["name"]: TableInfo.from_native(info) for info in self._native.info()}

    @property
    def tables(self) -> list[str]:
        """Names of the tables, sorted."""
        return self._native.tables()

    def create_table(self, table: Table) -> None:
        """Adds a table.

        Args:
            table: Configuration of the table.

        Raises:
            InvalidArgumentError: A table of this name exists.
            ClosedError: The store is closed.
        """
        _checks.instance_of("`table`", table, Table, "an engram.Table")
        self._native.create_table(table)
        warn_of_limiter(table.name, table.rate_limiter)

    def drop_table(self, table: str) -> None:
        """Removes a table and its items. Calls that wait for it raise `ClosedError`.

        Args:
            table: Name of the table.

        Raises:
            UnknownTableError: There is no table of this name.
            ClosedError: The store is closed.
        """
        self._native.drop_table(table)

    def set_rate_limiter(self, table: str, rate_limiter: AnyRateLimiter) -> None:
        """Replaces a table's rate limiter. The counts of inserts, samples and deletes stay.

        Args:
            table: Name of the table.
            rate_limiter: The new limiter, one of `engram.rate_limiters`.

        Raises:
            InvalidArgumentError: `min_size` is above the table's `max_size`, or inserts and samples would block each
                other forever.
            UnknownTableError: There is no table of this name.
            ClosedError: The store is closed.
        """
        _checks.instance_of("`rate_limiter`", rate_limiter, AnyRateLimiter, "one of engram.rate_limiters")
        _engram.check_progress(rate_limiter)
        self._native.set_rate_limiter(table, rate_limiter)

    def checkpoint(self) -> Checkpoint:
        """Writes all tables to the directory of the store, or of the server's store. Other calls continue meanwhile.

        Returns:
            The checkpoint, after it is complete: the next store that opens the directory starts from it.

        Raises:
            InvalidArgumentError: The store has no directory.
            StorageError: The checkpoint cannot be written. Earlier ones stay valid.
            ClosedError: The store is closed.
        """
        return Checkpoint(*self._native.checkpoint())

    def close(self) -> None:
        """Ends all waiting calls with `ClosedError`; later calls raise it too. Can be called more than once.

        Closing a store releases all its tables; closing a client leaves those of its server as they are. A client first
        waits for changes made with `wait=False`, and raises the first error among them.
        """
        self._native.close()
