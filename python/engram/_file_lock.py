"""Locks of files to which only one process writes."""

import fcntl
import time
from typing import IO

__all__ = ["try_lock"]

_ATTEMPTS = 11
_INTERVAL_S = 0.01


def try_lock(file: IO[str]) -> bool:
    """Locks a file until it is closed; returns False if something else has locked it.

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
