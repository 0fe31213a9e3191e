"""Commands in this process, and in processes of their own."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from engram.cli import app

# A child of a background job is born with SIGINT ignored: give it Python's own handling first.
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from engram.cli import main; main()"


@pytest.fixture
def run(monkeypatch):
    """Runs a command: `run("info", address)`."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("ENGRAM_ADDRESS", "ENGRAM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return lambda *args: CliRunner().invoke(app, list(map(str, args)))


class Spawned:
    """A running command."""

    def __init__(self, *args, new_session=False):
        command = [sys.executable, "-c", MAIN, *map(str, args)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, start_new_session=new_session, **pipes)

    def line(self):
        """The next line of stdout."""
        return self.process.stdout.readline()

    def ended(self, number=None):
        """Sends a signal, waits for the end; returns status, the rest of stdout, and stderr."""
        if number is not None:
            self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stdout, stderr


@pytest.fixture
def spawn():
    """Starts a command in a process of its own: `spawn("top", address)`."""
    spawned = []

    def start(*args, **options):
        spawned.append(Spawned(*args, **options))
        return spawned[-1]

    yield start
    for one in spawned:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def serve(spawn):
    """Starts `engram serve` at any free port; returns the process, its first line, and its address."""

    def start(*options):
        served = spawn("serve", "--port", 0, *options)
        line = served.line()
        found = re.search(r" at (\S+);", line)
        assert found, (line, served.ended())
        return served, line, found[1]

    return start
