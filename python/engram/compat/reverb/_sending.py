"""Sending, flushing and closing the engine's writer, shared by all writers, with Reverb's error texts."""

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import engram
from engram import errors as engram_errors
from engram._lost_items import report, tables_text
from engram._process_end import finalize
from engram._text import counted, dropped_items_text
from engram.compat.reverb import _arguments
from engram.compat.reverb._errors import translated
from engram.compat.reverb._turns import Lock, wait_in_turns
from engram.compat.reverb.errors import DeadlineExceededError
from engram.errors import EngramError

if TYPE_CHECKING:
    import weakref

__all__ = [
    "ANY_NUMBER",
    "EAGER_ITEMS",
    "MAX_IN_FLIGHT_ITEMS",
    "NativeWriter",
    "ServerProbe",
    "close_on_drop",
    "end_episode",
    "flush",
    "send",
    "timeout_seconds",
]

NativeWriter: TypeAlias = Any
"""One of the engine's writers: a `TrajectoryWriter` or a `PatternWriter` of `engram._engram`."""

ANY_NUMBER = 1 << 62
"""More items than a writer ever has. If this many may stay pending, the engine's `flush` sends and does not wait."""

EAGER_ITEMS = 10
"""Number of first items that are sent immediately if no chunk length is configured; a structured writer counts appends
that create items. Reverb's first chunks have one step, so its first items are sent immediately, too."""

MAX_IN_FLIGHT_ITEMS = 1_000_000
"""Number of sent items that may wait for their tables before an append, or the creation of an item, blocks."""

CLOSE_TIMEOUT = 60.0
"""Seconds that a `Writer` or a `StructuredWriter` waits for its tables when it is garbage-collected or the process
exits. A `TrajectoryWriter` does not wait. Reverb's wait without limit."""

FIRST_PROBE_DELAY, MAX_PROBE_DELAY = 0.5, 5.0
"""Seconds that such a writer waits for its tables before it first probes the server; maximum between two probes."""

RECONNECT_TIMEOUT, RETRY_TIMEOUT = 5.0, 0.5
"""Seconds that a probe waits for an unreachable server: normally, and after a probe that did not reach the server."""


class ServerProbe:
    """Checks on a separate connection whether a server is reachable. Shared by the writers of a client."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._reconnect_timeout = RECONNECT_TIMEOUT

    def is_reachable(self) -> bool:
        """True if the server answers within a few seconds."""
        try:
            _ = engram.Client(self.address, reconnect_timeout=self._reconnect_timeout).tables
        except engram_errors.EngramError:
            self._reconnect_timeout = RETRY_TIMEOUT
            return False
        self._reconnect_timeout = RECONNECT_TIMEOUT
        return True


def timeout_seconds(timeout_ms: float | None, *, zero_means_no_limit: bool = True) -> float | None:
    """Converts a timeout to seconds. None and negative numbers become None, which means no limit."""
    if timeout_ms is None:
        return None
    milliseconds = _arguments.number("timeout_ms", timeout_ms)
    has_limit = milliseconds > 0 or (milliseconds == 0 and not zero_means_no_limit)
    return milliseconds / 1_000 if has_limit else None


def flush(
    lock: Lock, writer: NativeWriter, block_until_num_items: int, timeout_ms: float | None, timeout: float | None
) -> None:
    """Sends all items, and waits until at most `block_until_num_items` of them are not yet in their tables.

    If at most that many, and more than 0, are pending already, this returns at once and sends nothing. Without a
    `writer`, nothing was appended. The wait is `timeout` seconds, or unlimited; `timeout_ms` is for the error text.
    After a timeout, the items stay queued. While it waits, other threads can take the writer's `lock`.
    """
    allowed = _arguments.integer("block_until_num_items", block_until_num_items)
    if allowed < 0:
        raise ValueError(f"block_until_num_items must be >= 0, got {allowed}")
    if writer is None:
        return

    def flush_within(timeout: float | None) -> None:
        if not allowed or writer.pending_items > allowed:
            writer.flush(timeout, min(allowed, ANY_NUMBER))

    try:
        with translated():
            wait_in_turns(lock, flush_within, timeout)
    except DeadlineExceededError as error:
        raise _timeout_error("Flush", timeout_ms, error) from error


def send(writer: NativeWriter) -> None:
    """Sends all items without waiting for their tables."""
    with translated():
        writer.flush(None, ANY_NUMBER)


def end_episode(
    lock: Lock,
    writer: NativeWriter,
    on_ended: Callable[[], None],
    *,
    clear_buffers: bool,
    timeout_ms: float | None,
    timeout: float | None,
) -> None:
    """Ends the episode, and waits until all items are in their tables.

    Without a `writer`, nothing was appended. The wait is `timeout` seconds, or unlimited; `timeout_ms` is for the error
    text. While it waits, other threads can take the writer's `lock`. `on_ended` is called if the episode has ended,
    even if an error is raised afterwards. The episode continues if there is not enough memory to complete the last
    chunk, and if another process owns the writer.
    """
    if writer is None:
        return
    is_ended = False

    def end_within(timeout: float | None) -> None:
        nonlocal is_ended
        if is_ended:
            writer.flush(timeout, 0)
            return
        steps = writer.episode_steps  # raises if another process owns the writer
        try:
            writer.end_episode(timeout, clear_buffers)
        except BaseException as error:
            is_ended = _has_ended(writer, steps, error)
            if is_ended:
                on_ended()
            raise
        is_ended = True
        on_ended()

    try:
        with translated():
            wait_in_turns(lock, end_within, timeout)
    except DeadlineExceededError as error:
        raise _timeout_error("End episode", timeout_ms, error) from error


def _has_ended(writer: NativeWriter, steps: int, error: BaseException) -> bool:
    """True if an episode that had `steps` complete steps has ended although `error` was raised."""
    if isinstance(error, MemoryError):
        return False
    try:
        steps_now: int = writer.episode_steps
    except EngramError:  # another process owns the writer
        return False
    return steps_now == 0 or steps_now < steps


def close_native(writer: NativeWriter, name: str, tables: Collection[str], probe: ServerProbe | None) -> None:
    """Sends all items and closes the engine's writer. Waits for the tables as described in `close_on_drop`.

    Warns if items have not reached their tables by then, or were rejected: they are lost.
    """
    reason, rejected = "; flush it first", 0
    try:
        while True:
            pending = writer.pending_items
            try:
                if probe is None:
                    writer.close(0.0)
                elif not _close(writer, probe):
                    reason = f": the server at {probe.address} cannot be reached"
                break
            except engram_errors.DeadlineExceededError:
                break
            except engram_errors.EngramError as error:
                # The items that were rejected with it are not pending any more. The next call raises the next error.
                newly_rejected = max(0, pending - writer.pending_items)
                reason = reason if rejected else f": {dropped_items_text(str(error))}"
                rejected += newly_rejected
                if not newly_rejected:
                    break
    except engram_errors.ForkedError:
        return  # pending items belong to the parent process
    finally:
        with suppress(engram_errors.ForkedError):
            lost = rejected + writer.pending_items
            if lost:
                where = f"their {tables_text(tables)}"
                text = f"a {name} was closed before {counted(lost, 'item')} reached {where}{reason}"
                report(text, UserWarning, None, stacklevel=3)


def _close(writer: NativeWriter, probe: ServerProbe) -> bool:
    """Closes the engine's writer. Returns False if items are pending and the server cannot be reached."""
    end = time.monotonic() + CLOSE_TIMEOUT
    pause = FIRST_PROBE_DELAY
    while True:
        try:
            writer.close(min(pause, max(0.0, end - time.monotonic())))
        except engram_errors.DeadlineExceededError:
            if not probe.is_reachable():
                return False
            if time.monotonic() >= end:
                raise
            pause = min(2 * pause, MAX_PROBE_DELAY)
        else:
            return True


def close_on_drop(
    writer: object, native: NativeWriter, name: str, tables: Collection[str], probe: ServerProbe | None
) -> "weakref.finalize[..., Any]":
    """Returns a finalizer that closes the engine's writer when `writer` is garbage-collected or the process exits.

    At process exit, it runs before the interpreter is torn down, while threads still run. It waits up to a minute for
    the tables, unless the server is gone or `probe` is None. `name` is the class of the writer, and `tables` those of
    its items, for the warning.
    """
    return finalize(writer, _close_in, os.getpid(), native, name, tables, probe)


def _close_in(
    process: int, writer: NativeWriter, name: str, tables: Collection[str], probe: ServerProbe | None
) -> None:
    """Does what `close_native` does, unless this is a forked process, whose parent has the writer."""
    if os.getpid() == process:
        close_native(writer, name, tables, probe)


def _timeout_error(call: str, timeout_ms: float | None, error: Exception) -> DeadlineExceededError:
    given = timedelta(milliseconds=float(timeout_ms or 0))
    return DeadlineExceededError(f"{call} call did not complete within provided timeout of {given}: {error}")
