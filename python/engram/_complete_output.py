"""Output to disk: files and directories that exist only once they are complete, and `fsync`."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from engram import _engram
from engram._text import printable
from engram.errors import EngramError, StorageError

__all__ = ["check_output", "complete_output", "fsync", "make_directory"]


@contextmanager
def complete_output(target: Path, *, is_directory: bool, folder: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path to write to, which becomes `target` at the end of the `with` block.

    After an error, the temporary file or directory is removed, and `target` is as it was. A file or directory that
    replaces another gets the mode of that one; until then, only its owner can read it.

    Args:
        target: The file, which is replaced if it exists, or the directory, which must not exist or be empty. If it is a
            symbolic link, the file or directory that the link points to is replaced.
        is_directory: Create the temporary path as a directory.
        folder: Directory of the temporary path, on the same file system. Default: that of the file or directory that is
            replaced or created.

    Raises:
        StorageError: Those of `check_output`; or an `OSError` in the `with` block, with its text.
    """
    final = check_output(target, is_directory=is_directory)
    temporary = (folder or final.parent) / f".{final.name}.{secrets.token_hex(4)}.tmp"
    process = os.getpid()
    try:
        try:
            mode = stat.S_IMODE(final.stat().st_mode) if final.exists() else None
            if is_directory:
                temporary.mkdir(mode=0o777 if mode is None else 0o700)
            elif mode is not None:
                temporary.touch(mode=0o600)
            yield temporary
            if mode is not None:
                temporary.chmod(mode)
            _give_name(temporary, final)
        finally:
            # It no longer exists if it has become `final`. In a forked child, it is that of the parent.
            if os.getpid() == process:
                if is_directory:
                    shutil.rmtree(temporary, ignore_errors=True)
                else:
                    temporary.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, EngramError):
            raise
        raise StorageError(f"cannot write {printable(str(target))}: {error.strerror or error}") from error


def check_output(target: Path, *, is_directory: bool = False) -> Path:
    """Checks that `complete_output` may create or replace a file or directory; returns its path without symbolic links.

    Raises:
        StorageError: It is in use, or a directory is to be replaced by a file.
    """
    final = Path(os.path.realpath(target))
    _engram.check_unused(final)
    if not is_directory and final.is_dir():
        raise StorageError(f"cannot write {printable(str(target))}: it is a directory; give the path of a file")
    return final


def _give_name(temporary: Path, final: Path) -> None:
    """Renames a file or directory; replaces an earlier one, unless it is in use."""
    _engram.check_unused(final)
    if temporary.is_file():
        # Unlike a rename, a link never replaces a file that is created in this moment. Some file systems have no links.
        with suppress(OSError):
            final.hardlink_to(temporary)
            return
    _engram.replace_unused(temporary, final)


def make_directory(path: Path) -> None:
    """Creates a directory and its parents, unless it exists.

    Raises:
        StorageError: It would have the name of a file of a store that is open, or of a run that trains.
        OSError: It cannot be created.
    """
    if not path.exists():
        _engram.check_unused(path)
        path.mkdir(parents=True, exist_ok=True)


def fsync(path: str | PathLike[str]) -> None:
    """Waits until the content of a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
