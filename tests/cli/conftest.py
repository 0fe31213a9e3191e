"""Commands in this process, `engram serve` in one of its own."""

import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from engram.cli import app


@pytest.fixture
def run(monkeypatch):
    """Runs a command: `run("info", address)`."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("ENGRAM_ADDRESS", "ENGRAM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return lambda *args: CliRunner().invoke(app, list(map(str, args)))


class Served:
    """A running `engram serve`."""

    def __init__(self, *options):
        command = [sys.executable, "-m", "engram.cli", "serve", *map(str, options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def begun(self):
        """Waits until it serves; returns the line that says so."""
        line = self.process.stdout.readline()
        self.address = re.search(r" at (\S+);", line)[1] if line else None
        return line

    def ended(self, number=None):
        """Sends a signal, waits for the end; returns status, stdout and stderr."""
        if number is not None:
            self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stdout, stderr


@pytest.fixture
def serve():
    """Starts `engram serve` with these options, at any free port unless they say otherwise."""
    started = []

    def start(*options):
        chosen = () if "--port" in options else ("--port", 0)
        started.append(Served(*chosen, *options))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.send_signal(signal.SIGKILL)
        served.process.communicate()
