"""The store of a server: opened in the directory of its checkpoints."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import engram
from engram.compat.reverb.platform.checkpointers_lib import CheckpointPaths
from engram.compat.reverb.table import Table

__all__ = ["ServerStore"]

_DONE = "DONE"
"""The file that Reverb writes last."""


class ServerStore:
    """A store whose changes outlive it in checkpoints alone, which are written when somebody asks for one."""

    def __init__(self, place: CheckpointPaths, tables: Sequence[Table]) -> None:
        """Opens the store with the newest checkpoint of the place, if it has any.

        Raises:
            ValueError: A checkpoint has a table that is not among `tables`.
            engram.errors.StorageError: A directory cannot be used, or what it holds is damaged.

        A directory without checkpoints is as it was then.
        """
        path = tempfile.mkdtemp(prefix="reverb-") if place.path is None else place.path
        self.directory = os.path.abspath(path)  # noqa: PTH100, a text that clients are told
        self._remove_unused = (
            weakref.finalize(self, _remove_unused, self.directory, os.getpid()) if place.path is None else None
        )
        self._snapshot = _DirectorySnapshot(self.directory)
        self._names = [table.name for table in tables]
        self._was_opened = False
        try:
            self.store = self._opened(place.fallback, tables)
        except BaseException:
            self._undo()
            raise

    def _opened(self, fallback: str | None, tables: Sequence[Table]) -> engram.Store:
        if not _has_own(self.directory):
            if _has_reverbs(self.directory):
                self._begin_with(self.directory)
            elif fallback is not None:
                self._begin_with(fallback)
        store = self._open([table._with_note(self.directory) for table in tables])  # noqa: SLF001, this package's
        try:
            self._compare(store)
        except ValueError:
            store.close()  # without a checkpoint: the directory is as it was
            raise
        return store

    def _compare(self, store: engram.Store) -> None:
        unknown = [name for name in store.tables if name not in self._names]
        if unknown:
            raise ValueError(
                f"Trying to load table '{unknown[0]}' but table was not found in provided list of tables: "
                f"{', '.join(self._names)}"
            )

    def _begin_with(self, source: str) -> None:
        """Takes over the tables of another directory, or of checkpoints that Reverb wrote, which stay as they are."""
        if not Path(source).is_dir():
            source = os.path.dirname(source)  # noqa: PTH120, a text
        own = _has_own(source)
        if not own and not _has_reverbs(source):
            return
        store = self._open(())
        try:
            if own:
                store.restore(source)
            else:
                engram.import_reverb(source, store)
            self._compare(store)
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
        """Closes the store; a temporary directory without a checkpoint goes."""
        try:
            self.store.close()
        finally:
            self._end()

    def abandon(self) -> None:
        """Closes the store of a server that did not come to be: a directory without checkpoints is as it was."""
        try:
            self.store.close()
        finally:
            self._undo()

    def _undo(self) -> None:
        if self._was_opened:  # else it may be another server's
            self._snapshot.restore()
        self._end()

    def _end(self) -> None:
        if self._remove_unused is not None:
            self._remove_unused()


class _DirectorySnapshot:
    """What a directory was like before it was opened."""

    def __init__(self, directory: str) -> None:
        path = Path(directory)
        self._path = path
        self._had_own = _has_own(directory)
        self._made = [each for each in (path, *path.parents) if not each.exists()]
        self._found = set() if self._made or not path.is_dir() else {each.name for each in path.iterdir()}

    def restore(self) -> None:
        """Removes what a store has written since, in a directory that had none of its checkpoints."""
        if self._had_own:
            return
        for pattern in ("checkpoint-*", "log-*", "LOCK"):
            for each in self._path.glob(pattern):
                if each.name not in self._found:
                    each.unlink(missing_ok=True)
        with suppress(OSError):  # what else is there is not the store's
            for each in self._made:
                each.rmdir()


def _remove_unused(directory: str, process: int) -> None:
    """Removes a temporary directory in which there is no checkpoint."""
    if os.getpid() == process and not _has_own(directory):  # a forked child leaves it to its parent
        shutil.rmtree(directory, ignore_errors=True)


def _has_own(directory: str) -> bool:
    return any(Path(directory).glob("checkpoint-*[0-9]"))


def _has_reverbs(directory: str) -> bool:
    """True for one of the checkpoints that Reverb writes, and for a directory of them."""
    return (Path(directory) / _DONE).exists() or any(Path(directory).glob(f"*/{_DONE}"))
