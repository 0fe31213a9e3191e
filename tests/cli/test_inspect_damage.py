"""`engram inspect`: damage, its position, and the data that is lost."""

import errno
import os
import re

import pytest
from helpers.directories import FIRST, LOG_1, LOG_2, LOG_4, SECOND, file_report, fill, sizes, sizes_after_opening
from helpers.records import FILE_HEAD, Head, cut, flip, records, replace

from engram import Store, Table
from engram.errors import StorageError

UNREAD = "which recovery does not read"


def records_of(path, kind):
    """Returns the records of a kind."""
    return [record for record in records(path) if record.kind == kind]


def test_a_damaged_record_of_the_newest_log_hides_the_later_ones(inspect, directory):
    record = records_of(directory / LOG_4, "changes")[0]
    offset, reason = record.offset, f"the checksum of the record's {len(record.body)} bytes is wrong"
    flip(directory / LOG_4, record.body_offset)
    status, text, report = inspect(directory)
    assert report["problems"] == [
        f"{LOG_4} is damaged at byte {offset}: {reason}; 4 intact records with 2 changes follow, {UNREAD}"
    ]
    assert status == 1
    assert re.search(r"^store \w+, 5 files of [0-9.]+ KiB: 1 problem$", text, re.MULTILINE)
    assert re.search(rf"^{LOG_4} .* 4 +0 +damaged at byte {offset:,}$", text, re.MULTILINE)
    entry = file_report(report, LOG_4)
    assert (entry["state"], entry["offset"], entry["reason"]) == ("damaged", offset, reason)
    assert (entry["records"], entry["records_after"], entry["changes_after"]) == (4, 4, 2)
    assert sizes(report) == {"a": 6, "b": 4} == sizes_after_opening(directory)


def test_intact_records_after_several_damaged_ones_are_counted(inspect, directory):
    first, second, third = (record.offset for record in records_of(directory / LOG_4, "changes"))
    chunk = records_of(directory / LOG_4, "chunk")[1]
    for offset in (first, second):
        flip(directory / LOG_4, offset + 8)  # its length
    reason = "the checksum of the record's header is wrong"
    _, _, report = inspect(directory)
    assert report["problems"] == [
        f"{LOG_4} is damaged at byte {first}: {reason}; 3 intact records with 1 change follow, {UNREAD}"
    ]
    flip(directory / LOG_4, third)
    flip(directory / LOG_4, chunk.body_offset)
    _, _, report = inspect(directory)
    assert report["problems"][0].endswith("; 1 intact record follows, " + UNREAD)


def test_a_torn_tail_of_the_newest_log_is_only_noted(inspect, directory):
    (directory / "CLOSED").unlink()  # the process was killed
    record = records_of(directory / LOG_4, "changes")[-1]
    size, offset = len(record.body), record.offset
    reason = f"the record's length is {size} bytes, padded to a multiple of 8, but the file has only 9 more"
    cut(directory / LOG_4, record.body_offset + 9)
    status, text, report = inspect(directory)
    assert (status, report["problems"]) == (0, [])
    assert report["notes"] == [
        (
            f"{LOG_4} is intact only up to byte {offset}: {reason}; the rest (33 bytes) is not used: if the process "
            "was stopped while it wrote this, nothing acknowledged is lost; after a power failure with "
            'durability="process", or if the file was damaged later, acknowledged changes may be lost'
        )
    ]
    assert re.search(rf"^{LOG_4} .* 2 +torn at byte {offset:,}$", text, re.MULTILINE)
    assert sizes(report) == {"a": 8, "b": 4} == sizes_after_opening(directory)


def test_an_older_log_that_ends_within_a_record_is_damaged(inspect, directory):
    """No change is lost, as the checkpoint has them. But the next log does not continue where this one ends."""
    offset = records_of(directory / LOG_2, "changes")[-1].offset
    cut(directory / LOG_2, offset + 1)
    status, _, report = inspect(directory)
    reason = "expected a record header of 24 bytes, found 1 byte"
    assert report["problems"] == [f"{LOG_2} is damaged at byte {offset}: {reason}"]
    assert (status, sizes(report)) == (1, {"a": 9, "b": 4})


def test_a_torn_tail_after_all_changes_of_an_older_log_is_no_problem(inspect, directory):
    size = (directory / LOG_2).stat().st_size
    with (directory / LOG_2).open("ab") as log:
        log.write(bytes(100))
    status, text, report = inspect(directory)
    assert (status, file_report(report, LOG_2)["state"]) == (0, "torn")
    assert re.search(rf"^{LOG_2} .* 4 +torn at byte {size:,}$", text, re.MULTILINE)


def test_checkpoints_that_need_damaged_chunks_cannot_be_used(inspect, directory):
    """The older checkpoint needs no chunk of log-2, but opening from it replays the changes in log-2."""
    chunk = records_of(directory / LOG_2, "chunk")[1]
    flip(directory / LOG_2, chunk.body_offset)
    status, text, report = inspect(directory)
    refusal = f"{directory}: changes 10 to 12 are missing before {LOG_4}"
    damage = f"the checksum of the record's {len(chunk.body)} bytes is wrong"
    assert status == 1
    assert report["problems"][0].startswith(
        f"the store cannot be opened without repair: {refusal} ({LOG_2} is intact only "
    )
    assert report["problems"][1].startswith(
        f"{LOG_2} is damaged at byte {chunk.offset}: {damage}; 5 intact records with 3 changes "
    )
    assert report["problems"][2:] == [f"{SECOND} cannot be used: 3 of 10 chunks that its items refer to are missing"]
    assert [each["missing_chunks"] for each in report["checkpoints"]] == [0, 3]
    size = chunk.end - chunk.offset
    assert [each["chunk_bytes"] for each in report["checkpoints"]] == [6 * size, 7 * size]
    assert re.search(r"^2 .* cannot be used +a 6, b 4 *$", text, re.MULTILINE)
    with pytest.raises(StorageError, match=re.escape(refusal)):
        sizes_after_opening(directory)


def test_the_report_predicts_the_result_of_a_repair(inspect, directory):
    (directory / LOG_1).unlink()
    status, text, report = inspect(directory)
    assert "\nopening this directory with repair loads checkpoint 2 and replays 3 changes; the store is " in text
    reason = f"it needs {LOG_1}, which cannot be read: {os.strerror(errno.ENOENT)}"
    assert report["refusal"] == f"{directory}: none of 2 checkpoints can be used: {SECOND}: {reason}; {FIRST}: {reason}"
    missing = f"cannot be used: it needs {LOG_1}, which is missing"
    assert report["problems"] == [
        f"the store cannot be opened without repair: {report['refusal']}",
        f"{FIRST} {missing}; 6 of 6 chunks that its items refer to are missing",
        f"{SECOND} {missing}; 6 of 10 chunks that its items refer to are missing",
    ]
    assert report["notes"][-1] == "table `a` has lost 6 items, whose chunks are missing"
    assert (status, report["opening"]["repaired"]) == (1, True)
    assert sizes(report) == {"a": 3, "b": 4} == sizes_after_opening(directory, repair=True)
    status, text, report_after_repair = inspect(directory)
    assert (status, sizes(report_after_repair), report_after_repair["store"]) == (0, sizes(report), report["store"])
    assert re.search(rf"^{FIRST}\.lost .* 0 +set aside$", text, re.MULTILINE)


def test_without_the_damaged_newest_checkpoint_the_older_one_is_loaded(inspect, directory):
    record = records_of(directory / SECOND, "items")[0]
    offset, reason = record.offset, f"the checksum of the record's {len(record.body)} bytes is wrong"
    flip(directory / SECOND, record.body_offset)
    status, text, report = inspect(directory)
    assert report["problems"] == [f"{SECOND} is damaged at byte {offset}: {reason}; 5 intact records follow, {UNREAD}"]
    assert report["notes"] == [f"{SECOND} is not used: it is damaged at byte {offset}: {reason}"]
    assert status == 1
    assert "\nopening this directory loads checkpoint 1 and replays 7 changes; the store is " in text
    assert report["checkpoints"][1]["created"] is not None
    assert sizes(report) == {"a": 9, "b": 4} == sizes_after_opening(directory)


def test_an_incomplete_checkpoint_cannot_be_used(inspect, directory):
    cut(directory / SECOND, records(directory / SECOND)[-1].offset)
    status, _, report = inspect(directory)
    assert (status, file_report(report, SECOND)["state"]) == (1, "whole")
    assert report["problems"] == [f"{SECOND} cannot be used: it is incomplete"]


def test_a_checkpoint_with_valid_checksums_and_invalid_values_cannot_be_used(inspect, directory):
    table = records_of(directory / SECOND, "table")[0]
    sampler = 27  # offset of its kind in the body
    replace(directory / SECOND, table._replace(body=table.body[:sampler] + b"\x09" + table.body[sampler + 1 :]))
    status, _, report = inspect(directory)
    reason = f"it has a record at byte {table.offset} that cannot be used: unknown selector kind 9, expected 0 to 5"
    assert report["notes"] == [f"{SECOND} is not used: {reason}"]
    assert report["problems"] == [f"{SECOND} cannot be used: {reason}"]
    assert (status, report["opening"]["checkpoint"]) == (1, 1)


def test_a_missing_log_of_the_newest_checkpoint_is_reported(inspect, directory):
    (directory / LOG_4).unlink()
    _, _, report = inspect(directory)
    assert report["problems"] == [
        f"the store cannot be opened without repair: {directory}: {LOG_4} is missing",
        f"{LOG_4} cannot be used: it is missing, but was there when the store was closed",
        f"{SECOND} cannot be used: it needs {LOG_4}, which is missing",
    ]


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_missing_log_between_two_others_is_reported(inspect, tmp_path, checkpoints):
    for _ in range(3):
        with Store.open(tmp_path, [Table("t", max_size=100)]) as store:
            fill(store, "t", 5)
            if checkpoints and not (tmp_path / FIRST).exists():
                store.checkpoint()
    missing_log = sorted(tmp_path.glob("log-*"))[-2]
    missing_log.unlink()
    _, _, report = inspect(tmp_path)
    last = max(tmp_path.glob("log-*")).name
    assert report["problems"] == [
        f"the store cannot be opened without repair: {tmp_path}: changes 7 to 11 are missing before {last}",
    ]


def test_a_damaged_file_header_is_reported(inspect, directory):
    flip(directory / LOG_4, 33)
    reason = "its file header (the first 48 bytes) is damaged"
    status, _, report = inspect(directory)
    assert report["problems"][1:] == [
        f"{LOG_4} is damaged at byte 0: {reason}; 9 intact records with 3 changes follow, {UNREAD}",
        f"{FIRST} cannot be used: it needs {LOG_4}, which cannot be used",
        f"{SECOND} cannot be used: it needs {LOG_4}, which cannot be used",
    ]
    assert status == 1
    cut(directory / LOG_4, 0)
    _, _, report = inspect(directory)
    assert (
        report["problems"][1]
        == f"{LOG_4} is damaged at byte 0: it has 0 bytes, fewer than a file header ({FILE_HEAD} bytes)"
    )


def test_files_of_a_newer_version_are_reported_as_unusable(inspect, directory):
    Head.of(directory / FIRST)._replace(version=2).write(directory / FIRST)
    status, text, report = inspect(directory)
    reason = "it has format version 2, but this release reads only version 1"
    cannot_be_opened = f"the store cannot be opened: {directory}: "
    assert report["problems"] == [
        f"{cannot_be_opened}{FIRST} has format version 2, but this release reads only version 1",
        f"{FIRST} cannot be used: {reason}",
    ]
    assert (status, file_report(report, FIRST)["reason"], report["checkpoints"][0]["problem"]) == (1, reason, reason)
    assert re.search(rf"^{FIRST} .* 0 +unusable$", text, re.MULTILINE)
    Head.of(directory / SECOND)._replace(version=7).write(directory / SECOND)
    _, _, report = inspect(directory)
    newest = f"{SECOND} has format version 7, but this release reads only version 1"
    assert report["problems"][0] == cannot_be_opened + newest


def test_a_file_of_another_store_cannot_be_used(inspect, directory, tmp_path):
    with Store.open(tmp_path / "other", [Table("t", max_size=1)]) as store:
        store.checkpoint()
    (tmp_path / "other" / FIRST).replace(directory / FIRST)
    status, _, report = inspect(directory)
    assert (status, sizes(report)) == (1, {"a": 9, "b": 4})
    assert report["problems"] == [f"{FIRST} cannot be used: it belongs to another store"]


def test_a_file_under_another_name_cannot_be_used(inspect, directory):
    (directory / LOG_2).write_bytes((directory / LOG_1).read_bytes())
    _, _, report = inspect(directory)
    needs = f"cannot be used: it needs {LOG_2}, which cannot be used"
    assert report["problems"][1:] == [
        f"{LOG_2} cannot be used: it is another file, renamed or copied to this name",
        f"{FIRST} {needs}",
        f"{SECOND} {needs}; 4 of 10 chunks that its items refer to are missing",
    ]


def test_a_file_that_cannot_be_read_is_reported(inspect, directory):
    (directory / LOG_4).unlink()
    (directory / LOG_4).mkdir()
    _, _, report = inspect(directory)
    assert report["problems"][1] == f"{LOG_4} cannot be used: it cannot be read: Is a directory"
