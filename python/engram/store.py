"""The store: named tables in this process, and what every way to tables offers."""

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram._checkpoint_thread import CheckpointThread
from engram.batch import Batch
from engram.errors import ClosedError, ForkedError, InvalidArgumentError
from engram.info import Checkpoint, TableInfo
from engram.patterns import Pattern
from engram.rate_limiters import AnyRateLimiter
from engram.table import Table
from engram.writer import BatchedWriter, Compression, PatternWriter, TrajectoryWriter

__all__ = ["Store", "TableStore"]


class TableStore:
    """Tables that may be written and sampled, in this process (`Store`) or at a server (`Client`).

    Every method may be called from any thread. Calls that wait can be interrupted with Ctrl-C.
    """

    _native: _engram.Store

    def insert(
        self,
        data: Any,  # noqa: ANN401, a pytree
        priorities: Mapping[str, float],
        *,
        timeout: float | None = None,
        time_axis: bool = False,
    ) -> int:
        """Inserts one item, waiting until every table has it.

        Args:
            data: A pytree of arrays, numbers and text: dicts, lists, tuples, namedtuples, and node types
                registered with optree in the namespace "engram", which come back as dicts. By default
                it is one step, whose columns come back without a time axis: `[B, ...]`.
            priorities: For each table to insert into, the item's priority there. All share the data.
            timeout: Seconds to wait for the tables' rate limiters; None: for ever.
            time_axis: The leaves are `[T, ...]`, and come back as `[B, T, ...]`.

        Returns:
            The item's key, the same in all tables.

        Raises:
            SignatureError: The data does not fit a table's signature; no table has it then.
            PriorityError: A priority is NaN, or negative or infinite where it is a weight.
            DeadlineExceededError: A table did not take it in time; the text says which did.
            UnknownTableError, UnsatisfiableError, ClosedError: As their descriptions say.
        """
        if not isinstance(priorities, Mapping):
            raise InvalidArgumentError(
                f'`priorities` must map tables to priorities, such as {{"replay": 1.0}}; got {priorities!r}'
            )
        try:
            return self._native.insert(data, list(priorities.items()), timeout, time_axis)
        except (TypeError, OverflowError):
            # Looked at only now: a check of each insert would cost more than it is worth.
            _checks.boolean("`time_axis`", time_axis)
            _checks.seconds("`timeout`", timeout)
            for table, priority in priorities.items():
                _checks.table_name("each key of `priorities`", table)
                if not isinstance(priority, bool):  # accepted as 0 or 1, so not what was wrong
                    _checks.number(f"the priority for `{table}`", priority)
            raise

    def writer(
        self,
        *,
        history: int = 64,
        chunk_length: int | None = None,
        max_in_flight_items: int = 1_024,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> TrajectoryWriter:
        """A writer that makes items of any slices of its steps.

        Args:
            history: Newest steps that items may refer to.
            chunk_length: Steps per chunk; None: 1 to 16, about 16 KiB. Items become visible when
                their chunk is full, at the end of an episode, or on `flush`.
            max_in_flight_items: Items that may wait for their tables before an append waits too. While more
                than 4 MiB are on their way to a server, appends are slowed down.
            timeout: Seconds that an append waits then; None: for ever, 0: not at all.
            compression: `"auto"` compresses large columns where that pays, `"off"` never. `"delta"` compresses
                integers as differences from step to step: images that change little.
        """
        return TrajectoryWriter(
            self,
            history=history,
            chunk_length=chunk_length,
            max_in_flight_items=max_in_flight_items,
            timeout=timeout,
            compression=compression,
        )

    def pattern_writer(
        self,
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None = None,
        max_in_flight_items: int = 1_024,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> PatternWriter:
        """A writer that only takes steps: `patterns` make the items. Other arguments as in `writer`."""
        return PatternWriter(
            self,
            patterns,
            chunk_length=chunk_length,
            max_in_flight_items=max_in_flight_items,
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
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> BatchedWriter:
        """A writer for `num_envs` environments that step together. Other arguments as in `writer`."""
        return BatchedWriter(
            self,
            num_envs,
            patterns,
            chunk_length=chunk_length,
            max_in_flight_items=max_in_flight_items,
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
        partial: bool = False,
        pad: bool = False,
    ) -> Batch:
        """Draws exactly `n` items with replacement, waiting until they can be had.

        Args:
            table: Name of the table.
            n: How many. They may be collected over several grants of the rate limiter.
            at_least: So many, up to `n`, will do where more would have to be waited for; None: all `n`.
            timeout: Seconds to wait; None: for ever. When it is over, everything drawn goes back.
            partial: When the time is over, return what there is, if anything, instead.
            pad: Fill shorter items up with zeros instead of returning ragged columns.

        Returns:
            A batch whose columns are `[n, T, ...]`.

        Raises:
            DeadlineExceededError: The text says how many came, and what was waited for.
            UnsatisfiableError: No waiting would help: the table can never hold so many.
            SignatureError: The items' columns do not go side by side.
            OutOfMemoryError: The batch needs more memory than there is.
            UnknownTableError, ClosedError: As their descriptions say.
        """
        return Batch(
            self._native.sample(
                table,
                _checks.integer("`n`", n, high=_checks.MAX_BATCH),
                at_least if at_least is None else _checks.integer("`at_least`", at_least, high=n),
                timeout,
                partial,
                pad,
            )
        )

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
        """Sets the priorities of items; keys that have left the table are passed over.

        Of thousands of keys, others may see some done before the rest. A client sends more than 8,192 in parts: where
        its server goes away meanwhile, some may be done and others not.

        Args:
            table: Name of the table.
            keys: `[B]` integers, as in `batch.info.key`.
            priorities: `[B]` numbers.
            wait: False: a client goes on at once while at most 8 changes are under way; the server makes them in order.
                An error of such a change is raised by a later change, or by `close`. More than 8,192 keys are
                checked first: that waits for the server where it has not described the table yet.

        Returns:
            How many of the keys were there; None without waiting.

        Raises:
            PriorityError: One is NaN, or negative or infinite where it is a weight; none is applied.
            InvalidArgumentError: The two differ in length, or have more than one axis.
        """
        return self._native.update_priorities(table, _keys(keys), _priorities(priorities), wait)

    @overload
    def delete(self, table: str, keys: npt.ArrayLike, *, wait: Literal[True] = True) -> int: ...

    @overload
    def delete(self, table: str, keys: npt.ArrayLike, *, wait: bool) -> int | None: ...

    def delete(self, table: str, keys: npt.ArrayLike, *, wait: bool = True) -> int | None:
        """Deletes items; keys that have left the table are passed over. Of very many, as in `update_priorities`.

        Args:
            table: Name of the table.
            keys: `[B]` integers, as in `batch.info.key`.
            wait: As for `update_priorities`.

        Returns:
            How many of the keys were there; None without waiting.
        """
        return self._native.delete(table, _keys(keys), wait)

    def reset(self, table: str) -> None:
        """Empties a table and zeroes its counters. Calls that wait go on waiting."""
        self._native.reset(table)

    def info(self) -> dict[str, TableInfo]:
        """For every table: sizes, rates, and why inserts or samples would wait now."""
        return {info["name"]: TableInfo.from_native(info) for info in self._native.info()}

    @property
    def tables(self) -> list[str]:
        """Names of the tables, sorted."""
        return self._native.tables()

    def create_table(self, table: Table) -> None:
        """Adds a table.

        Raises:
            InvalidArgumentError: A table of that name exists.
        """
        _checks.instance_of("`table`", table, Table, "an engram.Table")
        self._native.create_table(table)

    def drop_table(self, table: str) -> None:
        """Removes a table and all it holds; calls that wait for it end with `ClosedError`."""
        self._native.drop_table(table)

    def set_rate_limiter(self, table: str, rate_limiter: AnyRateLimiter) -> None:
        """Changes how inserts and samples wait for each other; the counts stay.

        Raises:
            InvalidArgumentError: Nothing could ever be sampled under it.
        """
        _checks.instance_of("`rate_limiter`", rate_limiter, AnyRateLimiter, "one of engram.rate_limiters")
        self._native.set_rate_limiter(table, rate_limiter)

    def checkpoint(self) -> Checkpoint:
        """Writes all tables to the directory of the store, or of the server's, while calls go on.

        Returns once it counts: the next to open the directory begins with it.

        Raises:
            InvalidArgumentError: The store has no directory.
            StorageError: It cannot be written; those before are still good.
            ClosedError: As its description says.
        """
        return Checkpoint(*self._native.checkpoint())

    def close(self) -> None:
        """Ends every waiting call with `ClosedError` and forgets all tables. May be called again.

        A client first waits for changes that nobody waited for, and raises the first error among them.
        """
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ForkedError):  # the parent closes what it opened
            self.close()


_LONGEST_SYNC = 60.0
"""Seconds."""


class Store(TableStore):
    """Tables in this process. They live until the store is closed.

    A store does not survive `fork`: a child process gets a `ForkedError`.
    """

    def __init__(self, tables: Iterable[Table], *, seed: int | None = None) -> None:
        """Makes the tables.

        Args:
            tables: At least none: tables may be created later.
            seed: Seeds the random choices of all tables that have no seed of their own; with one
                caller, the same seed and the same calls give the same data. None: unpredictable.

        Raises:
            InvalidArgumentError: Two tables have the same name.
        """
        self._begin(_engram.Store(_tables(tables), _seed(seed)), ())

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
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
        """Opens a store that lives in a directory, which is made if it is not there.

        Args:
            path: The directory. One process at a time may have it open.
            tables: Those that are not there are created. One that is there takes what is given here, be it
                other than before; items that it does not allow any more leave.
            durability: What an acknowledged change outlives. `"none"`: nothing but checkpoints is kept.
                `"process"`: the process, `kill -9` included. `"disk"`: the machine's power.
            sync_interval: Seconds between two syncs of `"disk"`, at least; acknowledgements wait for them.
            checkpoint_interval: Seconds between two checkpoints, which a thread writes if anything has changed. None:
                only `checkpoint` and `checkpoint_bytes` write them. One that fails is logged, and tried again.
            checkpoint_bytes: One is written, too, when the log has grown by so many bytes. None: not for that.
            keep: Checkpoints that are kept: the newest.
            rename: New names of tables that are there, by their old ones.
            drop: Tables that are there and are to go.
            repair: Open what is left of a directory that has lost something that was acknowledged: `notes` says what.
                Files that cannot be used are set aside, as `*.lost`.
            progress: Called now and then with bytes read, and bytes in all.
            seed: As of `Store`; tables that are there go on with what they would have drawn next.

        Raises:
            StorageError: Another process has the directory, it cannot be read or written, or something that was
                acknowledged is missing; the text says which. Nothing there was changed.
            InvalidArgumentError, SignatureError: Tables that do not fit what is there.
        """
        if durability not in ("none", "process", "disk"):
            raise InvalidArgumentError(f'`durability` must be "none", "process" or "disk"; got {durability!r}')
        sync_interval = _checks.number("`sync_interval`", sync_interval)
        if not 0 <= sync_interval <= _LONGEST_SYNC:
            raise InvalidArgumentError(
                f"`sync_interval` must be between 0 and {_LONGEST_SYNC:g} s; got {sync_interval:g}"
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
            os.fspath(path),
            _tables(tables),
            _seed(seed),
            (durability, sync_interval, keep),
            (dict(rename or {}), set(drop), bool(repair)),
            progress,
        )
        store = cls.__new__(cls)
        store._begin(native, notes)  # noqa: SLF001, its own
        if checkpoint_interval is not None or checkpoint_bytes is not None:
            journaled = durability != "none"
            thread = CheckpointThread(store, checkpoint_interval, checkpoint_bytes, journaled=journaled)
            store._checkpoint_thread = thread  # noqa: SLF001
        return store

    def _begin(self, native: _engram.Store, notes: Iterable[str]) -> None:
        self._native = native
        self._checkpoint_thread: CheckpointThread | None = None
        self.notes = tuple(notes)
        """What `open` and `restore` found damaged or unfinished, in words."""

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        repair: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> tuple[str, ...]:
        """Adds the tables of a directory that nobody has open, which stays as it is; calls go on meanwhile.

        Where this store has a directory of its own, the tables are in it once this returns.

        Args:
            path: The directory.
            rename: New names of its tables, by their old ones.
            drop: Tables of it that are left out.
            repair: As of `open`.
            progress: As of `open`.

        Returns:
            The names of the tables that were added; `notes` has grown by what was found damaged or unfinished.

        Raises:
            StorageError: As of `open`; there is no store.
            InvalidArgumentError: A table of that name is here, or one to be renamed or dropped is not there.
        """
        opening = (dict(rename or {}), set(drop), bool(repair))
        names, notes = self._native.restore(os.fspath(path), opening, progress)
        self.notes += tuple(notes)
        return tuple(names)

    def close(self) -> None:
        """Ends every waiting call with `ClosedError`, and all tables; may be called again.

        What a store with a directory has acknowledged is there when that is opened again.

        Raises:
            StorageError: Changes could not be written to the directory, as where the disk is full. The store is closed
                all the same.
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


def _tables(tables: Iterable[Table]) -> list[Table]:
    if isinstance(tables, Table):
        raise InvalidArgumentError(f"`tables` must be a sequence of tables; got the table `{tables.name}` itself")
    tables = list(tables)
    for table in tables:
        _checks.instance_of("each of `tables`", table, Table, "an engram.Table")
    return tables


def _seed(seed: int | None) -> int:
    return secrets.randbits(64) if seed is None else _checks.integer("`seed`", seed, low=0, high=_checks.MAX_U64)


def _column(what: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.ascontiguousarray(values)
    if array.ndim != 1:
        raise InvalidArgumentError(f"{what} must have one axis; got the shape {array.shape}")
    return array


def _keys(values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    array = _column("`keys`", values)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgumentError(f"`keys` must be integers; got {array.dtype}")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise InvalidArgumentError(f"`keys` must be at least 0; got {array.min()}")
    return array.astype(np.uint64, copy=False)


def _priorities(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = _column("`priorities`", values)
    try:
        return array.astype(np.float64, casting="same_kind", copy=False)
    except TypeError:
        # Floats of other packages, such as bfloat16, are numbers too, but of no kind of NumPy's.
        if array.dtype.kind == "V" and array.dtype.names is None and np.can_cast(array.dtype, np.float64):
            return array.astype(np.float64)
        raise InvalidArgumentError(f"`priorities` must be numbers; got {array.dtype}") from None
