"""A closed store has a file `CLOSED`, the mark: it states where the last log ended, so that later cuts are detected."""

import pytest
from helpers import records
from helpers.records import cut, flip
from helpers.sample_stores import checkpointed, copied, logged, logged_twice, open_sample, state

from engram import inspect_directory

CAUSES = (
    'acknowledged changes are lost because of a power failure (which cannot cause this with `durability="disk"`), '
    "or because the file was damaged after the store was closed"
)


def newest_log(path):
    """Returns the newest log with changes. Logs without a record `begin` have only chunks, or nothing."""
    return max(each for each in path.glob("log-*") if any(record.kind == "begin" for record in records.records(each)))


def size_of(path):
    return path.stat().st_size


@pytest.fixture(scope="module", params=[logged, logged_twice, checkpointed], ids=lambda how: how.__name__)
def sample(request, tmp_path_factory):
    """The directory of a closed store of `sample_stores`, and its state. Tests use copies."""
    path = tmp_path_factory.mktemp("sample") / "store"
    request.param(path)
    return path, state(path)


def test_a_store_is_marked_while_it_is_closed(sample, tmp_path):
    path, (_, _, notes) = sample
    log = newest_log(path)
    (mark,) = records.records(path / "CLOSED")
    largest_number = max(int(each.name[4:]) for each in path.glob("log-*"))
    head = records.Head.of(path / "CLOSED")
    assert (mark.kind, mark.u64(0), mark.u64(8)) == ("closed", int(log.name[4:]), size_of(log))
    assert mark.u64(16) >= largest_number
    assert (head.kind, head.store, head.number) == (3, records.Head.of(log).store, 0)
    assert notes == ()
    with open_sample(copied(path, tmp_path / "open")) as store:
        assert not (tmp_path / "open" / "CLOSED").exists()
        assert store.notes == ()
        # A copy of the open store's files is what a killed process leaves.
        assert state(tmp_path / "open").notes == ()


def test_a_log_that_was_cut_between_records_is_reported(sample, tmp_path):
    path, (_, values, _) = sample
    log = newest_log(path)
    ends = [record.offset for record in records.records(log)]
    for offset in {ends[0], ends[1], ends[-1]}:
        damaged = copied(path, tmp_path / "damaged")
        cut(damaged / log.name, offset)
        note = f"{log.name} has {offset} bytes, but had {size_of(log)} when the store was closed: {CAUSES}"
        inspection = inspect_directory(damaged)
        assert inspection.notes == (note,)
        reason = f"the file ends there, but had {size_of(log)} bytes when the store was closed"
        assert inspection.problems == (f"{log.name} is damaged at byte {offset}: {reason}",)
        assert state(damaged)[1:] == (values[: len(state(damaged).queue)], (note,))
        # The next close marks what is left.
        with open_sample(damaged) as store:
            assert store.notes == (note,)
        assert state(damaged).notes == ()


def test_a_log_that_was_cut_within_a_record_is_reported(sample, tmp_path):
    path, _ = sample
    log = newest_log(path)
    last = records.records(log)[-1]
    damaged = copied(path, tmp_path / "damaged")
    cut(damaged / log.name, last.offset + 10)
    note = (
        f"{log.name} is intact only up to byte {last.offset}: expected a record header of 24 bytes, found 10 bytes; "
        f"the rest (10 bytes) is not used, but the store was closed with {size_of(log)} bytes in this log: {CAUSES}"
    )
    assert state(damaged).notes == (note,)
    inspection = inspect_directory(damaged)
    assert inspection.notes == (note,)
    assert inspection.problems[0].startswith(f"{log.name} is damaged at byte {last.offset}: ")


def test_a_missing_last_log_is_reported(tmp_path):
    path = tmp_path / "store"
    logged_twice(path)
    log = newest_log(path)
    log.unlink()
    note = f"{log.name}, the last log of the closed store, is missing: acknowledged changes are lost"
    assert state(path).notes == (note,)
    inspection = inspect_directory(path)
    assert inspection.notes == (note,)
    reason = "it is missing, but was there when the store was closed"
    assert inspection.problems == (f"{log.name} cannot be used: {reason}",)
    for each in path.glob("log-*"):
        each.unlink()
    assert inspect_directory(path).notes == (note,)
    with open_sample(path) as store:
        assert store.notes == (note,)


def test_bytes_after_the_marked_end_are_reported_as_an_interrupted_write(sample, tmp_path):
    """A release that does not know the mark opens the store without removing it, and may be killed during a write."""
    path, expected = sample
    log = newest_log(path)
    damaged = copied(path, tmp_path / "damaged")
    with (damaged / log.name).open("ab") as file:
        file.write(bytes(16))
    table_states, values, notes = state(damaged)
    assert (table_states, values) == expected[:2]
    assert len(notes) == 1
    assert notes[0].endswith(
        "the rest (16 bytes) is not used: if the process was stopped while it wrote this, nothing acknowledged is "
        'lost; after a power failure with durability="process", or if the file was damaged later, acknowledged changes '
        "may be lost"
    )


def test_marks_that_are_damaged_or_outdated_are_ignored(sample, tmp_path):
    path, (_, values, _) = sample
    log = newest_log(path)
    offset = records.records(log)[-1].offset
    size = size_of(path / "CLOSED")
    damages = [lambda mark, byte=byte: flip(mark, byte) for byte in (0, 20, 46, 60, size - 1)]
    damages += [lambda mark, length=length: cut(mark, length) for length in (0, 47, 60, size - 1)]
    for damage in damages:
        damaged = copied(path, tmp_path / "damaged")
        damage(damaged / "CLOSED")
        assert state(damaged)[1:] == (values, ())
        cut(damaged / log.name, offset)
        assert state(damaged).notes == ()
    # The store was opened again, and has created a log since the mark.
    outdated = copied(path, tmp_path / "outdated")
    mark = (outdated / "CLOSED").read_bytes()
    with open_sample(outdated) as store:
        store.insert({"n": 0, "x": b""}, {"uniform": 1.0})
    (outdated / "CLOSED").write_bytes(mark)
    cut(outdated / log.name, offset)
    assert all("when the store was closed" not in note for note in notes_and_problems(outdated))


def notes_and_problems(path):
    inspection = inspect_directory(path)
    return inspection.notes + inspection.problems
