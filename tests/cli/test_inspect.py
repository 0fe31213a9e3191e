"""`engram inspect`: directories that are whole, damaged, or no store's at all."""

import dataclasses
import json
import os
import shutil
import time

import pytest
from support import raises

import engram
from engram import Store, Table
from engram.errors import StorageError


def tables():
    return [Table("a", max_size=100), Table("b", max_size=100)]


def fill(store, table, count):
    for value in range(count):
        store.insert({"x": value}, {table: 1.0})


@pytest.fixture
def path(tmp_path):
    """Two checkpoints and what came before, between and after them.

    log-1: the tables (changes 1 and 2), 6 items of `a` (3 to 8); checkpoint-1; log-2: 4 of `b` (9 to 12);
    checkpoint-2; log-3: 3 of `a` (13 to 15).
    """
    path = tmp_path / "store"
    with Store.open(path, tables()) as store:
        fill(store, "a", 6)
        store.checkpoint()
        fill(store, "b", 4)
        store.checkpoint()
        fill(store, "a", 3)
    return path


@pytest.fixture
def inspect(run):
    """Inspects a directory, twice, and finds it as it was; returns status, lines, and what the JSON says."""

    def inspect(path):
        before = {each.name: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.iterdir()}
        shown, told = run("inspect", path), run("inspect", path, "--json")
        assert (shown.stderr, told.stderr, shown.exit_code) == ("", "", told.exit_code), shown.output
        found = json.loads(told.stdout, parse_constant=pytest.fail)
        assert found["ok"] == (told.exit_code == 0) == (not found["problems"])
        assert {each.name: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.iterdir()} == before
        return told.exit_code, shown.stdout.splitlines(), found

    return inspect


def opened(path):
    """Items of each table, once a store has opened the directory."""
    with Store.open(path) as store:
        return {name: info.size for name, info in store.info().items()}


def test_a_whole_directory(inspect, path):
    status, lines, found = inspect(path)
    assert status == 0
    assert lines == []
    assert found == {}
