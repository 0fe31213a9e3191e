"""The name of the program in commands that it prints for the user to run: `engram`, or a path to it."""

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
