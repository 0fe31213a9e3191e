"""Child processes of a worker: the same interpreter and, by default, the same module, with another task.

A child exits when its standard input is closed, so it never outlives its parent. It prints JSON lines: a server prints
its address, and other children print their result, before which a writer also prints that it is ready. This module runs
inside each peer's own virtual environment, so it imports only the standard library.
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

_started = threading.Event()  # set in a child when the parent starts it


class Child:
    """A child process."""

    def __init__(self, task: "Task", module: str = "", **changes: object) -> None:
        """Starts this worker's module, or another one, in a new process with a changed task."""
        main = sys.modules["__main__"].__spec__
        assert main is not None
        arguments = json.dumps(asdict(replace(task, child=True, **changes)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module or main.name, arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def receive(self) -> dict[str, Any]:
        """Waits for the child's next line; raises an error if the line contains one, or if the child has exited."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        message = json.loads(line or '{"error": "it exited without a result"}')
        if "error" in message:
            msg = f"child process: {message['error']}"
            raise RuntimeError(msg)
        return dict(message)

    def join(self) -> None:
        """Waits until the child has exited."""
        self._process.wait()

    def start(self) -> None:
        """Starts the child's measurement, once it is ready."""
        assert self._process.stdin is not None
        self._process.stdin.write("start\n")
        self._process.stdin.flush()


def end_with_parent() -> None:
    """In a child: starts a thread that waits for the parent's start signal, and exits when the parent is gone."""

    def watch_parent() -> None:
        for _ in sys.stdin:
            _started.set()
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()


def wait_for_start() -> None:
    """In a child: reports that it is ready, and waits until the parent starts it."""
    send({"ready": True})
    _started.wait()


def serve_address(address: str) -> None:
    """In a child that is a server: sends its address, then waits until the parent is gone."""
    send({"address": address})
    threading.Event().wait()


def send(message: dict[str, object]) -> None:
    """Sends a line to the parent."""
    print(json.dumps(message), flush=True)


def run_writers(task: "Task", address: str) -> float:
    """Runs the task in `task.writers` processes at the same time; returns the sum of their figures."""
    children = [Child(task, address=address, writers=1) for _ in range(task.writers)]
    for child in children:
        child.receive()
    for child in children:
        child.start()
    return sum(float(child.receive()["value"]) for child in children)
