"""Locks of files to which only one process writes."""

import fcntl
import time
from contextlib import suppress
from typing import IO

__all__ = ["try_lock", "unlock"]

_ATTEMPTS = 11
_INTERVAL_S = 0.01


def try_lock(file: IO[str]) -> bool:
    """Locks a file until `unlock`; returns False if something else has locked it.

    It is tried for 100 ms, because a check for files in use, of another thread or process, locks a file for a moment.

    Raises:
        OSError: The file cannot be locked, as on file systems without locks.
    """
    for attempt in range(_ATTEMPTS):
        time.sleep(_INTERVAL_S if attempt else 0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def unlock(file: IO[str]) -> None:
    """Unlocks a file. Closing it is not enough: a child that was forked meanwhile has a copy of it.

    A forked child must not call this: the lock is that of its parent, too.
    """
    with suppress(OSError):  # some file systems have no locks
        fcntl.flock(file, fcntl.LOCK_UN)
