"""Helpers that many tests share."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest


def runs_all_tests():
    """True in `make test-all`."""
    return bool(os.environ.get("ENGRAM_TEST_ALL"))


def slow_except(*usual, of):
    """Values of a parametrized test, of which only the `usual` ones run in `make test`."""
    assert all(any(value is each or value == each for each in of) for value in usual)
    return [value if value in usual else pytest.param(value, marks=pytest.mark.slow) for value in of]


def raises(error, text):
    """Expects an error with exactly this text."""
    return pytest.raises(error, match=rf"\A{re.escape(text)}\Z")


@contextlib.contextmanager
def case(*values):
    """Adds the values to an error of the block, so that it names the case of a test that checks several."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, values))}")
        raise


def fill(store, table, values, priority=lambda _: 1.0):
    """Inserts one item `{"x": value}` per value; returns their keys."""
    return [store.insert({"x": value}, {table: priority(value)}, timeout=10) for value in values]


def sample_x(store, table, n):
    """Column `x` of `n` samples, as a list."""
    return store.sample(table, n, timeout=10).data["x"].tolist()


def wait_until(condition, seconds=10.0):
    """Waits until a condition becomes true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.002)


def skip_if_python_runs_in_other_threads(tf):
    """Skips a test of Ctrl-C, which only the main thread handles."""
    if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 18):
        pytest.skip("before 2.18, TensorFlow calls Python in other threads than the one that waits")


class BackgroundCall(threading.Thread):
    """A call in a background thread."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self._value = self._error = None
        self.start()

    def run(self):
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001, raised by `result`
            self._error = error

    def result(self, seconds=10.0):
        """Waits up to `seconds` for the call; returns its result or raises its error."""
        self.join(seconds)
        assert not self.is_alive(), "the call still waits"
        if self._error is not None:
            raise self._error
        return self._value


def run_python(code, seconds=60.0, *, logs=False):
    """Runs a Python program in its own process; checks that it succeeds; returns its output.

    Unless it `logs`, checks that nothing is on stderr.
    """
    here = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here)},
    )
    assert done.returncode == 0, done
    assert logs or done.stderr == "", done
    return done.stdout
