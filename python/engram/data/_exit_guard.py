"""The end of the process: a framework's threads must have left Python by then, or they never return."""

import atexit
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["ExitGuard"]

_PATIENCE = 5.0
_QUIET = 0.5
"""Seconds."""


class ExitGuard:
    """What a framework's threads call: once the process ends, nothing more is begun, and what is under way is awaited.

    A thread that is in Python after that never returns, and a framework that waits for its threads never ends. What it
    calls is the block of a `with`, which is told whether to do anything:

        with calls as may_run:
            return next(reader) if may_run else None
    """

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        """Awaits nothing yet.

        Args:
            end: Called once no thread calls any more.
        """
        self._end = end
        self._lock = threading.Lock()  # never held while anything waits
        self._is_awaited = False
        self._has_come = False
        self._under_way = 0
        self._seen = -math.inf

    def register(self) -> None:
        """To be called after the framework has been imported, so that this comes before what that does at the end."""
        with self._lock:
            if not self._is_awaited:
                self._is_awaited = True
                atexit.register(self._come)

    def __enter__(self) -> bool:
        with self._lock:
            self._under_way += 1
            return not self._has_come

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_main = threading.get_ident() == threading.main_thread().ident  # which ends the process only once it is back
        with self._lock:
            self._under_way -= 1
            if not is_main:
                self._seen = time.monotonic()

    def _come(self) -> None:
        """Waits a while until no thread calls any more; those that have just called are still on their way out."""
        with self._lock:
            self._has_come = True
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and (self._under_way or time.monotonic() < self._seen + _QUIET):
            time.sleep(0.01)
        if self._end is not None:
            self._end()
