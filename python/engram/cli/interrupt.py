"""Delays Ctrl-C to a chosen point, so that compilers and native code are not interrupted halfway."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType

EXIT_INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as in shells."""


class DeferredInterrupt:
    """While its `with` block runs, the first Ctrl-C is raised by `check`; a second one is raised at once.

    Does nothing outside the main thread, or if SIGINT already has another handler.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._installed = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.pressed:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.pressed:
            signal.default_int_handler(signum, frame)
        self.pressed = True
