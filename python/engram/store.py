"""The store, a set of named tables in this process; and `TableStore`, the methods that a store and a client share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy.typing as npt

from engram import _checks, _engram
from engram._checkpoint_thread import CheckpointThread
from engram._item_arrays import key_array, priority_array
from engram._store_options import checked_progress, checked_seed, checked_tables, open_options
from engram._text import number_text
from engram.batch import Batch, Sample
from engram.errors import ClosedError, ForkedError, InvalidArgumentError
from engram.info import Checkpoint, TableInfo
from engram.patterns import Pattern
from engram.rate_limiters import AnyRateLimiter
from engram.scan import Order, Scan
from engram.table import Table
from engram.writer import DEFAULT_MAX_WAITING_ITEMS, BatchedWriter, Compression, PatternWriter, TrajectoryWriter

__all__ = ["Store", "TableStore"]


class TableStore:
    """Tables that can be written and sampled: the methods shared by `Store` and `Client`.

    All methods are thread-safe. Ctrl-C interrupts calls that wait. If a durable store cannot write a change, because
    the disk is full for example, the call that made the change raises `StorageError`; the change stays in memory and
    is written as soon as that is possible.
    """

    _native: _engram.Store

    def insert(
        self,
        data: Any,  # noqa: ANN401, a nest
        priorities: Mapping[str, float],
        *,
        timeout: float | None = None,
        time_axis: bool = False,
    ) -> int:
        """Inserts one item into one or several tables, and waits until all of them have it.

        Args:
            data: Nest of arrays, numbers and strings: dicts, lists, tuples, namedtuples, and node types registered with
                optree in the namespace "engram", which are returned as dicts. Each leaf is a column. By default the
                data is one step, whose columns are sampled without a time axis, as `[B, ...]`.
            priorities: Priority of the item in each table, by table name. The tables share the data.
            timeout: Seconds to wait for the tables' rate limiters. `None` waits forever.
            time_axis: True if the leaves are `[T, ...]`, to be sampled as `[B, T, ...]`.

        Returns:
            Key of the item, the same in all tables.

        Raises:
            SignatureError: The data does not match a table's signature. No table has the item.
            PriorityError: A priority is NaN, or it is negative, infinite or too large and the table's selector is
                Prioritized.
            DeadlineExceededError: A table did not accept the item in time. The text names the tables that have it.
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
        return self._native.insert(data, list(priorities.items()), timeout, time_axis)

    def writer(
        self,
        *,
        history: int = 64,
        chunk_length: int | None = None,
        max_in_flight_items: int = 1_024,
        max_waiting_items: int | None = DEFAULT_MAX_WAITING_ITEMS,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> TrajectoryWriter:
        """Creates a writer that builds items from arbitrary slices of its steps.

        Args:
            history: Number of most recent steps that items can refer to.
            chunk_length: Number of steps per chunk. Default: as many as fit into about 16 KiB, from 1 to 16. Items
                become visible at the first append after their chunk is full, at the end of an episode, or on `flush`.
            max_in_flight_items: Maximum number of items in flight: sent, and not yet known to be in their tables.
                `append` and `create_item` wait while there are as many. They also wait briefly while more than 4 MiB
                are in flight to a server.
            max_waiting_items: Maximum number of items that wait because the rate limiters of their tables are closed,
                items in a chunk that is not full included. `append` and `create_item` wait while there are as many. A
                call that creates or sends several items may exceed it by these. Default: 16. `None`: only
                `max_in_flight_items` applies.
            timeout: Seconds that `append` and `create_item` wait at these limits, for a full write buffer of a durable
                store, or for a server's description of a table. `None` waits forever, 0 does not wait.
            compression: `"auto"` compresses large columns if that saves memory. `"off"` never compresses. `"delta"`
                compresses integers as differences between steps, which suits images that change little.

        Returns:
            The writer. It belongs to one thread.

        Raises:
            InvalidArgumentError: An argument is invalid.
        """
        return TrajectoryWriter(
            self,
            history=history,
            chunk_length=chunk_length,
            max_in_flight_items=max_in_flight_items,
            max_waiting_items=max_waiting_items,
            timeout=timeout,
            compression=compression,
        )

    def pattern_writer(
        self,
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None = None,
        max_in_flight_items: int = 1_024,
        max_waiting_items: int | None = DEFAULT_MAX_WAITING_ITEMS,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> PatternWriter:
        """Creates a writer whose items are declared as patterns.

        Args:
            patterns: Patterns that create the items; at least one.
            chunk_length: As in `writer`.
            max_in_flight_items: As in `writer`.
            max_waiting_items: As in `writer`.
            timeout: As in `writer`, in seconds.
            compression: As in `writer`.

        Returns:
            The writer. It belongs to one thread.

        Raises:
            InvalidArgumentError: An argument is invalid.
        """
        return PatternWriter(
            self,
            patterns,
            chunk_length=chunk_length,
            max_in_flight_items=max_in_flight_items,
            max_waiting_items=max_waiting_items,
            timeout=timeout,
            compression=compression,
        )

    def batched_writer(
        self,
        num_envs: int,
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None = None,
        max_in_flight_items: int = 65_536,
        max_waiting_items: int | None = DEFAULT_MAX_WAITING_ITEMS,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> BatchedWriter:
        """Creates a writer for environments that step together, whose items are declared as patterns.

        Args:
            num_envs: Number of environments.
            patterns: Patterns that create the items of each environment; at least one.
            chunk_length: As in `writer`.
            max_in_flight_items: As in `writer`, for all environments together.
            max_waiting_items: As in `writer`, for all environments together.
            timeout: As in `writer`, in seconds.
            compression: As in `writer`.

        Returns:
            The writer. It belongs to one thread.

        Raises:
            InvalidArgumentError: An argument is invalid.
        """
        return BatchedWriter(
            self,
            num_envs,
            patterns,
            chunk_length=chunk_length,
            max_in_flight_items=max_in_flight_items,
            max_waiting_items=max_waiting_items,
            timeout=timeout,
            compression=compression,
        )

    def sample(
        self,
        table: str,
        n: int,
        *,
        at_least: int | None = None,
        timeout: float | None = None,
        pad: bool = False,
    ) -> Batch:
        """Draws `n` items with replacement, and waits until they are available.

        Args:
            table: Name of the table.
            n: Number of items. The rate limiter need not allow all of them at once.
            at_least: Minimum number of items. If at least this many are available, return them instead of waiting for
                `n`. Default: `n`.
            timeout: Seconds to wait. `None` waits forever. On timeout, all drawn items return to the table. With 0 and
                `at_least=1`, the call returns the available items, if there are any, without waiting.
            pad: Pad shorter items with zeros instead of returning ragged columns.

        Returns:
            A batch of `B` items with columns `[B, T, ...]`, or `[B, ...]` without a time axis. `B` is `n`, or with
            `at_least` from `at_least` to `n`.

        Raises:
            DeadlineExceededError: Too few items became available in time. The text states how many, and what the call
                waited for.
            UnsatisfiableError: The table can never provide this many items.
            SignatureError: The items' columns differ and cannot be stacked.
            OutOfMemoryError: The batch needs more memory than the system provides.
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        n = _checks.integer("`n`", n, high=_checks.MAX_BATCH)
        if at_least is not None:
            at_least = _checks.minimum_size(at_least, "`n`", n)
        return Batch(self._native.sample(table, n, at_least, timeout, pad=pad))

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
            OutOfMemoryError: The items do not fit into memory.
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            ClosedError: The store was closed, or the table dropped.
        """
        return Scan(self._native, table, batch_size, order, keys, pad=pad)

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
                server's reply, unless 8 such changes are in flight. The server applies them in order. An error of the
                server is raised by a later change or by `close`. More than 8,192 keys are first checked against the
                table's configuration, which may have to be fetched from the server.

        Returns:
            Number of keys found in the table; None if `wait` is False.

        Raises:
            PriorityError: A priority is NaN, or it is negative, infinite or too large and the table's selector is
                Prioritized. No priority is changed.
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

        Waiting calls are not ended; a waiting sample loses the items that it has already drawn.

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
            InvalidArgumentError: Nothing could ever be sampled under this limiter.
            UnknownTableError: There is no table of this name.
            ClosedError: The store is closed.
        """
        _checks.instance_of("`rate_limiter`", rate_limiter, AnyRateLimiter, "one of engram.rate_limiters")
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

        A store releases all its tables. The tables of a client's server stay. A client first waits for changes made
        with `wait=False`, and raises the first error among them.
        """
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ForkedError):  # a forked child cannot close the store; its parent does
            self.close()


_MAX_SYNC_INTERVAL = 60.0
"""Maximum of `sync_interval`, in seconds."""


class Store(TableStore):
    """Tables in this process: in memory or, with `open`, durable in a directory.

    A store cannot be used after `fork`: in the child process its methods raise `ForkedError`.
    """

    def __init__(self, tables: Iterable[Table], *, seed: int | None = None) -> None:
        """Creates the tables.

        Args:
            tables: Configurations of the tables. May be empty; tables can be created later.
            seed: Seed of the random choices of all tables without a seed of their own. In a single thread, the same
                seed and the same calls give the same data. Default: random.

        Raises:
            InvalidArgumentError: Two tables have the same name, or an argument is invalid.
        """
        self._begin(_engram.Store(checked_tables(tables), checked_seed(seed)), ())

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        tables: Iterable[Table] = (),
        *,
        durability: Literal["none", "process", "disk"] = "process",
        sync_interval: float = 0.01,
        checkpoint_interval: float | None = 600.0,
        checkpoint_bytes: int | None = 4 << 30,
        keep: int = 2,
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        repair: bool = False,
        progress: Callable[[int, int], object] | None = None,
        seed: int | None = None,
    ) -> Self:
        """Opens a durable store in a directory, which is created if it does not exist.

        Args:
            path: The directory. Only one process can have it open at a time.
            tables: Tables that do not exist in the directory are created. A table that exists gets the configuration
                given here, except its seed; items that the new `max_size`, `max_bytes`, `max_times_sampled` or `ttl`
                does not allow are removed. Tables in the directory that are not given here stay as they are.
            durability: Which failures acknowledged changes survive. `"none"`: only checkpoints are stored. `"process"`:
                the end of the process, including `kill -9`. `"disk"`: a power failure.
            sync_interval: Minimum seconds between two disk syncs with `"disk"`, unless 1 MiB of changes is pending.
            checkpoint_interval: Seconds between two checkpoints, which a thread writes if anything has changed, and
                always with `durability="none"`. If one fails, a warning is logged, and the next attempt follows after
                10 seconds, or after `checkpoint_interval` if that is shorter. `None`: no checkpoints at intervals.
            checkpoint_bytes: Bytes logged after the last checkpoint that also cause a checkpoint. `None`: no limit.
            keep: Number of most recent checkpoints to keep.
            rename: New names of tables in the directory, by old name.
            drop: Names of tables in the directory to delete.
            repair: Open the directory with the remaining data even if acknowledged changes were lost. `notes` describes
                the loss. Unusable files are renamed to `*.lost`.
            progress: Function that is called repeatedly with the number of bytes read so far and the total.
            seed: As in `Store`. Existing tables continue their random sequences.

        Returns:
            The store.

        Raises:
            StorageError: Another process has the directory open, it cannot be read or written, or acknowledged changes
                are missing. The text states which. The directory was not changed.
            InvalidArgumentError: An argument is invalid, `rename` or `drop` names a table that is not in the directory,
                or `rename` gives two tables the same name.
            SignatureError: Items in the directory do not match a table's signature.
        """
        directory = _checks.path("`path`", path)
        _checks.choice("`durability`", durability, ("none", "process", "disk"))
        sync_interval = _checks.number("`sync_interval`", sync_interval)
        if not 0 <= sync_interval <= _MAX_SYNC_INTERVAL:
            raise InvalidArgumentError(
                f"`sync_interval` must be between 0 and {_MAX_SYNC_INTERVAL:g} s; got {number_text(sync_interval)}"
            )
        if checkpoint_interval is not None:
            checkpoint_interval = _checks.number("`checkpoint_interval`", checkpoint_interval)
            if not checkpoint_interval > 0:
                raise InvalidArgumentError(
                    f"`checkpoint_interval` must be above 0 s, or None; got {checkpoint_interval:g}"
                )
        if checkpoint_bytes is not None:
            checkpoint_bytes = _checks.integer("`checkpoint_bytes`", checkpoint_bytes, low=1, high=_checks.MAX_U64)
        keep = _checks.integer("`keep`", keep, low=1, high=1_000)
        native, notes = _engram.Store.open(
            directory,
            checked_tables(tables),
            checked_seed(seed),
            (durability, sync_interval, keep),
            open_options(rename, drop, repair=repair),
            checked_progress(progress),
        )
        store = cls.__new__(cls)
        store._begin(native, notes)  # noqa: SLF001, its own
        if checkpoint_interval is not None or checkpoint_bytes is not None:
            journaled = durability != "none"
            thread = CheckpointThread(store, checkpoint_interval, checkpoint_bytes, journaled=journaled)
            store._checkpoint_thread = thread  # noqa: SLF001, its own
        return store

    def _begin(self, native: _engram.Store, notes: Iterable[str]) -> None:
        self._native = native
        self._checkpoint_thread: CheckpointThread | None = None
        self.notes = tuple(notes)
        """Descriptions of what `open` and `restore` found damaged or unfinished."""

    def restore(
        self,
        path: str | PathLike[str],
        *,
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        repair: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> tuple[str, ...]:
        """Adds the tables of another store's directory. Other calls continue meanwhile.

        No store may have that directory open; it is not changed. A durable store has stored the tables on return.

        Args:
            path: The directory.
            rename: New names of its tables, by old name.
            drop: Names of its tables to leave out.
            repair: As in `open`, but the files are not renamed.
            progress: As in `open`.

        Returns:
            Names of the added tables. `notes` gains descriptions of what was found damaged or unfinished.

        Raises:
            StorageError: As in `open`, or there is no store in the directory.
            InvalidArgumentError: This store has a table of one of these names, or a table to rename or drop does not
                exist.
            ClosedError: This store is closed.
        """
        options = open_options(rename, drop, repair=repair)
        names, notes = self._native.restore(_checks.path("`path`", path), options, checked_progress(progress))
        self.notes += tuple(notes)
        return tuple(names)

    def close(self) -> None:
        """Ends all waiting calls with `ClosedError` and releases all tables. Can be called more than once.

        A store that opens the directory again has everything that this store acknowledged; with `durability="none"`,
        only what the last checkpoint has.

        Raises:
            StorageError: Changes could not be written to the directory, for example because the disk is full. The store
                is closed nevertheless.
        """
        try:
            super().close()
        finally:
            if self._checkpoint_thread is not None:
                self._checkpoint_thread.stop()

    def __repr__(self) -> str:
        try:
            return f"Store({self.tables})"
        except (ClosedError, ForkedError):
            return "Store(closed)"
