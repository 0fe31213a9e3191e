"""Checkpointers: where a server writes checkpoints, and which it begins with."""

import abc
import os
from dataclasses import dataclass

from engram.compat.reverb import _arguments

__all__ = ["CheckpointPaths", "CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer"]


@dataclass(frozen=True, slots=True)
class CheckpointPaths:
    """Directories of a server.

    Attributes:
        path: Where it writes checkpoints, and looks for one to begin with; None: a temporary directory of its own.
        fallback: Where it looks if there is none: a directory of checkpoints, or one of the checkpoints in it.
    """

    path: str | None
    fallback: str | None = None


class CheckpointerBase(abc.ABC):
    """Base of the checkpointers: what `Server` is told where to write checkpoints with."""

    @abc.abstractmethod
    def internal_checkpointer(self) -> CheckpointPaths:
        """The directories that a server makes use of. It asks once, when it is made."""


class DefaultCheckpointer(CheckpointerBase):
    """Keeps checkpoints in a directory, which one server at a time may use.

        checkpointer = reverb.checkpointers.DefaultCheckpointer("/data/replay")
        server = reverb.Server([table], port=8000, checkpointer=checkpointer)
        server.localhost_client().checkpoint()

    The two newest stay; nothing else in the directory is ever removed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str = "",
        fallback_checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Names the directories; nothing is read or written before a server begins.

        Args:
            path: The directory; it is made if it is not there. Checkpoints in it that Reverb itself wrote are taken
                over where there is none of Engram's, and stay as they are.
            group: Nothing but "" is supported, the default.
            fallback_checkpoint_path: What a server begins with where `path` has no checkpoint: another such directory,
                or a checkpoint in one, which stands for its directory. None, or nothing there: it begins empty.

        Raises:
            TypeError: A path is neither text nor an `os.PathLike`.
            ValueError: A path is empty, or a group is given.
        """
        self._path = _path("path", path)
        self._fallback = None
        if fallback_checkpoint_path is not None:
            self._fallback = _path("fallback_checkpoint_path", fallback_checkpoint_path)
        if group:
            raise ValueError(f"group ({group!r}) is not supported: files belong to whoever runs the server")

    def internal_checkpointer(self) -> CheckpointPaths:
        """The directories that a server makes use of."""
        return CheckpointPaths(self._path, self._fallback)

    def __repr__(self) -> str:
        return f"DefaultCheckpointer(path={self._path!r}, fallback_checkpoint_path={self._fallback!r})"


class TempDirCheckpointer(CheckpointerBase):
    """Keeps checkpoints in a temporary directory, which stays if any was written; otherwise it goes with the server."""

    def internal_checkpointer(self) -> CheckpointPaths:
        """No directory: every server makes one of its own."""
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
