"""`engram inspect`: undamaged directories, and paths without a store."""

import dataclasses
import json
import os
import re
import threading

import pytest
from helpers.directories import FIRST, LOG_1, LOG_2, LOG_4, SECOND, file_report, fill, sizes, sizes_after_opening
from helpers.records import records
from helpers.support import BackgroundCall, raises

import engram
from engram import Store, Table, selectors
from engram.cli.inspect import _age
from engram.errors import StorageError


def test_the_report_of_an_undamaged_directory_matches_its_files(inspect, directory):
    status, text, report = inspect(directory)
    assert status == 0
    lines = [line.split() for line in text.splitlines()]
    assert re.fullmatch(r"store [0-9a-f]{16}, 5 files of \d+\.\d KiB: nothing is damaged or lost", text.splitlines()[0])
    assert re.match(
        r"opening this directory loads checkpoint 2 and replays 3 changes; the store is \d", text.splitlines()[1]
    )
    assert lines[2:5] == [
        ["table", "items", "bytes", "last", "change"],
        ["a", "9", "12.4", "KiB", "15"],
        ["b", "4", "5.5", "KiB", "12"],
    ]
    assert lines[5] == ["checkpoint", "age", "chunks", "bytes", "of", "chunks", "state", "items"]
    assert re.fullmatch(r"1 +\d+ seconds? +6 +6\.5 KiB +verified +a 6, b 0 *", text.splitlines()[6])
    assert re.fullmatch(r"2 +\d+ seconds? +10 +10\.9 KiB +verified +a 6, b 4 *", text.splitlines()[7])
    assert lines[8] == ["file", "bytes", "records", "changes", "state"]
    changes = {LOG_1: ["8"], LOG_2: ["4"], LOG_4: ["3"]}
    for line, name in zip(lines[9:], (FIRST, SECOND, LOG_1, LOG_2, LOG_4), strict=True):
        assert (line[0], line[4:]) == (name, [*changes.get(name, []), "whole"])
        entry, expected_records = file_report(report, name), records(directory / name)
        assert (entry["bytes"], entry["records"]) == ((directory / name).stat().st_size, len(expected_records))
    assert [file_report(report, name)["first_change"] for name in (LOG_1, LOG_2, LOG_4)] == [1, 9, 13]
    assert [each["first_change"] for each in report["checkpoints"]] == [9, 13]
    with Store.open(directory) as store:
        infos = store.info()
    assert report["opening"]["tables"] == [
        {"name": name, "items": infos[name].size, "bytes": infos[name].bytes, "last_change": last}
        for name, last in (("a", 15), ("b", 12))
    ]


def test_json_has_the_values_of_the_library(inspect, directory):
    (directory / "notes.txt").touch()
    _, _, report = inspect(directory)
    inspection = engram.inspect_directory(directory)
    assert isinstance(inspection, engram.inspection.Inspection)
    assert (inspection.ok, inspection.path, f"{inspection.store:016x}") == (
        report.pop("ok"),
        str(directory),
        report.pop("store"),
    )
    expected = json.loads(json.dumps(dataclasses.asdict(inspection)))
    del expected["store"]
    for ages in (expected["opening"], report["opening"]):
        assert 0 < ages.pop("age") < 60
    assert report == expected
    assert (inspection.other_files, inspection.in_use) == (("notes.txt",), None)


def test_an_open_store_can_be_inspected_and_is_reported_as_in_use(inspect, directory):
    with Store.open(directory) as store:
        fill(store, "b", 1)
        status, text, report = inspect(directory)
        user = rf"process {os.getpid()} since \S+ \S+ UTC"
        assert re.fullmatch(user, report["in_use"])
        assert re.search(
            rf"^store \w+, 6 files of .*, in use by {user}: nothing is damaged or lost$", text, re.MULTILINE
        )
        assert (status, sizes(report)) == (0, {"a": 9, "b": 5})
        # The store is still usable.
        fill(store, "b", 1)
    assert sizes_after_opening(directory) == {"a": 9, "b": 6}


def test_a_store_that_writes_during_the_inspection_is_not_reported_as_damaged(directory):
    """Logs grow, and checkpoints and logs are created and removed, while the inspection reads others."""
    with Store.open(directory) as store:
        done = threading.Event()

        def write():
            while not done.is_set():
                fill(store, "a", 50)
                store.checkpoint()

        writer = BackgroundCall(write)
        for _ in range(50):
            report = engram.inspect_directory(directory)
            assert report.ok, report
        done.set()
        writer.result()


def test_a_directory_without_checkpoints_replays_its_log(inspect, tmp_path):
    with Store.open(tmp_path, [Table("only", max_size=5, sampler=selectors.Prioritized(1.0))]) as store:
        fill(store, "only", 7)
    status, text, report = inspect(tmp_path)
    assert status == 0
    assert f"\nopening this directory replays {file_report(report, LOG_1)['changes']} changes; the store is " in text
    assert "verified" not in text
    opening = report["opening"]
    assert (opening["checkpoint"], opening["changes"]) == (None, file_report(report, LOG_1)["changes"])
    assert sizes(report) == {"only": 5} == sizes_after_opening(tmp_path)


def test_a_path_without_a_store_is_an_error(run, tmp_path):
    (tmp_path / "empty").mkdir()
    inspection = engram.inspect_directory(tmp_path / "empty")
    assert (inspection.ok, inspection.store, inspection.files, inspection.opening.tables) == (True, None, (), ())
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "log-7").mkdir()
    for path in (tmp_path, tmp_path / "empty"):
        for options in ((), ("--json",)):
            result = run("inspect", path, *options)
            text = f"error: {path} has no store: it has neither logs nor checkpoints; give the directory of a store\n"
            assert (result.exit_code, result.stdout, result.stderr) == (1, "", text)
    for missing, text in (
        (tmp_path / "none", f"{tmp_path / 'none'} does not exist; give the directory of a store"),
        (tmp_path / "notes.txt", f"{tmp_path / 'notes.txt'} is a file; a store is a directory"),
    ):
        result = run("inspect", missing, "--json")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {text}\n")
        with raises(StorageError, text):
            engram.inspect_directory(missing)
    assert {each.name for each in tmp_path.iterdir()} == {"empty", "log-7", "notes.txt"}


def test_a_log_with_chunks_only_is_whole_until_a_chunk_is_cut_off(inspect, tmp_path):
    """With durability "none", one log has the chunks that the checkpoint needs, and no log has changes."""
    with Store.open(tmp_path, [Table("t", max_size=100)], durability="none") as store:
        fill(store, "t", 5)
        store.checkpoint()
    status, text, report = inspect(tmp_path)
    logs = (each for each in report["files"] if each["name"].startswith("log-"))
    (log,) = (each for each in logs if len(records(tmp_path / each["name"])) > 1)
    assert (status, log["first_change"], log["changes"]) == (0, None, 0)
    assert re.search(rf"^{log['name']} .* KiB +7 +whole *$", text, re.MULTILINE)
    with (tmp_path / log["name"]).open("r+b") as file:
        file.truncate(log["bytes"] - 1)
    status, _, report = inspect(tmp_path)
    missing = "1 of 5 chunks that its items refer to is missing"
    assert (status, report["problems"][1:]) == (1, [f"{FIRST} cannot be used: {missing}"])


def test_unfinished_files_are_listed_and_opening_removes_them(inspect, directory):
    (directory / f"{LOG_4}.tmp").write_bytes(b"ENGRAM")
    status, text, report = inspect(directory)
    assert status == 0
    assert re.search(rf"^{LOG_4}\.tmp +6 B +0 +unfinished$", text, re.MULTILINE)
    assert sizes_after_opening(directory) == sizes(report)
    assert not (directory / f"{LOG_4}.tmp").exists()


def test_an_unreadable_lock_file_is_noted(inspect, directory):
    (directory / "LOCK").unlink()
    (directory / "LOCK").symlink_to("LOCK")
    status, _, report = inspect(directory)
    assert (status, report["in_use"]) == (0, None)
    reason = "it is a symbolic link; a store uses only regular files"
    unknown = "it is unknown whether a process has the directory open"
    assert report["notes"] == [f"LOCK cannot be read: {reason}; {unknown}"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (120, "2 minutes"), (7200, "2 hours"), (1e6, "11 days")],
)
def test_ages_are_rounded_down(seconds, text):
    assert _age(seconds) == text
