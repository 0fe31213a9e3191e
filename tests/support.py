"""What tests of several subjects share."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest


def raises(error, text):
    """Expects the error with exactly this text."""
    return pytest.raises(error, match=rf"\A{re.escape(text)}\Z")


def fill(store, table, values, priority=lambda _: 1.0):
    """Inserts one item `{"x": value}` per value; returns their keys."""
    return [store.insert({"x": value}, {table: priority(value)}, timeout=10) for value in values]


def sample_x(store, table, n):
    """The `x` of `n` samples."""
    return store.sample(table, n, timeout=10).data["x"].tolist()


def wait_until(holds, seconds=10.0):
    """Waits for a condition that another thread brings about."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)


class BackgroundCall(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self._value = self._error = None
        self.start()

    def run(self):
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001, handed over to whoever asks
            self._error = error

    def result(self, seconds=10.0):
        """What the call returned or raised."""
        self.join(seconds)
        assert not self.is_alive(), "the call still waits"
        if self._error is not None:
            raise self._error
        return self._value


def run_python(code, seconds=60.0):
    """Runs a program of its own; returns what it printed, having checked that it ended well."""
    here = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here)},
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout
