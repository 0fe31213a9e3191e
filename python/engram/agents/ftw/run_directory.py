"""The directory of a run: its lock, and its checkpoints, which are complete or absent.

    DIR/engram.lock                locked while a process trains in DIR; marks DIR as the directory of a run
    DIR/checkpoints/FRAMES-STEPS   a checkpoint, after this many frames and learner steps:
        state                        arrays, by Orbax
        replay                       the tables, as a directory of a store
        run.json                     configuration and counts
        train.csv, evaluation.csv    the logs at that moment
    DIR/checkpoints/unfinished-*   the tables of a running process; a checkpoint that is written or removed

A checkpoint is written under another name, synced to disk, and then renamed. What is unfinished is never read, and
removed by the next process. DIR also has the files of `run_logs`, and those of `engram train ftw`: a directory that has
one of them and is not marked is not written to.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from engram import _engram
from engram._complete_output import fsync, make_directory
from engram._extras import importing_extra
from engram._file_lock import try_lock, unlock
from engram.agents.ftw.replay import Replay
from engram.agents.ftw.run_logs import EVALUATION, TENSORBOARD, TRAIN
from engram.errors import InvalidArgumentError, StorageError

with importing_extra("agents", "engram.agents"):
    import orbax.checkpoint as ocp

_LOCK = "engram.lock"
_CHECKPOINTS = "checkpoints"
_WRITTEN = (_CHECKPOINTS, TRAIN, EVALUATION, TENSORBOARD, "curves.png", "result.json")
"""What a run writes to its directory, except for the lock."""
_UNFINISHED = "unfinished-"


class Checkpoint(NamedTuple):
    """What a checkpoint consists of, except for the tables and the logs.

    Attributes:
        state: Nested dictionaries of arrays.
        counts: JSON values.
        config: JSON values by name.
    """

    state: dict[str, Any]
    counts: dict[str, Any]
    config: dict[str, Any]


class RunDirectory:
    """The directory of a run; a context manager, which holds its lock.

    Attributes:
        path: The directory.
        replay: Directory of the tables of this process.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Describes a directory; entering the context creates it.

        Args:
            path: The directory.
            resume: Whether it has a run to continue. Otherwise it must not have one.
        """
        self.path, self._checkpoints = path, path / _CHECKPOINTS
        self.replay = self._checkpoints / f"{_UNFINISHED}tables"
        self._resume = resume
        self._exit, self._process = ExitStack(), os.getpid()

    def __enter__(self) -> Self:
        """Locks the directory, and removes what a killed process left.

        Raises:
            InvalidArgumentError: It has a checkpoint and is not to be resumed, or it has none and is; or it is not the
                directory of a run, and has a file that a run would write.
            StorageError: A run trains in it, or uses a file that a run would overwrite.
            OSError: It cannot be written.
        """
        self._check()
        make_directory(self.path)
        with ExitStack() as stack:
            lock = stack.enter_context((self.path / _LOCK).open("a", encoding="utf-8"))
            if not try_lock(lock):
                raise StorageError(f"a run trains in {self.path}; wait until it ends, or choose another directory")
            stack.callback(unlock, lock)
            self._check()  # again: until now, another process may have trained
            leftovers = list(self._checkpoints.glob(f"{_UNFINISHED}*"))
            for each in (*leftovers, *(self.path / name for name in _WRITTEN if name != _CHECKPOINTS)):
                _engram.check_unused(each, in_own_directory=True)
            for leftover in leftovers:
                shutil.rmtree(leftover)
            self._checkpoints.mkdir(exist_ok=True)
            self._exit, self._process = stack.pop_all(), os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        """Unlocks the directory, and removes the tables. In a forked child, it does nothing: they are its parent's."""
        if os.getpid() != self._process:
            return
        shutil.rmtree(self.replay, ignore_errors=True)
        self._exit.close()

    def newest(self) -> Path | None:
        """Returns the newest checkpoint, or None."""
        return max(self._complete(), default=None)

    def save(self, checkpoint: Checkpoint, replay: Replay, logs: Iterable[Path], *, keep: int) -> None:
        """Writes a checkpoint, and removes all but the newest `keep`, except those whose tables are open in a store.

        Args:
            checkpoint: Its content.
            replay: The tables, to which nothing writes meanwhile.
            logs: Files to copy.
            keep: Number of checkpoints to keep.

        Raises:
            StorageError: Orbax or the store could not write, for example because the disk is full.
            OSError: Another file could not be written. In both cases, an incomplete checkpoint is removed.
        """
        counts = checkpoint.counts
        target = self._checkpoints / f"{counts['frames']:012}-{counts['learner_steps']:012}"
        unfinished = self._unfinished(target)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
            unfinished.mkdir()
            self._write(unfinished, checkpoint, replay, logs)
            unfinished.rename(target)
            stack.pop_all()
        fsync(self._checkpoints)
        for old in sorted(self._complete())[:-keep]:
            try:
                _engram.check_unused(old, in_own_directory=True)
            except StorageError:
                continue  # removed after a later checkpoint
            # A process that is killed meanwhile leaves no incomplete one under this name.
            shutil.rmtree(old.rename(self._unfinished(old)))

    def _write(self, unfinished: Path, checkpoint: Checkpoint, replay: Replay, logs: Iterable[Path]) -> None:
        _save_arrays(unfinished / "state", checkpoint.state)
        replay.save(unfinished / "replay")
        text = json.dumps({"counts": checkpoint.counts, "config": checkpoint.config}, indent=2)
        (unfinished / "run.json").write_text(text + "\n", encoding="utf-8")
        for log in logs:
            shutil.copyfile(log, unfinished / log.name)
        _sync(unfinished)

    def _check(self) -> None:
        """Checks that the directory is one to train in."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidArgumentError(f"the directory of a run must not be a file; got {self.path}")
        newest = self.newest()
        if self._resume and newest is None:
            raise InvalidArgumentError(f"no checkpoint to resume from in {self.path}")
        if not self._resume and newest is not None:
            raise InvalidArgumentError(
                f"{self.path} has the checkpoints of a run; resume it, or choose another directory"
            )
        if newest is None and not (self.path / _LOCK).exists():
            foreign = [name for name in _WRITTEN if os.path.lexists(self.path / name)]
            if foreign:
                raise InvalidArgumentError(
                    f"{self.path} is not the directory of a run, but has {', '.join(foreign)}, which a run would"
                    " overwrite; choose another directory"
                )

    def _unfinished(self, checkpoint: Path) -> Path:
        return self._checkpoints / f"{_UNFINISHED}{checkpoint.name}"

    def _complete(self) -> list[Path]:
        paths = self._checkpoints.glob("*-*/run.json")
        return [path.parent for path in paths if re.fullmatch(r"\d{12}-\d{12}", path.parent.name)]


def load(checkpoint: Path) -> Checkpoint:
    """Returns a checkpoint that `RunDirectory.save` wrote."""
    record = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        state = checkpointer.restore((checkpoint / "state").absolute())
    return Checkpoint(state, record["counts"], record["config"])


def _save_arrays(path: Path, state: Mapping[str, Any]) -> None:
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        try:
            checkpointer.save(path.absolute(), state)
        except ValueError as error:  # which Orbax raises for a full disk, too
            raise StorageError(f"the checkpoint cannot be written: {error}") from error


def _sync(path: Path) -> None:
    """Syncs a directory with all that is in it."""
    for folder, _, files in os.walk(path):
        for name in (*files, "."):
            fsync(Path(folder) / name)
