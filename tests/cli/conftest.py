"""Commands in this process, and in processes of their own."""

import json
import re
import subprocess
import sys

import pytest
from directories import contents, fill
from typer.testing import CliRunner

from engram import Store, Table
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


@pytest.fixture
def directory(tmp_path):
    """Two checkpoints, and what came before, between and after them.

    log-1: tables `a` and `b` (changes 1 and 2), 6 items of `a` (3 to 8); checkpoint-1; log-2: 4 of `b` (9 to 12);
    checkpoint-2; log-4: 3 of `a` (13 to 15).
    """
    path = tmp_path / "store"
    with Store.open(path, [Table("a", max_size=100), Table("b", max_size=100)]) as store:
        fill(store, "a", 6)
        store.checkpoint()
        fill(store, "b", 4)
        store.checkpoint()
        fill(store, "a", 3)
    return path


@pytest.fixture
def inspect(run):
    """Inspects a directory for people and for programs: status, text, JSON. The directory stays as it is."""

    def inspect(path):
        before = contents(path)
        shown, told = run("inspect", path), run("inspect", path, "--json")
        assert contents(path) == before
        assert (shown.stderr, told.stderr, shown.exit_code) == ("", "", told.exit_code), shown.output
        found = json.loads(told.stdout, parse_constant=pytest.fail)
        assert found["ok"] == (told.exit_code == 0) == (not found["problems"])
        assert all(f"damaged or lost: {problem}\n" in shown.stdout for problem in found["problems"])
        assert all(f"note: {note}\n" in shown.stdout for note in found["notes"])
        return told.exit_code, shown.stdout, found

    return inspect
