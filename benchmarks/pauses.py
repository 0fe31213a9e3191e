"""Detects when a core is paused, with a watcher process on each core, as cyclictest and jHiccup do.

A watcher repeatedly sleeps for half a millisecond at real-time priority, so that no other program can delay it. If it
wakes late, its core ran no program at all. This happens on a virtual machine whose host gives the core to others, often
without counting the time as stolen. Real-time priority needs Linux and root; without it, pauses are not measured.
"""

import gc
import os
import select
import subprocess
import sys
import time
from typing import Self

WATCH_INTERVAL = 0.5e-3  # seconds that a watcher sleeps
LATE_AFTER = 1.5e-3  # seconds since the previous wake-up; the next one counts as late above that

Span = tuple[float, float]  # begin and end, in seconds of `time.perf_counter`


class Pauses:
    """Watches all cores while it is open. Afterwards `spans` has the times in which at least one core was paused."""

    def __init__(self) -> None:
        """Prepares; `__enter__` starts the watchers."""
        self.spans: list[Span] = []
        self.measured = False  # True if the watchers of all cores have run; otherwise `spans` is empty
        self._watchers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        """Starts the watchers."""
        if hasattr(os, "sched_getaffinity"):
            command = [sys.executable, "-m", "benchmarks.pauses"]
            self._watchers = [
                subprocess.Popen([*command, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for core in os.sched_getaffinity(0)
            ]
            self.measured = all(
                watcher.stdout and watcher.stdout.readline() == "watching\n" for watcher in self._watchers
            )
            if not self.measured:
                self._stop()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stops the watchers and merges their spans."""
        lines = self._stop()
        pauses = sorted((float(begin), float(end)) for begin, end in map(str.split, lines))
        for begin, end in pauses:  # overlapping pauses of several cores count once
            if self.spans and begin <= self.spans[-1][1]:
                self.spans[-1] = self.spans[-1][0], max(end, self.spans[-1][1])
            else:
                self.spans.append((begin, end))

    def _stop(self) -> list[str]:
        lines = [line for watcher in self._watchers for line in watcher.communicate()[0].splitlines()]
        self.measured = self.measured and all(watcher.returncode == 0 for watcher in self._watchers)
        self._watchers = []
        return lines if self.measured else []

    def within(self, begin: float, end: float) -> float:
        """Seconds between `begin` and `end` in which any core was paused."""
        return sum(max(min(end, last) - max(begin, first), 0.0) for first, last in self.spans)


def watch(core: int) -> None:
    """Watches `core` until standard input is closed; then prints its pauses. Returns at once without the privilege."""
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return
    gc.disable()
    print("watching", flush=True)
    pauses: list[Span] = []
    last = time.perf_counter()
    ended = False
    while not ended:
        for _ in range(100):
            time.sleep(WATCH_INTERVAL)
            now = time.perf_counter()
            if now - last > LATE_AFTER:
                pauses.append((last + WATCH_INTERVAL, now))
            last = now
        ended = bool(select.select([0], [], [], 0)[0])  # readable once closed
        last = time.perf_counter()
    for span in pauses:
        print(*span)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
