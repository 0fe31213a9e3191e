"""Fixtures that run commands, in this process and in others."""

import json
import re

import pytest
from helpers.directories import contents, fill
from typer.testing import CliRunner

import engram
from engram import Store, Table
from engram.cli import app
from engram.cli.tables import read_tables


@pytest.fixture
def run(monkeypatch):
    """Returns `run("info", address)`, which runs a command in this process and returns Typer's result."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("ENGRAM_ADDRESS", "ENGRAM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return lambda *args: CliRunner().invoke(app, list(map(str, args)))


@pytest.fixture
def reconnect_timeout(monkeypatch):
    """Sets the time for which the commands in this process try to reach a server, and returns it: 0.3 s, not 5 s."""
    defaults = engram.Client.__init__.__kwdefaults__
    assert defaults["reconnect_timeout"] == 5.0
    monkeypatch.setitem(defaults, "reconnect_timeout", 0.3)
    return 0.3


@pytest.fixture
def serve(spawn):
    """Returns `serve(*options)`, which starts `engram serve` on a free port.

    It returns the running command, the first line that it printed, and the server's address.
    """

    def start(*options):
        server = spawn("serve", "--port", 0, *options)
        line = server.line()
        match = re.search(r" at (\S+);", line)
        assert match, (line, server.end())
        return server, line, match[1]

    return start


@pytest.fixture
def read(tmp_path):
    """Returns `read(text)`, which writes the text to `tables.toml` and returns the tables that it describes."""

    def read(text):
        file = tmp_path / "tables.toml"
        file.write_text(text)
        return read_tables(file)

    return read


@pytest.fixture
def directory(tmp_path):
    """A store's directory with two checkpoints, and changes before, between and after them.

    log-1: tables `a` and `b` (changes 1 and 2), 6 items of `a` (3 to 8); checkpoint-1; log-2: 4 of `b` (9 to 12);
    checkpoint-2; log-4: 3 of `a` (13 to 15). Each checkpoint takes two numbers for logs, and needs only one here.
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
    """Returns `inspect(path)`, which inspects a directory and checks that it is unchanged.

    It returns exit status, text, and parsed JSON.
    """

    def inspect(path):
        before = contents(path)
        as_text, as_json = run("inspect", path), run("inspect", path, "--json")
        assert contents(path) == before
        assert (as_text.stderr, as_json.stderr, as_text.exit_code) == ("", "", as_json.exit_code), as_text.output
        report = json.loads(as_json.stdout, parse_constant=pytest.fail)
        assert report["ok"] == (as_json.exit_code == 0) == (not report["problems"])
        assert all(f"problem: {problem}\n" in as_text.stdout for problem in report["problems"])
        assert all(f"note: {note}\n" in as_text.stdout for note in report["notes"])
        return as_json.exit_code, as_text.stdout, report

    return inspect
