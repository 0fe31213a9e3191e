"""Further processes of a worker: the same module and interpreter, told to do another job.

A child ends when its standard input does: whatever becomes of its parent, nothing is left behind. It speaks
JSON lines: first what it has to say when it is ready, last its figure. This module runs inside each peer's own
virtual environment, so it imports nothing but Python.
"""

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.workers.common import Task

_told_to_go = threading.Event()


class Child:
    """A process that this one started."""

    def __init__(self, task: "Task", module: str = "", **changes: object) -> None:
        """Start this worker's module anew, or another one, with the task changed so."""
        main = sys.modules["__main__"].__spec__
        assert main is not None
        told = json.dumps(asdict(replace(task, child=True, **changes)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module or main.name, told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def hear(self) -> dict[str, Any]:
        """Wait for its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said = json.loads(line or '{"error": "it ended without a word"}')
        if "error" in said:
            msg = f"child process: {said['error']}"
            raise RuntimeError(msg)
        return dict(said)

    def join(self) -> None:
        """Wait until it has ended."""
        self._process.wait()

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


def end_with_parent() -> None:
    """In a child: hear from now on whether the parent lets us begin, or is gone."""

    def listen() -> None:
        for _ in sys.stdin:
            _told_to_go.set()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()


def meet() -> None:
    """In a child: say that we are ready, wait until we may begin."""
    say({"ready": True})
    _told_to_go.wait()


def stand(address: str) -> None:
    """In a child that is a server: say where, then only serve."""
    say({"address": address})
    threading.Event().wait()


def say(what: dict[str, object]) -> None:
    """Print a line for the parent."""
    print(json.dumps(what), flush=True)


def together(task: "Task", address: str) -> float:
    """Sum of the figures of `task.writers` processes that do the task at the same time."""
    children = [Child(task, address=address, writers=1) for _ in range(task.writers)]
    for child in children:
        child.hear()
    for child in children:
        child.go()
    return sum(float(child.hear()["value"]) for child in children)
