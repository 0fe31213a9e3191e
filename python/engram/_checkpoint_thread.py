"""Checkpoints now and then."""

import atexit
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING

from engram.errors import ClosedError, EngramError

if TYPE_CHECKING:
    from engram.store import Store

_LOG = logging.getLogger("engram")

_LOOK = 1.0
"""Seconds between two looks at how much the log has grown."""

_EMPTY = 256
"""Bytes of a log in which nothing has changed, at most."""


class CheckpointThread:
    """Has a store write checkpoints, in a thread that ends with the store."""

    def __init__(self, store: "Store", interval: float | None, log_bytes: int | None, *, journaled: bool) -> None:
        self._store = weakref.ref(store)
        self._interval = interval
        self._log_bytes = log_bytes
        self._journaled = journaled
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engram-checkpoints", daemon=True)
        self._thread.start()
        # Native code must not come back to an interpreter that is gone.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends it; a checkpoint under way is waited for."""
        atexit.unregister(self.stop)
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        look = _LOOK if self._interval is None else min(_LOOK, self._interval)
        while not self._stop.wait(look):
            store = self._store()
            if store is None:
                return
            try:
                if self._is_due(store, time.monotonic() - last):
                    last = time.monotonic()
                    store.checkpoint()
            except ClosedError:
                return
            except EngramError as error:
                _LOG.warning("a checkpoint was not written, and will be tried again: %s", error)
            del store  # nobody else may have it any more

    def _is_due(self, store: "Store", passed: float) -> bool:
        grown = store._native.log_bytes() or 0  # noqa: SLF001, both halves of one door
        if self._log_bytes is not None and grown > self._log_bytes:
            return True
        changed = not self._journaled or grown > _EMPTY
        return changed and self._interval is not None and passed >= self._interval
