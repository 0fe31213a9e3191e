"""Periodic checkpoints of a store."""

import atexit
import logging
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING

from engram.errors import ClosedError, EngramError

if TYPE_CHECKING:
    from engram.store import Store

_LOG = logging.getLogger("engram")

_POLL_INTERVAL = 1.0
"""Maximum seconds between two checks whether a checkpoint is due, except after a failed one."""

_MIN_POLL_INTERVAL = 0.01
"""Minimum seconds between two such checks."""

_RETRY_DELAY = 10.0
"""Maximum seconds after a failed checkpoint until the next attempt."""

_MAX_EMPTY_LOG_BYTES = 256
"""Maximum size of a log that contains no changes."""


class CheckpointThread:
    """Writes a store's checkpoints from a thread that ends with the store."""

    def __init__(self, store: "Store", interval: float | None, max_log_bytes: int | None, *, journaled: bool) -> None:
        """Starts the thread.

        Args:
            store: The store; the thread does not keep it alive.
            interval: Seconds after which a checkpoint is due if anything has changed. `None`: no interval.
            max_log_bytes: Number of bytes logged since the last checkpoint above which a checkpoint is due. `None`: no
                limit.
            journaled: False if changes are not logged. The thread then cannot see whether anything has changed, and
                assumes that something has.
        """
        self._store = weakref.ref(store)
        self._interval = interval
        self._max_log_bytes = max_log_bytes
        self._journaled = journaled
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engram-checkpoints", daemon=True)
        self._thread.start()
        # Native code must not return to an interpreter that has been finalized.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the thread, waiting for a checkpoint in progress."""
        atexit.unregister(self.stop)
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        interval = math.inf if self._interval is None else self._interval
        poll_interval = max(_MIN_POLL_INTERVAL, min(_POLL_INTERVAL, interval))
        retry_delay = max(_MIN_POLL_INTERVAL, min(_RETRY_DELAY, interval))
        last_attempt = time.monotonic()
        wait = poll_interval
        while not self._stop.wait(wait):
            store = self._store()
            if store is None:
                return
            wait = poll_interval
            try:
                if self._is_due(store, time.monotonic() - last_attempt):
                    last_attempt = time.monotonic()
                    store.checkpoint()
            except ClosedError:
                return
            except EngramError as error:
                last_attempt = -math.inf  # a checkpoint is due after the next wait
                wait = retry_delay
                _LOG.warning("checkpoint failed; the next attempt is in %g s: %s", retry_delay, error)
            del store  # while this thread waits, it must not keep the store alive

    def _is_due(self, store: "Store", elapsed: float) -> bool:
        """True if a checkpoint is due, `elapsed` seconds after the last attempt."""
        log_bytes = store._native.log_bytes() or 0  # noqa: SLF001, the store's native object
        if self._max_log_bytes is not None and log_bytes > self._max_log_bytes:
            return True
        changed = not self._journaled or log_bytes > _MAX_EMPTY_LOG_BYTES
        return changed and self._interval is not None and elapsed >= self._interval
