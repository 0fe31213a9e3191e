"""Ctrl-C at a moment of our choosing: compilers and native code do not like to be interrupted half-way."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class DeferredInterrupt:
    """While its block runs, the first Ctrl-C only leaves a note, which `check` raises; the second acts at once.

    Does nothing outside the main thread, or where somebody else already handles or ignores SIGINT.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._installed = False

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was put off, if there is one."""
        if self.pressed:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.pressed:
            signal.default_int_handler(signum, frame)
        self.pressed = True
