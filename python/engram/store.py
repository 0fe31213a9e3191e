"""The store: a set of named tables in this process."""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Literal, NoReturn, Self

from engram import _checks, _engram
from engram._checkpoint_thread import CheckpointThread
from engram._store_options import checked_recovery_options, checked_seed, checked_tables, warn_of_limiter
from engram._text import number_text
from engram.errors import ClosedError, ForkedError, InvalidArgumentError
from engram.table import Table
from engram.table_store import TableStore

__all__ = ["Store"]

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
        tables = checked_tables(tables)
        self._initialize(_engram.Store(tables, checked_seed(seed)), ())
        for table in tables:
            warn_of_limiter(table.name, table.rate_limiter)

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
            tables: Tables that do not exist in the directory are created; `notes` names them if tables of the directory
                are not given here, because a name may be misspelt. A table that exists gets the configuration
                given here, except its seed; its rate limiter stays if it was set with `set_rate_limiter`, unless the
                one given here differs from the one given before. Items that the new `max_size`, `max_bytes` or
                `max_times_sampled` does not allow are removed, and `notes` states how many; older ones than a new `ttl`
                expire. Tables in the directory that are not given here stay as they are.
            durability: The failure after which acknowledged changes are still there. `"process"`: the end of the
                process, including `kill -9`. `"disk"`: a power failure. `"none"`: only checkpoints are stored.
            sync_interval: Minimum seconds between two disk syncs with `"disk"`, unless 1 MiB of changes is pending.
            checkpoint_interval: Seconds between two checkpoints. A thread writes them if anything has changed; with
                `durability="none"`, also if nothing has. If one fails, a warning is logged, and the next attempt
                follows after 10 seconds, or after `checkpoint_interval` if that is shorter. `None`: no checkpoints at
                intervals.
            checkpoint_bytes: If more bytes than this are logged after a checkpoint, the thread writes the next one
                before `checkpoint_interval` has passed. `None`: no limit.
            keep: Number of most recent checkpoints to keep.
            rename: New names of tables in the directory, by old name.
            drop: Names of tables in the directory to delete.
            repair: If acknowledged changes were lost, open the directory with the remaining data; otherwise that is a
                `StorageError`. `notes` describes the loss. Unusable files are renamed to `*.lost`.
            progress: Function that is called repeatedly with the number of bytes read so far and the total.
            seed: As in `Store`. Existing tables continue their random sequences.

        Returns:
            The store.

        Raises:
            StorageError: Another process has the directory open, it cannot be read or written, or acknowledged changes
                before the end of the newest log are missing. The text states which. The directory was not changed.
                Changes that are missing at the end of that log are no error: `notes` describes them.
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
        _checks.function("`progress`", progress)
        native, notes = _engram.Store.open(
            directory,
            checked_tables(tables),
            checked_seed(seed),
            (durability, sync_interval, keep),
            checked_recovery_options(rename, drop, repair=repair),
            progress,
        )
        store = cls.__new__(cls)
        store._initialize(native, notes)  # noqa: SLF001, its own
        store._warn_of_limiters(store.tables)  # noqa: SLF001, its own
        if checkpoint_interval is not None or checkpoint_bytes is not None:
            journaled = durability != "none"
            thread = CheckpointThread(store, checkpoint_interval, checkpoint_bytes, journaled=journaled)
            store._checkpoint_thread = thread  # noqa: SLF001, its own
        return store

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a Store cannot be pickled or copied: its tables are in this process; serve it with "
            "engram.Server(store), and pass an engram.Client to other processes"
        )

    def _initialize(self, native: _engram.Store, notes: Iterable[str]) -> None:
        self._native = native
        self._checkpoint_thread: CheckpointThread | None = None
        self.notes = tuple(notes)
        """Descriptions of what `open` and `restore` found damaged or unfinished, of items that the given tables do not
        allow, and of new tables if tables of the directory were not given."""

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

        No store may have that directory open; it is not changed. If this store is durable, the tables are stored in its
        own directory when this returns.

        Args:
            path: The directory.
            rename: New names of tables in the directory, by old name.
            drop: Names of tables in the directory to leave out.
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
        options = checked_recovery_options(rename, drop, repair=repair)
        _checks.function("`progress`", progress)
        names, notes = self._native.restore(_checks.path("`path`", path), options, progress)
        self.notes += tuple(notes)
        self._warn_of_limiters(names)
        return tuple(names)

    def _warn_of_limiters(self, names: Iterable[str]) -> None:
        infos = self.info()
        for name in names:
            warn_of_limiter(name, infos[name].rate_limiter)

    def close(self) -> None:
        """Ends all waiting calls with `ClosedError` and releases all tables. Can be called more than once.

        A store that opens the directory later has everything that this store acknowledged; with `durability="none"`,
        only the content of the last checkpoint.

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
