"""The name of the program in commands that it prints for the user to run: `engram`, or a path to it."""

import re
import subprocess
import sys

import pytest

from engram.cli.program_name import program_name


@pytest.fixture
def installed(tmp_path):
    """A program `engram` in a directory of its own."""
    file = tmp_path / "a folder" / "engram"
    file.parent.mkdir()
    file.touch(mode=0o755)
    return file


def name_if_started_as(monkeypatch, name, path):
    monkeypatch.setattr(sys, "argv", [str(name)])
    monkeypatch.setenv("PATH", str(path))
    return program_name()


def test_the_name_is_engram_if_the_shell_finds_this_program(installed, monkeypatch):
    assert name_if_started_as(monkeypatch, installed, installed.parent) == "engram"


def test_the_name_is_a_path_if_the_shell_finds_no_engram_or_another(installed, tmp_path, monkeypatch):
    assert name_if_started_as(monkeypatch, ".venv/bin/engram", tmp_path) == ".venv/bin/engram"
    assert name_if_started_as(monkeypatch, ".venv/bin/engram", installed.parent) == ".venv/bin/engram"
    assert name_if_started_as(monkeypatch, installed, tmp_path) == f"'{installed}'"


@pytest.mark.parametrize("name", ["-c", "/somewhere/engram/cli/__main__.py"])
def test_the_name_is_engram_if_started_from_python(name, tmp_path, monkeypatch):
    assert name_if_started_as(monkeypatch, name, tmp_path) == "engram"


def start(*arguments):
    """Starts a command in a new interpreter, without the modules that the programs of other tests share."""
    command = [sys.executable, "-m", "engram.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_commands_run_as_a_module_of_python(directory):
    with start("serve", "--port", 0) as server, start("inspect", directory) as inspect:
        try:
            line = server.stdout.readline()
            server.terminate()
            assert server.communicate(timeout=60) == ("stopping\n", "")
            assert server.returncode == 0
            assert re.fullmatch(r"serving replay at (\S+); watch it with `engram top \1`\n", line)
            report, errors = inspect.communicate(timeout=60)
            assert (inspect.returncode, errors) == (0, "")
            assert re.match(r"store [0-9a-f]{16}, 5 files of \d+\.\d KiB: nothing is damaged or lost\n", report)
        finally:
            server.kill()
            inspect.kill()
