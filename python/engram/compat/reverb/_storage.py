"""The store of a server: opened in the directory of its checkpoints."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import engram
from engram.compat.reverb.platform.checkpointers_lib import Place
from engram.compat.reverb.table import Table

__all__ = ["Storage"]

_DONE = "DONE"
"""The file that Reverb writes last."""


class Storage:
    """A store whose changes outlive it in checkpoints alone, which are written when somebody asks for one."""

    def __init__(self, place: Place, tables: Sequence[Table]) -> None:
        """Opens the store with the newest checkpoint of the place, if it has any.

        Raises:
            ValueError: A checkpoint has a table that is not among `tables`.
            engram.errors.StorageError: A directory cannot be used, or what it holds is damaged.
        """
        path = tempfile.mkdtemp(prefix="reverb-") if place.path is None else place.path
        self.directory = os.path.abspath(path)  # noqa: PTH100, a text that clients are told
        self._tidy = weakref.finalize(self, _tidy, self.directory, os.getpid()) if place.path is None else None
        try:
            self.store = self._opened(place.fallback, tables)
        except BaseException:
            self._end()
            raise

    def _opened(self, fallback: str | None, tables: Sequence[Table]) -> engram.Store:
        if not _has_own(self.directory):
            if _has_reverbs(self.directory):
                self._begin_with(self.directory)
            elif fallback is not None:
                self._begin_with(fallback)
        store = self._open([table._noted(self.directory) for table in tables])  # noqa: SLF001, this package's
        unknown = [name for name in store.tables if name not in {table.name for table in tables}]
        if unknown:
            store.close()  # without a checkpoint: the directory is as it was
            raise ValueError(
                f"Trying to load table '{unknown[0]}' but table was not found in provided list of tables: "
                f"{', '.join(table.name for table in tables)}"
            )
        return store

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
            store.checkpoint()
        finally:
            store.close()

    def _open(self, tables: Sequence[engram.Table]) -> engram.Store:
        return engram.Store.open(
            self.directory, tables, durability="none", checkpoint_interval=None, checkpoint_bytes=None
        )

    def close(self) -> None:
        """Closes the store; a temporary directory without a checkpoint goes."""
        try:
            self.store.close()
        finally:
            self._end()

    def _end(self) -> None:
        if self._tidy is not None:
            self._tidy()


def _tidy(directory: str, process: int) -> None:
    """Removes a temporary directory in which there is no checkpoint."""
    if os.getpid() == process and not _has_own(directory):  # a forked child leaves it to its parent
        shutil.rmtree(directory, ignore_errors=True)


def _has_own(directory: str) -> bool:
    return any(Path(directory).glob("checkpoint-*[0-9]"))


def _has_reverbs(directory: str) -> bool:
    """True for one of the checkpoints that Reverb writes, and for a directory of them."""
    return (Path(directory) / _DONE).exists() or any(Path(directory).glob(f"*/{_DONE}"))
