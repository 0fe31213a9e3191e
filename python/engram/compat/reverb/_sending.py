"""What all writers do with the engine's: send items, wait for tables, say so in Reverb's words."""

import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import engram
from engram import errors as native
from engram.compat.reverb import _arguments
from engram.compat.reverb._errors import translated
from engram.compat.reverb.errors import DeadlineExceededError
from engram.errors import EngramError

__all__ = [
    "ANY_NUMBER",
    "EAGER_ITEMS",
    "MAX_IN_FLIGHT_ITEMS",
    "ServerProbe",
    "close_on_drop",
    "end_episode",
    "flush",
    "send",
    "timeout_seconds",
]

ANY_NUMBER = 1 << 62
"""More items than there ever are: a flush that lets so many wait only sends."""

EAGER_ITEMS = 10
"""First items that a writer sends at once where nobody gave the length of its chunks: Reverb's begin with one step."""

MAX_IN_FLIGHT_ITEMS = 1_000_000
"""Items that may wait for their tables before an append waits, too."""

CLOSE_TIMEOUT = 60.0
"""Seconds that a writer which is dropped waits for its tables, where Reverb's waits for ever."""

FIRST_PROBE_DELAY, MAX_PROBE_DELAY = 0.5, 5.0
"""Seconds until it looks whether the server is there, and the longest until it looks again."""

RECONNECT_TIMEOUT, RETRY_TIMEOUT = 5.0, 0.5
"""Seconds that the server may be away then, and may be for writers after one that found it gone."""


class ServerProbe:
    """Whether a server is there, asked on a connection of its own. The writers of a client share it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._reconnect_timeout = RECONNECT_TIMEOUT

    def is_reachable(self) -> bool:
        """True if it answers; one that is away may take a few seconds to come back."""
        try:
            _ = engram.Client(self.address, reconnect_timeout=self._reconnect_timeout).tables
        except native.EngramError:
            self._reconnect_timeout = RETRY_TIMEOUT
            return False
        self._reconnect_timeout = RECONNECT_TIMEOUT
        return True


def timeout_seconds(timeout_ms: float | None) -> float | None:
    """Seconds; None: for ever."""
    if timeout_ms is None:
        return None
    milliseconds = _arguments.number("timeout_ms", timeout_ms)
    return milliseconds / 1_000 if milliseconds > 0 else None


def flush(writer: Any, block_until_num_items: int, timeout_ms: float | None, timeout: float | None) -> None:  # noqa: ANN401, one of the engine's
    """Waits until at most so many items are not in their tables.

    Raises:
        ValueError: The number is negative.
        DeadlineExceededError: They were not taken in time; they stay queued.
        RuntimeError: The server, or a table, is gone.
    """
    allowed = _arguments.integer("block_until_num_items", block_until_num_items)
    if allowed < 0:
        raise ValueError(f"block_until_num_items must be >= 0, got {allowed}")
    if writer is None:
        return
    try:
        with translated():
            if allowed and writer.pending_items <= allowed:
                return
            writer.flush(timeout, min(allowed, ANY_NUMBER))
    except DeadlineExceededError as error:
        raise _timeout_error("Flush", timeout_ms, error) from error


def send(writer: Any) -> None:  # noqa: ANN401, one of the engine's
    """Sends all items, and waits for none."""
    with translated():
        writer.flush(None, ANY_NUMBER)


def end_episode(
    native: Any,  # noqa: ANN401, one of the engine's
    end: Callable[[float | None], None],
    ended: Callable[[], None],
    timeout_ms: float | None,
    timeout: float | None,
) -> None:
    """Ends the engine's episode, and waits until the tables have all items.

    Args:
        native: The engine's writer.
        end: Has it end its episode, within so many seconds.
        ended: Called once it has, whatever is raised then.
        timeout_ms: What messages say.
        timeout: Seconds; None: for ever.

    Raises:
        DeadlineExceededError: They did not in time; the episode has ended all the same.
        RuntimeError: The server, or a table, is gone; or the writer is another thread's or process's: it goes on.
        MemoryError: The engine could not seal its last steps: the episode goes on.
    """
    with translated():
        steps = native.episode_steps  # raises where the writer cannot be used
    try:
        with translated():
            end(timeout)
    except BaseException as error:
        if _has_ended(native, steps, error):
            ended()
        if isinstance(error, DeadlineExceededError):
            raise _timeout_error("End episode", timeout_ms, error) from error
        raise
    ended()


def _has_ended(native: Any, steps: int, error: BaseException) -> bool:  # noqa: ANN401, one of the engine's
    """True if an episode of so many complete steps has ended, though its end raised an error."""
    if isinstance(error, MemoryError):
        return False
    try:
        left: int = native.episode_steps
    except EngramError:  # another thread's or process's
        return False
    return left == 0 or left < steps


def close_native(writer: Any, name: str, server: ServerProbe | None) -> None:  # noqa: ANN401, one of the engine's
    """Closes the engine's writer, having sent all items; waits for their tables as `close_on_drop` says.

    Warns where some have not all by then: they are lost.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and ended the wait.
    """
    advice = "; flush it first"
    try:
        with suppress(native.EngramError):
            if server is None:
                writer.close(0.0)
            elif not _close(writer, server):
                advice = f": the server at {server.address} is gone"
    finally:
        with suppress(native.ForkedError):  # what is left is the parent's
            left = writer.pending_items
            if left:
                text = f"a {name} was closed with {left} items that no table has{advice}"
                warnings.warn(text, UserWarning, stacklevel=3)


def _close(writer: Any, server: ServerProbe) -> bool:  # noqa: ANN401, one of the engine's
    """Closes the engine's writer; False if the server is gone, though its tables do not have all items.

    Raises:
        DeadlineExceededError: The server is there, and its tables did not take all.
    """
    end = time.monotonic() + CLOSE_TIMEOUT
    pause = FIRST_PROBE_DELAY
    while True:
        try:
            writer.close(min(pause, max(0.0, end - time.monotonic())))
        except native.DeadlineExceededError:
            if not server.is_reachable():
                return False
            if time.monotonic() >= end:
                raise
            pause = min(2 * pause, MAX_PROBE_DELAY)
        else:
            return True


def close_on_drop(writer: object, native: Any, name: str, server: ServerProbe | None) -> "weakref.finalize[..., Any]":  # noqa: ANN401, one of the engine's
    """Lets the engine's writer go when a writer is dropped, when the process ends, or when it is called.

    The process ends with all threads there, and before the interpreter is torn down.

    Args:
        writer: The one that is dropped.
        native: The engine's.
        name: What it is called.
        server: Whose tables are waited for, up to a minute, unless it is gone; None: nothing is.
    """
    return weakref.finalize(writer, close_native, native, name, server)


def _timeout_error(call: str, timeout_ms: float | None, error: Exception) -> DeadlineExceededError:
    given = timedelta(milliseconds=float(timeout_ms or 0))
    return DeadlineExceededError(f"{call} call did not complete within provided timeout of {given}: {error}")
