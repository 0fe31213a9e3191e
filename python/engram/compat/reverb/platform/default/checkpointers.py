"""Checkpointers, and the one that servers use if none is given."""

from engram.compat.reverb.platform.checkpointers_lib import CheckpointerBase, DefaultCheckpointer, TempDirCheckpointer

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """The checkpointer of a server that is given none: with a temporary directory.

    Args:
        group: None or "": nothing else is supported.

    Raises:
        ValueError: A group is given, which is not supported.
    """
    if group:
        raise ValueError(f"group ({group!r}) is not supported: files belong to whoever runs the server")
    return TempDirCheckpointer()
