"""The log of a training run, which `engram dashboard` shows as curves."""

from __future__ import annotations

import json
import math
import os
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING, Self

from engram import _engram
from engram._complete_output import make_directory
from engram._file_lock import try_lock, unlock
from engram.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from engram.agents.dqn import Progress

__all__ = ["ProgressLog"]

INTERVAL_S = 1.0
"""Minimum time between two rows."""


class ProgressLog:
    """Writes `progress.jsonl`: one JSON object per second with the steps, mean return, mean loss and rates of a run."""

    def __init__(self, directory: Path) -> None:
        """Creates the file in `directory`; removes that of an earlier run, or a link of this name.

        Raises:
            StorageError: A run that has not ended writes to it.
        """
        make_directory(directory)
        path = directory / "progress.jsonl"
        _engram.check_unused(path)
        if path.is_symlink():
            path.unlink()
        with _open_locked(path):
            path.unlink()  # not truncated: it may have another name, of a file of others
        self._file, self._process = _open_locked(path), os.getpid()
        self._last = (-math.inf, 0)
        self._pending: Progress | None = None

    def add(self, progress: Progress) -> None:
        """Appends a row; if the last one is younger than a second, only if the log is closed before the next call."""
        self._pending = progress
        if progress.seconds - self._last[0] >= INTERVAL_S:
            self._write(progress)

    def _write(self, progress: Progress) -> None:
        seconds, steps = self._last
        elapsed = progress.seconds - seconds
        row = {
            "steps": progress.step,
            "seconds": round(progress.seconds, 3),
            "episodes": len(progress.returns),
            "mean_return": _finite(progress.mean_return),
            "loss": _finite(progress.mean_loss),
            "steps_per_s": (progress.step - steps) / elapsed if math.isfinite(elapsed) else None,
            "inserts_per_s": progress.table.inserts_per_s,
            "samples_per_s": progress.table.samples_per_s,
        }
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        self._last, self._pending = (progress.seconds, progress.step), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:
            return  # a forked child: its parent writes the log
        if self._pending is not None and self._pending.seconds > self._last[0]:
            self._write(self._pending)
        unlock(self._file)
        self._file.close()


def _open_locked(path: Path) -> IO[str]:
    """Opens and locks a file, which is created if there is none."""
    while True:
        file = _open_and_lock(path)
        with suppress(OSError):  # another run has removed it
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _open_and_lock(path: Path) -> IO[str]:
    with ExitStack() as stack:
        file = stack.enter_context(path.open("a", encoding="utf-8"))
        try:
            locked = try_lock(file)
        except OSError:
            locked = True  # some file systems have no locks
        if not locked:
            raise StorageError(
                f"{path} is in use: another run writes to it; wait until that ends, or give another directory"
            )
        stack.pop_all()
    return file


def _finite(value: float) -> float | None:
    """Returns the value; None, JSON's null, in place of NaN and infinite values, which JSON does not have."""
    return value if math.isfinite(value) else None
