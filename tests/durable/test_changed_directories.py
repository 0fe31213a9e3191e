"""Directories that are moved, replaced, removed or emptied while a store uses them."""

import os
import re
import shutil
import socket
import stat
import time

import pytest
from helpers.support import raises

from engram import Client, Server, Store, Table
from engram.errors import InvalidArgumentError, StorageError

STORED_AGAIN = "; the next checkpoint stores everything again"
DETECTION_DELAY = 0.06
"""Seconds after which the next change detects that its log was removed."""


def queue():
    return Table.queue("queue", max_size=1_000)


def put(store, *values):
    for value in values:
        store.insert({"n": value}, {"queue": 1.0})


def values(path):
    """Opens a copy of a closed or running store's directory; returns the numbers in its queue, and its notes."""
    copy = path.with_name(f"{path.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    with Store.open(copy) as store:
        return store.sample("queue", store.info()["queue"].size).data["n"].tolist(), store.notes


def files(path):
    return {each.name: each.read_bytes() for each in path.iterdir()}


def storage_problem(store):
    return store.info()["queue"].storage_problem


def moved_text(path, to, *, replaced=False):
    """Returns the text of the problem after the directory was moved and, if `replaced`, another one has its path."""
    other = ", and another file or directory has its path" if replaced else ""
    return (
        f"{path}: the store's directory was moved to {to}{other}; changes are still written to {to}, but no checkpoint "
        "can be written until it is moved back"
    )


# --- moved and replaced --------------------------------------------------------------------------


def test_a_store_whose_directory_was_moved_does_not_touch_the_one_at_its_path(tmp_path):
    path, away = tmp_path / "store", tmp_path / "away"
    with Store.open(path, [queue()]) as first:
        put(first, 1)
        first.checkpoint()
        path.rename(away)
        with Store.open(path, [queue()]) as second:
            put(second, 2)
            second.checkpoint()
            before = files(path)
            for number in range(3):
                put(first, 10 + number)
                with raises(StorageError, moved_text(path, away, replaced=True)):
                    first.checkpoint()
            assert storage_problem(first) == moved_text(path, away, replaced=True)
            assert storage_problem(second) is None
            assert files(path) == before
            second.checkpoint()
        assert first.sample("queue", 1).data["n"].tolist() == [1]
    assert values(path) == ([2], ())
    # Changes that the first store acknowledged are in the directory that was moved.
    assert values(away) == ([10, 11, 12], ())


def test_checkpoints_are_written_again_once_a_moved_directory_is_moved_back(tmp_path):
    path, away = tmp_path / "store", tmp_path / "away"
    with Store.open(path, [queue()]) as store:
        put(store, 0)
        path.rename(away)
        for _ in range(2):
            with raises(StorageError, moved_text(path, away)):
                store.checkpoint()
        put(store, 1)
        assert store.sample("queue", 1).data["n"].tolist() == [0]
        away.rename(path)
        assert storage_problem(store) is None
        assert store.checkpoint().number == 1
        put(store, 2)
    assert values(path) == ([1, 2], ())


def test_a_failed_restore_does_not_prevent_opening(tmp_path):
    """The log must be complete without the tables that were not restored."""
    path, away, other = tmp_path / "store", tmp_path / "away", tmp_path / "other"
    with Store.open(other, [Table("other")]) as store:
        store.insert({"n": 1}, {"other": 1.0})
    with Store.open(path, [queue()]) as store:
        put(store, 1)
        path.rename(away)
        with raises(StorageError, moved_text(path, away)):
            store.restore(other)
        put(store, 2)
    assert values(away) == ([1, 2], ())


def test_a_relative_path_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Store.open("store", [queue()]) as store:
        put(store, 1)
        monkeypatch.chdir("elsewhere")
        assert store.checkpoint().number == 1
        assert storage_problem(store) is None
        put(store, 2)
    assert values(tmp_path / "store") == ([1, 2], ())
    assert not list((tmp_path / "elsewhere").iterdir())


# --- removed -------------------------------------------------------------------------------------


def removed_text(path, *, replaced=False):
    """Returns the text of the problem after the directory was removed and, if `replaced`, another one has its path."""
    other = ", and another file or directory has its path" if replaced else ""
    return f"{path}: the store's directory was removed{other}; its data exists only in memory"


@pytest.mark.parametrize("durability", ["none", "process", "disk"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_removed_directory_is_noticed(tmp_path, durability, replaced):
    path = tmp_path / "store"
    store = Store.open(path, [queue()], durability=durability)
    put(store, 1)
    store.checkpoint()
    shutil.rmtree(path)
    if replaced:
        path.mkdir()
    text = removed_text(path, replaced=replaced)
    assert storage_problem(store) == text
    time.sleep(DETECTION_DELAY)
    if durability != "none":
        with pytest.raises(StorageError, match=rf"log-\d+ was removed or replaced{STORED_AGAIN}$"):
            put(store, 2)
    for _ in range(3):
        with raises(StorageError, text):
            store.checkpoint()
    # The store still serves from memory.
    expected = [1] if durability == "none" else [1, 2]
    assert store.sample("queue", len(expected)).data["n"].tolist() == expected
    if durability == "none":
        store.close()
    else:
        with pytest.raises(StorageError, match=r"log-\d+ was removed or replaced$"):
            store.close()
    if replaced:
        assert list(path.iterdir()) == []


@pytest.mark.parametrize("durability", ["none", "process", "disk"])
@pytest.mark.parametrize("pattern", ["log-*", "*"])
@pytest.mark.parametrize("changes_first", [False, True])
def test_the_checkpoint_after_logs_were_removed_stores_everything_again(tmp_path, durability, pattern, changes_first):
    path = tmp_path / "store"
    with Store.open(path, [queue()], durability=durability) as store:
        put(store, 1, 2)
        store.checkpoint()
        put(store, 3)
        store.checkpoint()
        put(store, 4)
        for each in path.glob(pattern):
            each.unlink()
        missing = rf"log-\d+(, log-\d+)* (was|were) removed or replaced{STORED_AGAIN}"
        assert re.fullmatch(rf"{re.escape(str(path))}: {missing}", storage_problem(store))
        if changes_first and durability != "none":
            time.sleep(DETECTION_DELAY)
            for number in (5, 6):
                with pytest.raises(StorageError, match=rf"^changes are not durable in .*store: {missing}$"):
                    put(store, number)
        else:
            with pytest.raises(StorageError, match=rf"/store: {missing}$"):
                store.checkpoint()
            put_while_logs_are_missing(store, durability, 5, 6)
        store.checkpoint()
        assert storage_problem(store) is None
        put(store, 7)
        store.checkpoint()
    assert values(path) == ([1, 2, 3, 4, 5, 6, 7], ())


def put_while_logs_are_missing(store, durability, *numbers):
    """Inserts while logs are missing: an item is in memory, but its insert fails if it must be durable."""
    for number in numbers:
        if durability == "none":
            put(store, number)
        else:
            with pytest.raises(StorageError, match=f"{STORED_AGAIN}$"):
                put(store, number)


def test_a_killed_store_whose_files_were_removed_opens_with_the_next_checkpoint_and_later_changes(tmp_path):
    """The test opens a copy of the running store's directory: the same files as a killed process leaves."""
    path = tmp_path / "store"
    with Store.open(path, [queue()]) as store:
        put(store, 1)
        for each in path.iterdir():
            each.unlink()
        with pytest.raises(StorageError):
            store.checkpoint()
        store.checkpoint()
        put(store, 2)
        assert values(path) == ([1, 2], ())


def test_a_lock_file_that_was_removed_is_created_again(tmp_path):
    path = tmp_path / "store"
    with Store.open(path, [queue()]) as store:
        (path / "LOCK").unlink()
        time.sleep(DETECTION_DELAY)
        put(store, 1)
        with pytest.raises(StorageError, match=r"is in use by this process \(since "):
            Store.open(path)
        (path / "LOCK").unlink()
        store.checkpoint()
        assert (path / "LOCK").exists()
    assert values(path) == ([1], ())


def test_nothing_is_written_after_another_store_has_opened_the_directory(tmp_path):
    path = tmp_path / "store"
    first = Store.open(path, [queue()])
    put(first, 1)
    (path / "LOCK").unlink()
    with Store.open(path, [queue()]) as second:
        put(second, 2)
        time.sleep(DETECTION_DELAY)
        reason = "its LOCK was replaced, so another process may have opened the directory; close the store"
        with raises(StorageError, f"changes cannot be written to {path}: {reason}"):
            put(first, 10)
        before = files(path)
        with raises(StorageError, f"{path}: {reason}"):
            first.checkpoint()
        assert storage_problem(first) == f"{path}: {reason}"
        assert files(path) == before
        with pytest.raises(StorageError, match="LOCK was replaced"):
            first.close()
    assert values(path) == ([1, 2], ())


def test_clients_receive_the_storage_problem(tmp_path):
    path, away = tmp_path / "store", tmp_path / "away"
    with Store.open(path, [queue()]) as store, Server(store) as server, Client(server.address) as client:
        assert client.info()["queue"].storage_problem is None
        path.rename(away)
        assert client.info()["queue"].storage_problem == moved_text(path, away)
        with raises(StorageError, moved_text(path, away)):
            client.checkpoint()
        away.rename(path)
        assert client.checkpoint().number == 1


# --- links, permissions, paths -------------------------------------------------------------------


@pytest.mark.parametrize("target", ["file", "missing"])
def test_a_symbolic_link_named_lock_is_not_followed(tmp_path, target):
    path, victim = tmp_path / "store", tmp_path / "victim"
    path.mkdir()
    if target == "file":
        victim.write_text("precious")
    (path / "LOCK").symlink_to(victim)
    with raises(StorageError, f"{path}/LOCK cannot be used: it is a symbolic link; a store uses only regular files"):
        Store.open(path, [queue()])
    assert (victim.read_text() == "precious") if target == "file" else not victim.exists()
    assert (path / "LOCK").is_symlink()


@pytest.mark.parametrize("name", ["log-0000000001", "checkpoint-0000000001"])
def test_links_pipes_and_sockets_with_the_name_of_a_file_are_rejected(tmp_path, monkeypatch, name):
    path = tmp_path / "store"
    with Store.open(path, [queue()]) as store:
        put(store, 1)
        store.checkpoint()
    if name.startswith("log"):
        name = min(each.name for each in path.glob("log-*"))
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    text = f"{path}: {name} cannot be read: it is a symbolic link; a store uses only regular files"
    for repair in (False, True):
        with raises(StorageError, text):
            Store.open(path, repair=repair)
    (path / name).unlink()
    monkeypatch.chdir(path)  # the path of a socket is bounded
    for create in (os.mkfifo, socket.socket(socket.AF_UNIX).bind):
        create(name)
        with raises(StorageError, text.replace("symbolic link", "pipe, socket or device")):
            Store.open(path)
        (path / name).unlink()
    (tmp_path / "elsewhere").rename(path / name)
    assert values(path) == ([1], ())


def test_a_link_with_the_name_of_a_new_file_is_replaced(tmp_path):
    path, victim = tmp_path / "store", tmp_path / "victim"
    victim.write_text("precious")
    with Store.open(path, [queue()]) as store:
        for number in range(1, 9):
            for name in (f"log-{number:010}.tmp", f"checkpoint-{number:010}.tmp"):
                (path / name).symlink_to(victim)
        (path / "CLOSED").symlink_to(victim)
        put(store, 1)
        store.checkpoint()
    assert victim.read_text() == "precious"
    assert values(path) == ([1], ())


def test_a_directory_may_be_reached_over_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Store.open(tmp_path / "link" / "store", [queue()]) as store:
        put(store, 1)
        store.checkpoint()
        assert storage_problem(store) is None
    assert values(tmp_path / "real" / "store") == ([1], ())


def test_only_the_owner_has_permissions_for_a_store(tmp_path):
    path = tmp_path / "some" / "store"
    previous = os.umask(0o022)
    try:
        with Store.open(path, [queue()]) as store:
            put(store, 1)
            store.checkpoint()
    finally:
        os.umask(previous)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert {"LOCK", "CLOSED", "checkpoint-0000000001"} < set(modes)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


def test_an_empty_path_is_rejected_but_a_dot_is_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '`path` must not be empty; use "." for the working directory'
    with Store([]) as store:
        for call in (Store.open, store.restore):
            with raises(InvalidArgumentError, text):
                call("")
    assert not list(tmp_path.iterdir())
    with Store.open(".", [queue()]) as store:
        put(store, 1)
        store.checkpoint()
    assert (tmp_path / "CLOSED").exists()
