"""`engram inspect`: damage, its position, and the data that is lost."""

import errno
import os
import re

import pytest
from directories import FIRST, LOG_1, LOG_2, LOG_4, SECOND, file, fill, opened, sizes
from records import FILE_HEAD, Head, cut, flip, records, replace

from engram import Store, Table
from engram.errors import StorageError

UNREAD = "which recovery does not read"


def of(path, kind):
    """Returns the records of a kind."""
    return [record for record in records(path) if record.kind == kind]


def test_a_damaged_record_of_the_newest_log(inspect, directory):
    record = of(directory / LOG_4, "changes")[0]
    place, why = record.offset, f"the checksum of the record's {len(record.body)} bytes is wrong"
    flip(directory / LOG_4, record.body_offset)
    status, text, found = inspect(directory)
    assert found["problems"] == [
        f"{LOG_4} is damaged at byte {place}: {why}; 4 intact records with 2 changes follow, {UNREAD}"
    ]
    assert status == 1
    assert re.search(r"^store \w+, 5 files of [0-9.]+ KiB: 1 problem$", text, re.MULTILINE)
    assert re.search(rf"^{LOG_4} .* 4 +0 +damaged at byte {place:,}$", text, re.MULTILINE)
    entry = file(found, LOG_4)
    assert (entry["state"], entry["offset"], entry["reason"]) == ("damaged", place, why)
    assert (entry["records"], entry["records_after"], entry["changes_after"]) == (4, 4, 2)
    assert sizes(found) == {"a": 6, "b": 4} == opened(directory)


def test_several_damaged_record_heads(inspect, directory):
    first, second, third = (record.offset for record in of(directory / LOG_4, "changes"))
    chunk = of(directory / LOG_4, "chunk")[1]
    for place in (first, second):
        flip(directory / LOG_4, place + 8)  # its length
    why = "the checksum of the record's header is wrong"
    _, _, found = inspect(directory)
    assert found["problems"] == [
        f"{LOG_4} is damaged at byte {first}: {why}; 3 intact records with 1 change follow, {UNREAD}"
    ]
    flip(directory / LOG_4, third)
    flip(directory / LOG_4, chunk.body_offset)
    _, _, found = inspect(directory)
    assert found["problems"][0].endswith("; 1 intact record follows, " + UNREAD)


def test_the_newest_log_ends_within_a_record(inspect, directory):
    (directory / "CLOSED").unlink()  # the process was killed
    record = of(directory / LOG_4, "changes")[-1]
    place, why = record.offset, f"the record's length is {len(record.body)} bytes, but the file has only 9 more"
    cut(directory / LOG_4, record.body_offset + 9)
    status, text, found = inspect(directory)
    assert (status, found["problems"]) == (0, [])
    assert found["notes"] == [f"{LOG_4} ends at byte {place}: {why}; 33 more bytes follow, and were never acknowledged"]
    assert re.search(rf"^{LOG_4} .* 2 +torn at byte {place:,}$", text, re.MULTILINE)
    assert sizes(found) == {"a": 8, "b": 4} == opened(directory)


def test_an_older_log_ends_within_a_record(inspect, directory):
    """Its changes are in a checkpoint, but the next log does not continue where it ends."""
    place = of(directory / LOG_2, "changes")[-1].offset
    cut(directory / LOG_2, place + 1)
    status, _, found = inspect(directory)
    why = "expected a record header of 24 bytes, found 1 byte"
    assert found["problems"] == [f"{LOG_2} is damaged at byte {place}: {why}"]
    assert (status, sizes(found)) == (1, {"a": 9, "b": 4})


def test_a_torn_log_before_the_newest(inspect, directory):
    size = (directory / LOG_2).stat().st_size
    with (directory / LOG_2).open("ab") as log:
        log.write(bytes(100))
    status, text, found = inspect(directory)
    assert (status, file(found, LOG_2)["state"]) == (0, "torn")
    assert re.search(rf"^{LOG_2} .* 4 +torn at byte {size:,}$", text, re.MULTILINE)


def test_damaged_chunks_of_the_newest_checkpoint(inspect, directory):
    """The older checkpoint needs no chunk of log-2, but all of its changes."""
    chunk = of(directory / LOG_2, "chunk")[1]
    flip(directory / LOG_2, chunk.body_offset)
    status, text, found = inspect(directory)
    refused = f"{directory}: changes 10 to 12 are missing before {LOG_4}"
    torn = f"the checksum of the record's {len(chunk.body)} bytes is wrong"
    assert status == 1
    assert found["problems"][0].startswith(f"the store cannot be opened without repair: {refused} ({LOG_2} ends at ")
    assert found["problems"][1].startswith(
        f"{LOG_2} is damaged at byte {chunk.offset}: {torn}; 5 intact records with 3 changes "
    )
    assert found["problems"][2:] == [f"{SECOND} cannot be used: 3 of 10 chunks that its items refer to are missing"]
    assert [each["missing_chunks"] for each in found["checkpoints"]] == [0, 3]
    size = chunk.end - chunk.offset
    assert [each["chunk_bytes"] for each in found["checkpoints"]] == [6 * size, 7 * size]
    assert re.search(r"^2 .* cannot be used +a 6, b 4 *$", text, re.MULTILINE)
    with pytest.raises(StorageError, match=re.escape(refused)):
        opened(directory)


def test_the_result_of_a_repair(inspect, directory):
    (directory / LOG_1).unlink()
    status, text, found = inspect(directory)
    assert "\nopening this directory with repair loads checkpoint 2 and replays 3 changes; the store is " in text
    why = f"it needs {LOG_1}, which cannot be read: {os.strerror(errno.ENOENT)}"
    assert found["refusal"] == f"{directory}: none of 2 checkpoints can be used: {SECOND}: {why}; {FIRST}: {why}"
    missing = f"cannot be used: it needs {LOG_1}, which is missing"
    assert found["problems"] == [
        f"the store cannot be opened without repair: {found['refusal']}",
        f"{FIRST} {missing}; 6 of 6 chunks that its items refer to are missing",
        f"{SECOND} {missing}; 6 of 10 chunks that its items refer to are missing",
    ]
    assert found["notes"][-1] == "table `a` has lost 6 items, whose chunks are missing"
    assert (status, found["opening"]["repaired"]) == (1, True)
    assert sizes(found) == {"a": 3, "b": 4} == opened(directory, repair=True)
    status, text, after = inspect(directory)
    assert (status, sizes(after), after["store"]) == (0, sizes(found), found["store"])
    assert re.search(rf"^{FIRST}\.lost .* 0 +set aside$", text, re.MULTILINE)


def test_a_damaged_newest_checkpoint(inspect, directory):
    record = of(directory / SECOND, "items")[0]
    place, why = record.offset, f"the checksum of the record's {len(record.body)} bytes is wrong"
    flip(directory / SECOND, record.body_offset)
    status, text, found = inspect(directory)
    assert found["problems"] == [f"{SECOND} is damaged at byte {place}: {why}; 5 intact records follow, {UNREAD}"]
    assert found["notes"] == [f"{SECOND} is not used: it is damaged at byte {place}: {why}"]
    assert status == 1
    assert "\nopening this directory loads checkpoint 1 and replays 7 changes; the store is " in text
    assert found["checkpoints"][1]["created"] is not None
    assert sizes(found) == {"a": 9, "b": 4} == opened(directory)


def test_an_unfinished_checkpoint(inspect, directory):
    cut(directory / SECOND, records(directory / SECOND)[-1].offset)
    status, _, found = inspect(directory)
    assert (status, file(found, SECOND)["state"]) == (1, "whole")
    assert found["problems"] == [f"{SECOND} cannot be used: it is incomplete"]


def test_a_checkpoint_with_valid_checksums_and_invalid_values(inspect, directory):
    table = of(directory / SECOND, "table")[0]
    sampler = 27
    replace(directory / SECOND, table._replace(body=table.body[:sampler] + b"\x09" + table.body[sampler + 1 :]))
    status, _, found = inspect(directory)
    why = f"it has a record at byte {table.offset} that cannot be used: unknown selector kind 9, expected 0 to 5"
    assert found["notes"] == [f"{SECOND} is not used: {why}"]
    assert found["problems"] == [f"{SECOND} cannot be used: {why}"]
    assert (status, found["opening"]["checkpoint"]) == (1, 1)


def test_the_first_log_to_replay_is_missing(inspect, directory):
    (directory / LOG_4).unlink()
    _, _, found = inspect(directory)
    assert found["problems"] == [
        f"the store cannot be opened without repair: {directory}: {LOG_4} is missing",
        f"{LOG_4} cannot be used: it is missing, but was there when the store was closed",
        f"{SECOND} cannot be used: it needs {LOG_4}, which is missing",
    ]


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_missing_log_between_two_others(inspect, tmp_path, checkpoints):
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
        f"the store cannot be opened without repair: {tmp_path}: changes 7 to 11 are missing before {last}",
    ]


def test_a_damaged_file_head(inspect, directory):
    flip(directory / LOG_4, 33)
    why = "its file header (the first 48 bytes) is damaged"
    status, _, found = inspect(directory)
    assert found["problems"][1:] == [
        f"{LOG_4} is damaged at byte 0: {why}; 9 intact records with 3 changes follow, {UNREAD}",
        f"{FIRST} cannot be used: it needs {LOG_4}, which cannot be used",
        f"{SECOND} cannot be used: it needs {LOG_4}, which cannot be used",
    ]
    assert status == 1
    cut(directory / LOG_4, 0)
    _, _, found = inspect(directory)
    assert (
        found["problems"][1]
        == f"{LOG_4} is damaged at byte 0: it has 0 bytes, fewer than a file header ({FILE_HEAD} bytes)"
    )


def test_files_of_a_newer_version(inspect, directory):
    Head.of(directory / FIRST)._replace(version=2).write(directory / FIRST)
    status, text, found = inspect(directory)
    other = "it has format version 2, but this release reads only version 1"
    assert found["problems"] == [f"{FIRST} cannot be used: {other}"]
    assert (status, file(found, FIRST)["reason"], found["checkpoints"][0]["problem"]) == (1, other, other)
    assert re.search(rf"^{FIRST} .* 0 +unusable$", text, re.MULTILINE)
    Head.of(directory / SECOND)._replace(version=7).write(directory / SECOND)
    _, _, found = inspect(directory)
    refused = f"{directory}: {SECOND} has format version 7, but this release reads only version 1"
    assert found["problems"][0] == f"the store cannot be opened: {refused}"


def test_a_file_of_another_store(inspect, directory, tmp_path):
    with Store.open(tmp_path / "other", [Table("t", max_size=1)]) as store:
        store.checkpoint()
    (tmp_path / "other" / FIRST).replace(directory / FIRST)
    status, _, found = inspect(directory)
    assert (status, sizes(found)) == (1, {"a": 9, "b": 4})
    assert found["problems"] == [f"{FIRST} cannot be used: it belongs to another store"]


def test_a_renamed_file(inspect, directory):
    (directory / LOG_2).write_bytes((directory / LOG_1).read_bytes())
    _, _, found = inspect(directory)
    needs = f"cannot be used: it needs {LOG_2}, which cannot be used"
    assert found["problems"][1:] == [
        f"{LOG_2} cannot be used: it is another file, renamed or copied to this name",
        f"{FIRST} {needs}",
        f"{SECOND} {needs}; 4 of 10 chunks that its items refer to are missing",
    ]


def test_an_unreadable_file(inspect, directory):
    (directory / LOG_4).unlink()
    (directory / LOG_4).mkdir()
    _, _, found = inspect(directory)
    assert found["problems"][1] == f"{LOG_4} cannot be used: it cannot be read: Is a directory"
