"""The store of a server, in the directory of its checkpoints."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import engram
from engram import _engram
from engram.compat.reverb.platform.checkpointers_lib import CheckpointPaths
from engram.compat.reverb.table import Table

__all__ = ["ServerStore"]

_DONE = "DONE"
"""The file that Reverb writes to a checkpoint last."""


class ServerStore:
    """A store that is saved only in checkpoints, which are written on request."""

    def __init__(self, paths: CheckpointPaths, tables: Sequence[Table]) -> None:
        """Opens the store and loads the newest checkpoint, if there is one.

        After an error, a directory without a store is left unchanged.
        """
        path = tempfile.mkdtemp(prefix="reverb-") if paths.path is None else paths.path
        self.directory = os.path.abspath(path)  # noqa: PTH100, sent to clients as text
        self._directory_finalizer = (
            weakref.finalize(self, _remove_unused, self.directory, os.getpid()) if paths.path is None else None
        )
        self._listing = _DirectoryListing(self.directory)
        self._table_names = [table.name for table in tables]
        self._was_opened = False
        try:
            self.store = self._load(paths.fallback, tables)
        except BaseException:
            self._undo()
            raise

    def _load(self, fallback: str | None, tables: Sequence[Table]) -> engram.Store:
        """Opens the store with its newest checkpoint.

        If its directory has no checkpoint of Engram, the newest one that Reverb wrote there is imported first; if there
        is none either, the newest in `fallback`. Tables that a store has logged there stay as they are.
        """
        if not _has_engram_checkpoint(self.directory):
            if _has_reverb_checkpoint(self.directory):
                self._import(self.directory)
            elif fallback is not None:
                self._import(fallback)
        store = self._open([table._with_note(self.directory) for table in tables])  # noqa: SLF001, same package
        try:
            self._check_tables(store)
        except ValueError:
            store.close()  # writes no checkpoint
            raise
        return store

    def _check_tables(self, store: engram.Store) -> None:
        unknown = [name for name in store.tables if name not in self._table_names]
        if unknown:
            raise ValueError(
                f"Trying to load table '{unknown[0]}' but table was not found in provided list of tables: "
                f"{', '.join(self._table_names)}"
            )

    def _import(self, source: str) -> None:
        """Copies the tables of the newest checkpoint of Engram or Reverb in `source` to this store's directory.

        `source` may also be the directory of one checkpoint of Reverb, or a file, which stands for its directory. If
        there is no checkpoint, nothing is copied.
        """
        if not Path(source).is_dir():
            source = os.path.dirname(source)  # noqa: PTH120, text
        is_engram = _has_engram_checkpoint(source)
        if not is_engram and not _has_reverb_checkpoint(source):
            return
        store = self._open(())
        try:
            if store.tables:  # a checkpoint would remove the logs of their items
                return
            if is_engram:
                store.restore(source)
            else:
                engram.import_reverb(source, store)
            self._check_tables(store)
            store.checkpoint()
        finally:
            store.close()

    def _open(self, tables: Sequence[engram.Table]) -> engram.Store:
        store = engram.Store.open(
            self.directory, tables, durability="none", checkpoint_interval=None, checkpoint_bytes=None
        )
        self._was_opened = True
        return store

    def close(self) -> None:
        """Closes the store and removes a temporary directory without a checkpoint."""
        try:
            self.store.close()
        finally:
            self._remove_temporary()

    def abandon(self) -> None:
        """Closes the store of a server that could not start. A directory without a store is left unchanged."""
        try:
            self.store.close()
        finally:
            self._undo()

    def _undo(self) -> None:
        """Removes the files that the store has written, and a temporary directory; called if a start fails."""
        if self._was_opened:  # otherwise the directory may belong to another server
            self._listing.restore()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._directory_finalizer is not None:
            self._directory_finalizer()


class _DirectoryListing:
    """The names of the files that a directory had before a store was opened in it."""

    def __init__(self, directory: str) -> None:
        path = Path(directory)
        self._path = path
        self._had_store = _has_engram_checkpoint(directory) or any(path.glob("log-*[0-9]"))
        self._missing_directories = [each for each in (path, *path.parents) if not each.exists()]
        self._names = {each.name for each in path.iterdir()} if path.is_dir() else set()

    def restore(self) -> None:
        """Removes the files that a store has written since, unless the directory had a checkpoint or a log before."""
        if self._had_store:
            return
        try:
            _engram.check_unused(self._path / "LOCK")
        except engram.errors.StorageError:
            return  # another server has opened it meanwhile
        for pattern in ("checkpoint-*", "log-*", "LOCK", "CLOSED"):
            for file in self._path.glob(pattern):
                if file.name not in self._names:
                    file.unlink(missing_ok=True)
        with suppress(OSError):  # a directory with other files is kept
            for directory in self._missing_directories:
                directory.rmdir()


def _remove_unused(directory: str, process: int) -> None:
    """Removes a temporary directory that has no checkpoint. A forked process leaves it to its parent, `process`."""
    if os.getpid() == process and not _has_engram_checkpoint(directory):
        shutil.rmtree(directory, ignore_errors=True)


def _has_engram_checkpoint(directory: str) -> bool:
    return any(Path(directory).glob("checkpoint-*[0-9]"))


def _has_reverb_checkpoint(directory: str) -> bool:
    """True for a checkpoint that Reverb wrote, and for a directory of such checkpoints."""
    return (Path(directory) / _DONE).exists() or any(Path(directory).glob(f"*/{_DONE}"))
