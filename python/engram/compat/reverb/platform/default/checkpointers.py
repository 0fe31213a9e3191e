"""Checkpointers, and the default checkpointer of a server."""

from engram.compat.reverb.platform.checkpointers_lib import CheckpointerBase, DefaultCheckpointer, TempDirCheckpointer

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """Returns the default checkpointer of a server, which uses a temporary directory.

    Args:
        group: Group of users that would own the files; only None and "" are supported. Default: None.

    Raises:
        ValueError: `group` is neither None nor "".
    """
    if group:
        raise ValueError(f"group ({group!r}) is not supported: files belong to the user that runs the server")
    return TempDirCheckpointer()
