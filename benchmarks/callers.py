"""Threads that make one call after the other and note how long each took.

A call is due a millisecond after the last was over, and its time counts from then: waking up late is part of a stall.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

PAUSE = 1e-3  # seconds from a call to when the next is due: two cores are busy, and not saturated
SETTLE = 2.0  # seconds recorded after the operation returned: what it left to be freed is freed then
REFERENCE = "NumPy alone"
READS = 1_024  # random places per call of the reference; a sample of 256 reads about as many
ROW_BYTES = 64  # one item's bookkeeping

Phases = dict[str, dict[str, np.ndarray]]  # phase -> caller -> [calls, 2]: when it was due, seconds until it was over


class Caller(threading.Thread):
    """Calls `action` again and again and notes how long each call took."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        """Prepare; `start` starts."""
        super().__init__(name=name, daemon=True)
        self.action = action
        self.calls = np.zeros((200_000, 2))  # made beforehand: no growth while we measure
        self.count = 0
        self.first = 0  # calls before it belong to the start of the threads, not to the phase
        self.failure: Exception | None = None
        self.halt = threading.Event()

    def run(self) -> None:
        """Call until told to halt."""
        clock, log, action = time.perf_counter, self.calls, self.action
        log[:] = -1  # touch every page now
        try:
            while not self.halt.is_set() and self.count < len(log):
                due = clock() + PAUSE
                time.sleep(PAUSE)
                action()
                log[self.count] = due, clock() - due
                self.count += 1
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            self.failure = error

    def finish(self) -> np.ndarray:
        """Halt; all calls."""
        self.halt.set()
        self.join(timeout=60)
        if self.failure is not None:
            raise self.failure
        if self.is_alive() or self.count == len(self.calls):
            msg = f"the {self.name} hangs, or has no room left, after {self.count} calls"
            raise TimeoutError(msg)
        return self.calls[self.first : self.count].copy()


def reference(items: int) -> Callable[[], object]:
    """Read random places of as much memory as the items' bookkeeping takes, with NumPy alone."""
    rows = np.ones((items, ROW_BYTES), np.uint8)
    generator = np.random.default_rng(0)

    def read() -> None:
        rows[generator.integers(0, items, READS), 0].sum()

    return read


@contextmanager
def watched(phases: Phases, phase: str, calls: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """Record the latencies of all callers while the body runs, and a while longer."""
    callers = [Caller(name, action) for name, action in calls.items()]
    for caller in callers:
        caller.start()
    time.sleep(0.5)
    for caller in callers:
        caller.first = caller.count
    yield
    time.sleep(SETTLE)
    phases[phase] = {caller.name: caller.finish() for caller in callers}
