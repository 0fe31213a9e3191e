"""When did a core stand still? A watcher on each core, as cyclictest and jHiccup do it.

A watcher sleeps for half a millisecond at a time, at real-time priority: no other program can keep it waiting, only
the system itself. Where it wakes late, its core ran no program, as happens on a virtual machine whose host gives it
no time, often without counting it as stolen. Without the right to real-time priority (Linux, root), nothing is known.
"""

import gc
import os
import select
import subprocess
import sys
import time
from typing import Self

EVERY = 0.5e-3
LATE = 1.5e-3

Span = tuple[float, float]  # when it began and when it ended, in seconds of `time.perf_counter`


class Pauses:
    """Watches all cores while it is open; `spans` afterwards."""

    def __init__(self) -> None:
        """Prepare; nothing is known yet."""
        self.spans: list[Span] = []
        self.known = False
        self._watchers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        """Start the watchers."""
        if hasattr(os, "sched_getaffinity"):
            command = [sys.executable, "-m", "benchmarks.pauses"]
            self._watchers = [
                subprocess.Popen([*command, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for core in os.sched_getaffinity(0)
            ]
            self.known = all(watcher.stdout and watcher.stdout.readline() == "watching\n" for watcher in self._watchers)
            if not self.known:
                self._stop()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop them, and gather what they saw."""
        lines = self._stop()
        seen = sorted((float(begin), float(end)) for begin, end in map(str.split, lines))
        for begin, end in seen:  # of several cores together: no moment counts twice
            if self.spans and begin <= self.spans[-1][1]:
                self.spans[-1] = self.spans[-1][0], max(end, self.spans[-1][1])
            else:
                self.spans.append((begin, end))

    def _stop(self) -> list[str]:
        lines = [line for watcher in self._watchers for line in watcher.communicate()[0].splitlines()]
        self.known = self.known and all(watcher.returncode == 0 for watcher in self._watchers)
        self._watchers = []
        return lines if self.known else []

    def within(self, begin: float, end: float) -> float:
        """Seconds of that time in which a core stood still."""
        return sum(max(min(end, last) - max(begin, first), 0.0) for first, last in self.spans)


def watch(core: int) -> None:
    """Print when this core stood still, once the parent closes our standard input."""
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return
    gc.disable()
    print("watching", flush=True)
    seen: list[Span] = []
    last = time.perf_counter()
    ended = False
    while not ended:
        for _ in range(100):
            time.sleep(EVERY)
            now = time.perf_counter()
            if now - last > LATE:
                seen.append((last + EVERY, now))
            last = now
        ended = bool(select.select([0], [], [], 0)[0])  # it was closed
        last = time.perf_counter()
    for span in seen:
        print(*span)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
