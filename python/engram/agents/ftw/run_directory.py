"""The directory of a run: its lock, and its checkpoints, which are complete or absent.

    DIR/lock                       locked while a process trains in DIR
    DIR/replay                     the tables of a running process
    DIR/checkpoints/FRAMES-STEPS   a checkpoint, after this many frames and learner steps:
        state                        arrays, by Orbax
        replay                       the tables, as a directory of a store
        run.json                     configuration and counts
        train.csv, evaluation.csv    the logs at that moment
    DIR/checkpoints/unfinished-*   a checkpoint that was not completed, which is never read

A checkpoint is written under another name, synced to disk, and then renamed.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from engram._extras import importing_extra
from engram.agents.ftw.replay import Replay
from engram.errors import InvalidArgumentError, StorageError

with importing_extra("agents", "engram.agents"):
    import orbax.checkpoint as ocp

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
        self.path, self.replay = path, path / "replay"
        self._checkpoints = path / "checkpoints"
        self._resume = resume
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        """Locks the directory, and removes what a killed process left.

        Raises:
            InvalidArgumentError: It has a checkpoint and is not to be resumed, or it has none and is.
            StorageError: Another process trains in it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InvalidArgumentError(f"the directory of a run must not be a file; got {self.path}")
        if self._resume and self.newest() is None:
            raise InvalidArgumentError(f"no checkpoint to resume from in {self.path}")
        if not self._resume and self.newest() is not None:
            raise InvalidArgumentError(
                f"{self.path} has the checkpoints of a run; resume it, or choose another directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lock = stack.enter_context((self.path / "lock").open("w", encoding="utf-8"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"another process trains in {self.path}") from None
            self._exit = stack.pop_all()
        for leftover in (self.replay, *self._checkpoints.glob(f"{_UNFINISHED}*")):
            shutil.rmtree(leftover, ignore_errors=True)
        self._checkpoints.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.replay, ignore_errors=True)
        self._exit.close()

    def newest(self) -> Path | None:
        """Returns the newest checkpoint, or None."""
        return max(self._complete(), default=None)

    def save(self, checkpoint: Checkpoint, replay: Replay, logs: Iterable[Path], *, keep: int) -> None:
        """Writes a checkpoint, and removes all but the newest `keep`.

        Args:
            checkpoint: Its content.
            replay: The tables, to which nothing writes meanwhile.
            logs: Files to copy.
            keep: Number of checkpoints to keep.
        """
        counts = checkpoint.counts
        target = self._checkpoints / f"{counts['frames']:012}-{counts['learner_steps']:012}"
        unfinished = self._checkpoints / f"{_UNFINISHED}{target.name}"
        unfinished.mkdir()
        _save_arrays(unfinished / "state", checkpoint.state)
        replay.save(unfinished / "replay")
        text = json.dumps({"counts": counts, "config": checkpoint.config}, indent=2)
        (unfinished / "run.json").write_text(text + "\n", encoding="utf-8")
        for log in logs:
            shutil.copyfile(log, unfinished / log.name)
        _sync(unfinished)
        unfinished.rename(target)
        _sync_one(self._checkpoints)
        for old in sorted(self._complete())[:-keep]:
            shutil.rmtree(old)

    def _complete(self) -> list[Path]:
        return [path for path in self._checkpoints.glob("*-*") if not path.name.startswith(_UNFINISHED)]


def load(checkpoint: Path) -> Checkpoint:
    """Returns a checkpoint that `RunDirectory.save` wrote."""
    record = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        state = checkpointer.restore((checkpoint / "state").absolute())
    return Checkpoint(state, record["counts"], record["config"])


def _save_arrays(path: Path, state: Mapping[str, Any]) -> None:
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(path.absolute(), state)


def _sync(path: Path) -> None:
    """Syncs a directory with all that is in it."""
    for folder, _, files in os.walk(path):
        for name in (*files, "."):
            _sync_one(Path(folder) / name)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
