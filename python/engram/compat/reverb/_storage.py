"""The store of a server: opened in the directory of its checkpoints."""

import dataclasses
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import engram
from engram.compat.reverb import _note
from engram.compat.reverb.platform.checkpointers_lib import Place
from engram.compat.reverb.table import Table

__all__ = ["Storage"]

_CHECKPOINTS = "checkpoint-*[0-9]"


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
        if not _has_checkpoint(self.directory) and fallback is not None:
            self._begin_with(fallback)
        described = []
        for table in tables:
            said = _note.decode(table._native.note)  # noqa: SLF001, this package's
            note = _note.encode(said.max_times_sampled or 0, said.signature, self.directory)
            described.append(dataclasses.replace(table._native, note=note))  # noqa: SLF001, this package's
        store = self._open(described)
        unknown = [name for name in store.tables if name not in {table.name for table in tables}]
        if unknown:
            store.close()  # without a checkpoint: the directory is as it was
            raise ValueError(
                f"Trying to load table '{unknown[0]}' but table was not found in provided list of tables: "
                f"{', '.join(table.name for table in tables)}"
            )
        return store

    def _begin_with(self, fallback: str) -> None:
        """Takes over the tables of another directory, which stays as it is."""
        if not Path(fallback).is_dir():
            fallback = os.path.dirname(fallback)  # noqa: PTH120, a text
        if not _has_checkpoint(fallback):
            return
        store = self._open(())
        try:
            store.restore(fallback)
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
    if os.getpid() == process and not _has_checkpoint(directory):  # a forked child leaves it to its parent
        shutil.rmtree(directory, ignore_errors=True)


def _has_checkpoint(directory: str) -> bool:
    path = Path(directory)
    if any(path.glob(_CHECKPOINTS)):
        return True
    if any(path.glob("*/DONE")) or (path / "DONE").exists():
        raise engram.errors.StorageError(
            f"{directory} holds checkpoints that Reverb wrote, which Engram does not read; give an empty directory"
        )
    return False
