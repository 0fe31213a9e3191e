"""`engram inspect`: directories that are whole, damaged, or no store's at all."""

import dataclasses
import json
import os
import re

import numpy as np
import pytest
from damage import (
    CHANGES,
    CHUNK,
    FILE_HEAD,
    RECORD_HEAD,
    TABLE,
    body_length,
    flip,
    places,
    records,
    set_byte,
    set_version,
)
from support import raises

import engram
from engram import Store, Table, selectors
from engram.cli.inspect import _age
from engram.errors import StorageError

FIRST, SECOND = "checkpoint-0000000001", "checkpoint-0000000002"
LOG_1, LOG_2, LOG_4 = (f"log-{number:010}" for number in (1, 2, 4))

UNREAD = "which a store does not read"


def fill(store, table, count, noise=1_000):
    for _ in range(count):
        store.insert({"x": np.frombuffer(os.urandom(noise), np.uint8)}, {table: 1.0})


@pytest.fixture
def path(tmp_path):
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


def contents(path):
    """All that a directory holds."""
    return {
        each.name: (each.lstat().st_mtime_ns, each.read_bytes() if each.is_file() else None) for each in path.iterdir()
    }


def file(found, name):
    """What is said of a file."""
    return next(each for each in found["files"] if each["name"] == name)


def sizes(found):
    """Items that each table would begin with."""
    return {table["name"]: table["items"] for table in found["opening"]["tables"]}


def opened(path):
    """The same, once a store has opened the directory."""
    with Store.open(path) as store:
        return {name: info.size for name, info in store.info().items()}


def test_a_whole_directory(inspect, path):
    status, text, found = inspect(path)
    assert status == 0
    lines = [line.split() for line in text.splitlines()]
    assert re.fullmatch(r"store [0-9a-f]{16}, 5 files of \d\.\d KiB: nothing is damaged or lost", text.splitlines()[0])
    assert re.match(r"opened now, it begins with checkpoint 2 and replays 3 changes; it is \d", text.splitlines()[1])
    assert lines[2:5] == [
        ["table", "items", "bytes", "last", "change"],
        ["a", "9", "4.0", "KiB", "15"],
        ["b", "4", "1.8", "KiB", "12"],
    ]
    assert lines[5] == ["checkpoint", "age", "chunks", "bytes", "of", "chunks", "state", "items"]
    assert re.fullmatch(r"1 +\d+ seconds? +6 +912 B +verified +a 6, b 0 *", text.splitlines()[6])
    assert re.fullmatch(r"2 +\d+ seconds? +10 +1\.5 KiB +verified +a 6, b 4 *", text.splitlines()[7])
    assert lines[8] == ["file", "bytes", "records", "changes", "state"]
    changes = {LOG_1: ["8"], LOG_2: ["4"], LOG_4: ["3"]}
    for line, name in zip(lines[9:], (FIRST, SECOND, LOG_1, LOG_2, LOG_4), strict=True):
        assert (line[0], line[4:]) == (name, [*changes.get(name, []), "whole"])
        told, records_there = file(found, name), records(path / name)
        assert (told["bytes"], told["records"]) == ((path / name).stat().st_size, len(records_there))
    assert [file(found, name)["first_change"] for name in (LOG_1, LOG_2, LOG_4)] == [1, 9, 13]
    assert [each["first_change"] for each in found["checkpoints"]] == [9, 13]
    assert found["opening"]["tables"][0] == {"name": "a", "items": 9, "bytes": 4104, "last_change": 15}
    assert sizes(found) == opened(path)


def test_json_is_what_the_library_says(inspect, path):
    (path / "notes.txt").touch()
    _, _, found = inspect(path)
    said = engram.inspect_directory(path)
    assert isinstance(said, engram.Inspection)
    assert (said.ok, said.path, f"{said.store:016x}") == (found.pop("ok"), str(path), found.pop("store"))
    expected = json.loads(json.dumps(dataclasses.asdict(said)))
    del expected["store"]
    for ages in (expected["opening"], found["opening"]):
        assert 0 < ages.pop("age") < 60
    assert found == expected
    assert (said.others, said.in_use) == (("notes.txt",), None)


def test_a_store_that_is_open(inspect, path):
    with Store.open(path) as store:
        fill(store, "b", 1)
        status, text, found = inspect(path)
        who = rf"process {os.getpid()}, since \d+ s after 1970"
        assert re.fullmatch(who, found["in_use"])
        assert re.search(
            rf"^store \w+, 6 files of .*, in use by {who}: nothing is damaged or lost$", text, re.MULTILINE
        )
        assert (status, sizes(found)) == (0, {"a": 9, "b": 5})
        # Nobody takes it from its process.
        fill(store, "b", 1)
    assert opened(path) == {"a": 9, "b": 6}


def test_a_directory_without_checkpoints(inspect, tmp_path):
    with Store.open(tmp_path, [Table("only", max_size=5, sampler=selectors.Prioritized(1.0))]) as store:
        fill(store, "only", 7)
    status, text, found = inspect(tmp_path)
    assert status == 0
    assert "\nopened now, it replays " in text
    assert "verified" not in text
    assert (found["opening"]["checkpoint"], found["opening"]["changes"]) == (None, file(found, LOG_1)["changes"])
    assert sizes(found) == {"only": 5} == opened(tmp_path)


def test_no_store(inspect, run, tmp_path):
    status, text, found = inspect(tmp_path)
    assert (status, text) == (0, "no store here\n")
    assert (found["store"], found["files"], found["opening"]["tables"]) == (None, [], [])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "log-7").mkdir()
    assert inspect(tmp_path)[:2] == (0, "no store here\nnot ours: log-7, notes.txt\n")
    for missing, text in (
        (tmp_path / "none", f"there is no directory {tmp_path / 'none'}"),
        (tmp_path / "notes.txt", f"{tmp_path / 'notes.txt'} is a file; a store lives in a directory"),
    ):
        result = run("inspect", missing, "--json")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {text}\n")
        with raises(StorageError, text):
            engram.inspect_directory(missing)
    assert {each.name for each in tmp_path.iterdir()} == {"log-7", "notes.txt"}


def test_damage_within_the_newest_log(inspect, path):
    place = places(path / LOG_4, CHANGES)[0]
    flip(path / LOG_4, place + RECORD_HEAD)
    status, text, found = inspect(path)
    why = f"the checksum of its {body_length(path / LOG_4, place)} bytes does not fit"
    assert found["problems"] == [
        f"{LOG_4} is damaged at byte {place}: {why}; 4 whole records with 2 changes follow, {UNREAD}"
    ]
    assert status == 1
    assert re.search(r"^store \w+, 5 files of 6.6 KiB: 1 problem$", text, re.MULTILINE)
    assert re.search(rf"^{LOG_4} .* 3 +0 +damaged at byte {place}$", text, re.MULTILINE)
    told = file(found, LOG_4)
    assert (told["state"], told["place"], told["why"]) == ("damaged", place, why)
    assert (told["records"], told["records_after"], told["changes_after"]) == (3, 4, 2)
    assert sizes(found) == {"a": 6, "b": 4} == opened(path)


def test_damage_in_several_places_and_in_heads(inspect, path):
    first, second, third = places(path / LOG_4, CHANGES)
    for place in (first, second):
        flip(path / LOG_4, place + 8)  # its length
    why = "the checksum of a record's head does not fit"
    _, _, found = inspect(path)
    assert found["problems"] == [
        f"{LOG_4} is damaged at byte {first}: {why}; 3 whole records with 1 change follow, {UNREAD}"
    ]
    flip(path / LOG_4, third)
    flip(path / LOG_4, places(path / LOG_2, CHUNK)[1] + RECORD_HEAD)
    _, _, found = inspect(path)
    assert found["problems"][0].endswith("; 1 whole record follows, " + UNREAD)


def test_the_newest_log_ends_within_a_record(inspect, path):
    place = places(path / LOG_4, CHANGES)[-1]
    os.truncate(path / LOG_4, place + RECORD_HEAD + 9)
    status, text, found = inspect(path)
    assert (status, found["problems"]) == (0, [])
    length = body_length(path / LOG_4, place)
    why = f"it says it has {length} bytes; the file has 9 more"
    assert found["notes"] == [f"{LOG_4} ends at byte {place}: {why}; 33 bytes follow, which nobody was told of"]
    assert re.search(rf"^{LOG_4} .* 2 +torn at byte {place}$", text, re.MULTILINE)
    assert sizes(found) == {"a": 8, "b": 4} == opened(path)


def test_an_older_log_ends_within_a_record(inspect, path):
    """Its changes are in a checkpoint, but other logs do not go on where it ends."""
    place = places(path / LOG_2, CHANGES)[-1]
    os.truncate(path / LOG_2, place + 1)
    status, _, found = inspect(path)
    why = "1 bytes are left; a record's head alone takes 24"
    assert found["problems"] == [f"{LOG_2} is damaged at byte {place}: {why}"]
    assert (status, sizes(found)) == (1, {"a": 9, "b": 4})


def test_a_log_that_was_torn_before_the_next_began(inspect, path):
    with (path / LOG_2).open("ab") as log:
        log.write(bytes(100))
    status, text, found = inspect(path)
    assert (status, file(found, LOG_2)["state"]) == (0, "torn")
    assert re.search(rf"^{LOG_2} .* 4 +torn at byte 1,112$", text, re.MULTILINE)


def test_damage_to_chunks_of_the_newest_checkpoint(inspect, path):
    """The one before needs no chunk of log-2, but all of its changes."""
    place = places(path / LOG_2, CHUNK)[1]
    flip(path / LOG_2, place + RECORD_HEAD)
    status, text, found = inspect(path)
    refused = f"{path}: changes 10 to 12 are missing before {LOG_4}"
    torn = f"{LOG_2} ends at byte {place}: the checksum of its 125 bytes does not fit"
    assert status == 1
    assert found["opening"] is None
    assert found["problems"][0].startswith(f"no store can be opened here: {refused} ({torn}; ")
    assert found["problems"][1].startswith(
        f"{LOG_2} is damaged at byte {place}: the checksum of its 125 bytes does not"
    )
    assert found["problems"][2:] == [f"{SECOND} cannot be used: 3 of 10 chunks that its items refer to are missing"]
    assert [each["missing_chunks"] for each in found["checkpoints"]] == [0, 3]
    assert [each["chunk_bytes"] for each in found["checkpoints"]] == [6 * 152, 7 * 152]
    assert re.search(r"^2 .* cannot be used +a 6, b 4 *$", text, re.MULTILINE)
    assert "opened now" not in text
    with pytest.raises(StorageError, match=re.escape(refused)):
        opened(path)


def test_damage_to_the_newest_checkpoint(inspect, path):
    place = records(path / SECOND)[3][0]
    flip(path / SECOND, place + RECORD_HEAD)
    status, text, found = inspect(path)
    why = f"the checksum of its {body_length(path / SECOND, place)} bytes does not fit"
    assert found["problems"] == [f"{SECOND} is damaged at byte {place}: {why}; 5 whole records follow, {UNREAD}"]
    assert found["notes"] == [f"{SECOND} is not used: it is damaged at byte {place}: {why}"]
    assert status == 1
    assert "\nopened now, it begins with checkpoint 1 and replays 7 changes; " in text
    assert found["checkpoints"][1]["made"] is not None
    assert sizes(found) == {"a": 9, "b": 4} == opened(path)


def test_a_checkpoint_without_its_end(inspect, path):
    os.truncate(path / SECOND, records(path / SECOND)[-1][0])
    status, _, found = inspect(path)
    assert (status, file(found, SECOND)["state"]) == (1, "whole")
    assert found["problems"] == [f"{SECOND} cannot be used: it was not finished"]


def test_a_checkpoint_that_passes_and_makes_no_sense(inspect, path):
    set_byte(path / SECOND, places(path / SECOND, TABLE)[0], 27, 9)  # the first table's sampler
    status, _, found = inspect(path)
    why = "a selector is of kind 9; 0 to 5 are known"
    assert found["notes"] == [f"{SECOND} is not used: {why}"]
    assert found["problems"] == [f"{SECOND} cannot be used: {why}"]
    assert (status, found["opening"]["checkpoint"]) == (1, 1)


def test_a_log_that_is_gone(inspect, path):
    (path / LOG_1).unlink()
    status, _, found = inspect(path)
    missing = f"cannot be used: {LOG_1}, which it needs, is missing"
    assert status == 1
    why = f"is not used: {LOG_1} cannot be read: No such file or directory (os error 2)"
    refused = f"{path}: none of 2 checkpoints can be used: {SECOND} {why}; {FIRST} {why}"
    assert found["problems"] == [
        f"no store can be opened here: {refused}",
        f"{FIRST} {missing}; 6 of 6 chunks that its items refer to are missing",
        f"{SECOND} {missing}; 6 of 10 chunks that its items refer to are missing",
    ]


def test_the_log_that_replay_begins_with_is_gone(inspect, path):
    (path / LOG_4).unlink()
    _, _, found = inspect(path)
    assert found["problems"] == [
        f"no store can be opened here: {path}: {LOG_4} is missing",
        f"{SECOND} cannot be used: {LOG_4}, which it needs, is missing",
    ]


@pytest.mark.parametrize("checkpoints", [True, False])
def test_changes_that_are_missing_in_between(inspect, tmp_path, checkpoints):
    for _ in range(3):
        with Store.open(tmp_path, [Table("t", max_size=100)]) as store:
            fill(store, "t", 5)
            if checkpoints and not (tmp_path / FIRST).exists():
                store.checkpoint()
    gone = sorted(tmp_path.glob("log-*"))[-2]
    gone.unlink()
    _, _, found = inspect(tmp_path)
    last = max(tmp_path.glob("log-*")).name
    assert found["problems"] == [
        f"no store can be opened here: {tmp_path}: changes 7 to 11 are missing before {last}",
    ]


def test_a_head_that_is_damaged(inspect, path):
    flip(path / LOG_4, 33)
    why = "its first 48 bytes are damaged"
    status, _, found = inspect(path)
    assert found["problems"][1:] == [
        f"{LOG_4} is damaged at byte 0: {why}; 8 whole records with 3 changes follow, {UNREAD}",
        f"{FIRST} cannot be used: {LOG_4}, which it needs, cannot be used",
        f"{SECOND} cannot be used: {LOG_4}, which it needs, cannot be used",
    ]
    assert status == 1
    os.truncate(path / LOG_4, 0)
    _, _, found = inspect(path)
    assert found["problems"][1] == f"{LOG_4} is damaged at byte 0: it has 0 bytes; its head alone takes {FILE_HEAD}"


def test_another_version(inspect, path):
    set_version(path / FIRST, 2)
    status, text, found = inspect(path)
    other = "it is of format version 2; this release reads version 1"
    assert found["problems"] == [f"{FIRST} cannot be used: {other}"]
    assert (status, file(found, FIRST)["why"], found["checkpoints"][0]["problem"]) == (1, other, other)
    assert re.search(rf"^{FIRST} .* 0 +unusable$", text, re.MULTILINE)
    set_version(path / SECOND, 7)
    _, _, found = inspect(path)
    refused = f"{path}: {SECOND} is of format version 7; this release reads version 1"
    assert found["problems"][0] == f"no store can be opened here: {refused}"


def test_files_of_other_stores_under_our_names(inspect, path, tmp_path):
    with Store.open(tmp_path / "other", [Table("t", max_size=1)]) as store:
        store.checkpoint()
    (tmp_path / "other" / FIRST).replace(path / FIRST)
    (path / LOG_2).write_bytes((path / LOG_1).read_bytes())
    chunks = "4 of 10 chunks that its items refer to are missing"
    _, _, found = inspect(path)
    assert found["problems"][1:] == [
        f"{FIRST} cannot be used: it is of another store",
        f"{LOG_2} cannot be used: it is another file under its name",
        f"{SECOND} cannot be used: {LOG_2}, which it needs, cannot be used; {chunks}",
    ]


def test_what_was_never_finished(inspect, path):
    (path / f"{LOG_4}.tmp").write_bytes(b"ENGRAM")
    status, text, found = inspect(path)
    assert status == 0
    assert re.search(rf"^{LOG_4}\.tmp +6 B +0 +unfinished$", text, re.MULTILINE)
    assert opened(path) == sizes(found)
    assert not (path / f"{LOG_4}.tmp").exists()


def test_a_file_that_cannot_be_read(inspect, path):
    (path / LOG_4).unlink()
    (path / LOG_4).mkdir()
    _, _, found = inspect(path)
    assert found["problems"][1] == f"{LOG_4} cannot be used: it cannot be read: Is a directory (os error 21)"


def test_a_lock_that_cannot_be_read(inspect, path):
    (path / "LOCK").unlink()
    (path / "LOCK").symlink_to("LOCK")
    status, _, found = inspect(path)
    assert (status, found["in_use"]) == (0, None)
    why = "Too many levels of symbolic links (os error 40)"
    unknown = "whether somebody has the directory open is not known"
    assert found["notes"] == [f"LOCK cannot be looked at: {why}; {unknown}"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (120, "2 minutes"), (7200, "2 hours"), (1e6, "11 days")],
)
def test_ages(seconds, text):
    assert _age(seconds) == text
