"""How the program calls itself in the commands that it prints."""

import sys

import pytest

from engram.cli.program_name import program_name


@pytest.fixture
def installed(tmp_path):
    """A program of that name, in a folder of its own."""
    file = tmp_path / "a folder" / "engram"
    file.parent.mkdir()
    file.touch(mode=0o755)
    return file


def called_as(monkeypatch, name, path):
    monkeypatch.setattr(sys, "argv", [str(name)])
    monkeypatch.setenv("PATH", str(path))
    return program_name()


def test_by_its_name_where_the_shell_finds_it(installed, monkeypatch):
    assert called_as(monkeypatch, installed, installed.parent) == "engram"


def test_by_its_path_where_the_shell_finds_none_or_another(installed, tmp_path, monkeypatch):
    assert called_as(monkeypatch, ".venv/bin/engram", tmp_path) == ".venv/bin/engram"
    assert called_as(monkeypatch, ".venv/bin/engram", installed.parent) == ".venv/bin/engram"
    assert called_as(monkeypatch, installed, tmp_path) == f"'{installed}'"


@pytest.mark.parametrize("name", ["-c", "/somewhere/engram/cli/__main__.py"])
def test_by_its_name_where_python_called_it(name, tmp_path, monkeypatch):
    assert called_as(monkeypatch, name, tmp_path) == "engram"
