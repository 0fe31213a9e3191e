"""Threads that repeat a call and record the latency of each repetition.

A call is due one millisecond after the previous one returned. Its latency counts from that moment, so that a late
wake-up is part of it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

# Seconds from the end of a call until the next is due. On a machine with two cores, the callers do not saturate them.
CALL_INTERVAL = 1e-3
SETTLE_SECONDS = 2.0  # recorded after the operation returned, to see delays that it causes afterwards
REFERENCE = "NumPy alone"
READS_PER_CALL = 1_024  # random reads per call of the reference; about as many as a sample of 256 items makes
ROW_BYTES = 64  # metadata of one item

Phases = dict[str, dict[str, np.ndarray]]  # phase -> caller -> [calls, 2]: time due, latency in seconds


class Caller(threading.Thread):
    """Repeats `action` and records the latency of each call."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        """Prepares the thread; `start` starts it."""
        super().__init__(name=name, daemon=True)
        self.action = action
        self.calls = np.zeros((200_000, 2))  # allocated in advance, so that the measurement includes no allocation
        self.count = 0
        self.first = 0  # index of the first call that counts; earlier ones are warm-up
        self.failure: Exception | None = None
        self.halt = threading.Event()

    def run(self) -> None:
        """Repeats the call until `finish`, an error, or the end of the array."""
        clock, log, action = time.perf_counter, self.calls, self.action
        log[:] = -1  # makes the system provide all pages now
        try:
            while not self.halt.is_set() and self.count < len(log):
                due = clock() + CALL_INTERVAL
                time.sleep(CALL_INTERVAL)
                action()
                log[self.count] = due, clock() - due
                self.count += 1
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            self.failure = error

    def finish(self) -> np.ndarray:
        """Stops the thread; returns its calls without the warm-up: due time and latency of each, in seconds."""
        self.halt.set()
        self.join(timeout=60)
        if self.failure is not None:
            raise self.failure
        if self.is_alive() or self.count == len(self.calls):
            msg = f"caller `{self.name}` is stuck, or its array of calls is full, after {self.count} calls"
            raise TimeoutError(msg)
        return self.calls[self.first : self.count].copy()


def make_reference(items: int) -> Callable[[], object]:
    """Returns a call that uses only NumPy: random reads of an array as large as the metadata of `items` items."""
    rows = np.ones((items, ROW_BYTES), np.uint8)
    generator = np.random.default_rng(0)

    def read() -> None:
        rows[generator.integers(0, items, READS_PER_CALL), 0].sum()

    return read


@contextmanager
def record_latencies(phases: Phases, phase: str, calls: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """Repeats the calls, and records their latencies while the body runs and `SETTLE_SECONDS` longer."""
    callers = [Caller(name, action) for name, action in calls.items()]
    for caller in callers:
        caller.start()
    time.sleep(0.5)
    for caller in callers:
        caller.first = caller.count
    yield
    time.sleep(SETTLE_SECONDS)
    phases[phase] = {caller.name: caller.finish() for caller in callers}
