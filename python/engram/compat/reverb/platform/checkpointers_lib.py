"""Checkpointers: where a server writes its checkpoints, and which checkpoint it loads on start."""

import abc
import os
from dataclasses import dataclass

from engram.compat.reverb import _arguments

__all__ = ["CheckpointPaths", "CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer"]


@dataclass(frozen=True, slots=True)
class CheckpointPaths:
    """Directories of a server.

    Attributes:
        path: Directory for checkpoints. A starting server loads the newest one in it. None means a new temporary
            directory.
        fallback: Loaded if `path` has no checkpoint, and no tables that a store has logged: the newest checkpoint in
            this directory. The path of one Reverb checkpoint means that checkpoint; the path of one Engram checkpoint
            file means the newest in its directory. Default: none.
    """

    path: str | None
    fallback: str | None = None


class CheckpointerBase(abc.ABC):
    """Base class of the checkpointers, which determine where a `Server` writes its checkpoints."""

    @abc.abstractmethod
    def internal_checkpointer(self) -> CheckpointPaths:
        """Returns the server's directories. A server calls it once, in its constructor."""


class DefaultCheckpointer(CheckpointerBase):
    """Stores checkpoints in a directory, which only one server at a time can use.

        checkpointer = reverb.checkpointers.DefaultCheckpointer("/data/replay")
        server = reverb.Server([table], port=8000, checkpointer=checkpointer)
        server.localhost_client().checkpoint()

    The two newest checkpoints are kept, older ones are removed. Files that Engram did not write are never removed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str = "",
        fallback_checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Creates a checkpointer. Nothing is read or written before a server starts.

        Args:
            path: The directory, which is created if it does not exist. If it has no checkpoint of Engram but has one of
                Reverb, the server loads Reverb's checkpoint and leaves it unchanged.
            group: Group of users that would own the files; only "" is supported. Default: "".
            fallback_checkpoint_path: Loaded if `path` has no checkpoint, and no tables that a store has logged: the
                newest checkpoint in this directory. The path of one Reverb checkpoint means that checkpoint; the path
                of one Engram checkpoint file means the newest in its directory. Default: none; the server starts empty.

        Raises:
            TypeError: A path is neither text nor an `os.PathLike`.
            ValueError: A path is empty, or `group` is not "".
        """
        self._path = _path("path", path)
        self._fallback = None
        if fallback_checkpoint_path is not None:
            self._fallback = _path("fallback_checkpoint_path", fallback_checkpoint_path)
        if group:
            raise ValueError(f"group ({group!r}) is not supported: files belong to the user that runs the server")

    def internal_checkpointer(self) -> CheckpointPaths:
        """Returns the server's directories."""
        return CheckpointPaths(self._path, self._fallback)

    def __repr__(self) -> str:
        return f"DefaultCheckpointer(path={self._path!r}, fallback_checkpoint_path={self._fallback!r})"


class TempDirCheckpointer(CheckpointerBase):
    """Stores checkpoints in a temporary directory, which is removed with the server if it has no checkpoint."""

    def internal_checkpointer(self) -> CheckpointPaths:
        """Returns no directory: every server creates its own."""
        return CheckpointPaths(None)

    def __repr__(self) -> str:
        return "TempDirCheckpointer()"


def _path(name: str, value: str | os.PathLike[str]) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{name}` must be a path; got {_arguments.describe(value)}")
    path = os.fspath(value)
    if not path:
        raise ValueError(f"{name} must be nonempty")
    return path
