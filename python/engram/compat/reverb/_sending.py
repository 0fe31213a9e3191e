"""What all writers do with the engine's: send items, wait for tables, say so in Reverb's words."""

import warnings
from contextlib import suppress
from datetime import timedelta
from typing import Any

from engram import errors as native
from engram.compat.reverb import _arguments
from engram.compat.reverb._errors import translated
from engram.compat.reverb.errors import DeadlineExceededError

__all__ = ["ANY_NUMBER", "MOST_IN_FLIGHT", "SENT_AT_ONCE", "end_episode", "flush", "let_go", "send", "timeout_of"]

ANY_NUMBER = 1 << 62
"""More items than there ever are: a flush that lets so many wait only sends."""

SENT_AT_ONCE = 10
"""First items that a writer sends at once where nobody gave the length of its chunks: Reverb's begin with one step."""

MOST_IN_FLIGHT = 1_000_000
"""Items that may wait for their tables before an append waits, too."""


def timeout_of(timeout_ms: float | None) -> float | None:
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
    if writer is None or (allowed and writer.pending_items <= allowed):
        return
    try:
        with translated():
            writer.flush(timeout, min(allowed, ANY_NUMBER))
    except DeadlineExceededError as error:
        raise _late("Flush", timeout_ms, error) from error


def send(writer: Any) -> None:  # noqa: ANN401, one of the engine's
    """Sends all items, and waits for none."""
    with translated():
        writer.flush(None, ANY_NUMBER)


def end_episode(writer: Any, clear: bool, timeout_ms: float | None, timeout: float | None) -> None:  # noqa: ANN401, FBT001, one of the engine's
    """Ends the engine's episode, and waits until the tables have all items.

    Raises:
        DeadlineExceededError: They did not in time; the episode has ended all the same.
        RuntimeError: The server, or a table, is gone.
    """
    try:
        with translated():
            writer.end_episode(timeout, clear)
    except DeadlineExceededError as error:
        raise _late("End episode", timeout_ms, error) from error


def let_go(writer: Any, name: str) -> None:  # noqa: ANN401, one of the engine's
    """Closes the engine's writer, having sent all items; waits a moment for their tables, but not longer.

    Warns where some have not all by then: they are lost.
    """
    with suppress(native.EngramError):
        writer.close(0.0)
    left = writer.pending_items
    if left:
        text = f"a {name} was closed with {left} items that no table has; flush it first"
        warnings.warn(text, ResourceWarning, stacklevel=3)


def _late(call: str, timeout_ms: float | None, error: Exception) -> DeadlineExceededError:
    given = timedelta(milliseconds=float(timeout_ms or 0))
    return DeadlineExceededError(f"{call} call did not complete within provided timeout of {given}: {error}")
