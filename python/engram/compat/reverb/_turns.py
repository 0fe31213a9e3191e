"""Lets several threads use one writer, one after another."""

import logging
import math
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeAlias

from engram.errors import DeadlineExceededError

__all__ = ["Lock", "new_lock", "wait_in_turns"]

Lock: TypeAlias = "threading.RLock"

PART = 0.01
"""Seconds of a wait after which other threads can use the writer."""

_PAUSE = 0.0005
"""Seconds in which they can: a thread that takes a lock at once after releasing it takes it from those that wait."""

FIRST_REPORT = 10.0
"""Seconds of a wait after which a warning is logged, and again each time the wait has doubled."""

_LOG = logging.getLogger("engram")

_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def new_lock() -> Lock:
    """A lock for one writer. In a forked child it is free, whichever thread held it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001, as Python's `logging` does


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


def wait_in_turns(lock: Lock, call: Callable[[float | None], object], timeout: float | None) -> None:
    """Calls `call(timeout)` with the lock. While it waits, other threads can take the lock.

    Args:
        lock: The writer's.
        call: Waits for at most the given number of seconds, or without a limit for None, and then raises
            `DeadlineExceededError`. Can be called again.
        timeout: Seconds, or None for no limit.
    """
    if threading.active_count() == 1:  # a wait in one piece can find out that nothing will end it
        with lock:
            call(timeout)
        return
    began = time.monotonic()
    limit, next_report = math.inf if timeout is None else timeout, FIRST_REPORT
    while True:
        left = limit - (time.monotonic() - began)
        try:
            with lock:
                call(min(max(left, 0.0), PART))
        except DeadlineExceededError as error:
            waited = time.monotonic() - began
            text = re.sub(r" after [0-9.e-]+ s", f" after {limit:g} s", str(error), count=1)
            if waited >= limit:
                raise DeadlineExceededError(text) from error
            if waited >= next_report:
                next_report = 2 * waited
                _LOG.warning("`flush` has waited %.0f s: %s", waited, text.replace(f" after {limit:g} s", ""))
        else:
            return
        time.sleep(_PAUSE)
