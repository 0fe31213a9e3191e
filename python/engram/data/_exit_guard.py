"""Keeps a framework's threads from calling Python while the process exits, which would block the exit."""

import atexit
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["ExitGuard"]

_EXIT_TIMEOUT = 5.0
"""Maximum seconds that the exit waits for running calls."""

_QUIET_PERIOD = 0.5
"""Seconds without a call after which no thread is considered to be in Python any more."""


class ExitGuard:
    """Guards code that a framework's threads call: at exit, no new call starts, and running calls are waited for.

    A thread that still runs Python code when the interpreter exits never returns, and a framework that waits for its
    threads then blocks the exit. Guarded code is in a `with` block, and must do nothing if the guard yields False:

        with exit_guard as may_run:
            return next(reader) if may_run else None
    """

    def __init__(self, on_exit: Callable[[], None] | None = None) -> None:
        """Creates a guard that is not registered yet.

        Args:
            on_exit: Called at exit, when no guarded call runs any more, or after `_EXIT_TIMEOUT`.
        """
        self._on_exit = on_exit
        self._lock = threading.Lock()  # never held while waiting
        self._is_registered = False
        self._is_exiting = False
        self._running_calls = 0
        self._last_call_end = -math.inf  # of calls outside the main thread

    def register(self) -> None:
        """Registers the exit handler; call it after importing the framework, so that it runs before the framework's."""
        with self._lock:
            if not self._is_registered:
                self._is_registered = True
                atexit.register(self._exit)

    def __enter__(self) -> bool:
        with self._lock:
            self._running_calls += 1
            return not self._is_exiting

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The main thread runs the exit handlers itself, so it is never inside the framework then.
        is_main = threading.get_ident() == threading.main_thread().ident
        with self._lock:
            self._running_calls -= 1
            if not is_main:
                self._last_call_end = time.monotonic()

    def _exit(self) -> None:
        """Waits until no call runs, then calls `on_exit`.

        A thread whose call ended less than `_QUIET_PERIOD` ago may still be in Python.
        """
        with self._lock:
            self._is_exiting = True
        end = time.monotonic() + _EXIT_TIMEOUT
        while time.monotonic() < end and (
            self._running_calls or time.monotonic() < self._last_call_end + _QUIET_PERIOD
        ):
            time.sleep(0.01)
        if self._on_exit is not None:
            self._on_exit()
