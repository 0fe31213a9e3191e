"""The end of the process: a framework's threads must have left Python by then, or they never return."""

import atexit
import math
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["Calls"]

_PATIENCE = 5.0
_QUIET = 0.1
"""Seconds."""


class Calls:
    """What a framework's threads call: once the process ends, nothing more is begun, and what is under way is awaited.

    A thread that is in Python after that never returns, and a framework that waits for its threads never ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # never held while anything waits
        self._is_awaited = False
        self._has_come = False
        self._under_way = 0
        self._seen = -math.inf

    def await_exit(self) -> None:
        """To be called after the framework has been imported, so that this comes before what that does at the end."""
        with self._lock:
            if not self._is_awaited:
                self._is_awaited = True
                atexit.register(self._come)

    @contextmanager
    def call(self) -> Generator[bool]:
        """For as long as a call takes. It yields whether to do anything: not once the process ends."""
        with self._lock:
            self._under_way += 1
            may = not self._has_come
        try:
            yield may
        finally:
            with self._lock:
                self._under_way -= 1
                self._seen = time.monotonic()

    def _come(self) -> None:
        """Waits a while until no thread calls any more; those that have just called are still on their way out."""
        with self._lock:
            self._has_come = True
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and (self._under_way or time.monotonic() < self._seen + _QUIET):
            time.sleep(0.01)
