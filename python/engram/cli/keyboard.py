"""Waits for the key `q` on a terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def wait_for_q() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits for some seconds, and returns True early if `q` is pressed.

    Reads keys only if stdin and stdout are terminals: a pager that reads stdout uses the keyboard itself. Keys are then
    not echoed. The terminal's state is restored at the end, also after an error, Ctrl-C or SIGTERM.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield _sleep
        return
    terminal = sys.stdin.fileno()
    state = termios.tcgetattr(terminal)
    handler = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        tty.setcbreak(terminal)
        yield lambda seconds: _q_pressed(terminal, seconds)
    finally:
        with suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(terminal, termios.TCSAFLUSH, state)
        signal.signal(signal.SIGTERM, handler)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _q_pressed(terminal: int, seconds: float) -> bool:
    """Waits up to `seconds` for `q`; True if it was pressed, or if the terminal is closed."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            keys = os.read(terminal, 1024)
            if not keys or b"q" in keys:
                return True
    return False
