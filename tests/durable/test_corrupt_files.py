"""Flipped bits and truncated files at every kind of record: what is used, what is rejected, and what is deleted.

No corrupt data is used. Valid data is deleted only from the newest log, after its first damaged record.
"""

import struct

import pytest
from helpers import records
from helpers.records import FILE_HEAD, cut, each_damage, files, flip
from helpers.sample_stores import checkpointed, copied, logged, logged_twice, open_sample, state
from helpers.support import raises

from engram.errors import StorageError

FIRST, SECOND = "log-0000000001", "log-0000000002"
OLD, NEW = "checkpoint-0000000001", "checkpoint-0000000002"
IN_LOGS = ("begin", "layout", "schema", "shape", "chunk", "changes", "table created", "dropped")
IN_CHECKPOINTS = ("logs", "serials", "layout", "shape", "table", "items", "order", "sessions", "end")


@pytest.fixture(scope="module")
def sample(request, tmp_path_factory):
    """The directory of a store of `sample_stores`, and its state. Tests use copies."""
    path = tmp_path_factory.mktemp("sample") / "store"
    request.param(path)
    return path, state(path)


ADVICE = "; `engram.Store.open(path, repair=True)` opens what can still be read (an empty store if nothing can)"


def sample_store(how):
    return pytest.mark.parametrize("sample", [how], indirect=True, ids=[how.__name__])


def first_and_last(path, kind):
    """Returns the first and the last record of a kind."""
    of_kind = [record for record in records.records(path) if record.kind == kind]
    assert of_kind, f"{path.name} has no record of kind {kind}"
    return of_kind if len(of_kind) == 1 else [of_kind[0], of_kind[-1]]


def torn_log_note(path, record, reason, original):
    """Returns the note about a log that is intact only up to `record`; `original` is the undamaged file."""
    size = path.stat().st_size
    later = [each for each in records.records(original) if each.offset > record.offset]
    num_after = sum(each.body_offset + len(each.body) <= size for each in later)
    rest = (
        ": if the process was stopped while it wrote this, nothing acknowledged is lost; after a power failure with "
        'durability="process", or if the file was damaged later, acknowledged changes may be lost'
    )
    if num_after:
        records_after = "1 intact record" if num_after == 1 else f"{num_after} intact records"
        rest = (
            f', although it has {records_after}: after a power failure with durability="disk", nothing acknowledged is '
            'lost; after one with durability="process", or if the file was damaged later, acknowledged changes may be '
            "lost"
        )
    tail_size = size - record.offset
    tail = "1 byte" if tail_size == 1 else f"{tail_size} bytes"
    return f"{path.name} is intact only up to byte {record.offset}: {reason}; the rest ({tail}) is not used{rest}"


def test_the_samples_have_records_of_all_kinds_that_are_damaged_below(tmp_path):
    logged(tmp_path / "logged")
    assert {record.kind for record in records.records(tmp_path / "logged" / FIRST)} == set(IN_LOGS)
    checkpointed(tmp_path / "checkpointed")
    assert {record.kind for record in records.records(tmp_path / "checkpointed" / NEW)} == set(IN_CHECKPOINTS)


# --- logs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", IN_LOGS)
@sample_store(logged)
def test_the_newest_log_is_truncated_at_the_damage(sample, tmp_path, kind):
    """The stores have no mark of a close, as if they were killed; `test_closed_stores.py` damages closed ones."""
    path, (_, values, _) = sample
    for record in first_and_last(path / FIRST, kind):
        truncated = copied(path, tmp_path / "truncated")
        (truncated / "CLOSED").unlink()
        cut(truncated / FIRST, record.offset)
        table_states, first_values, notes = state(truncated)
        assert (first_values, notes) == (values[: len(first_values)], ())
        for damage, reason in each_damage(record):
            damaged = copied(path, tmp_path / "damaged")
            (damaged / "CLOSED").unlink()
            damage(damaged / FIRST)
            note = torn_log_note(damaged / FIRST, record, reason, path / FIRST)
            assert state(damaged) == (table_states, first_values, (note,))
            with open_sample(damaged) as store:
                store.insert({"n": 0, "x": b""}, {"uniform": 1.0})
            assert (damaged / FIRST).read_bytes() == (truncated / FIRST).read_bytes()
            with open_sample(damaged) as store:
                assert store.notes == ()


def changes(path):
    """Yields the number of each change of a log, and the position of its record."""
    for record in records.records(path):
        if record.kind == "changes":
            first, count = record.u64(8), record.u32(16)
            yield from ((number, record.offset) for number in range(first, first + count))
        elif record.kind in ("table created", "dropped"):
            yield record.u64(0), record.offset


@pytest.mark.parametrize("kind", IN_LOGS)
@sample_store(logged_twice)
def test_a_damaged_log_before_the_newest_is_rejected(sample, tmp_path, kind):
    path, expected = sample
    last = records.records(path / SECOND)[0].u64(0) - 1
    assert [number for number, _ in changes(path / FIRST)] == list(range(1, last + 1))
    damaged = copied(path, tmp_path / "damaged")
    for record in first_and_last(path / FIRST, kind):
        missing = next(number for number, offset in changes(path / FIRST) if offset >= record.offset)
        for damage, reason in each_damage(record):
            (damaged / FIRST).write_bytes((path / FIRST).read_bytes())
            damage(damaged / FIRST)
            files_before = files(damaged)
            problem = f"changes {missing} to {last} are missing before {SECOND}"
            tear = f"{FIRST} is intact only up to byte {record.offset}: {reason}"
            with raises(StorageError, f"{damaged}: {problem} ({tear}){ADVICE}"):
                open_sample(damaged)
            assert files(damaged) == files_before
    (damaged / FIRST).write_bytes((path / FIRST).read_bytes())
    assert state(damaged) == expected


def test_a_store_whose_checkpoints_all_lack_a_chunk_is_rejected(tmp_path):
    path, damaged = tmp_path / "store", tmp_path / "damaged"
    checkpointed(path)
    # Once the earlier checkpoints are removed, some logs have the only copies of chunks.
    with open_sample(path) as store:
        for _ in range(2):
            last = store.checkpoint().number
    new, old = (f"checkpoint-{number:010}" for number in (last, last - 1))
    expected = state(path)
    needed = {name: serials(path / name) for name in (new, old)}
    num_rejected = 0
    for log in sorted(path.glob("log-*")):
        of_log = [record for each, record in chunks(path) if each == log]
        in_other_logs = {record.u64(0) for each, record in chunks(path) if each != log}
        if not of_log or needed[new] <= in_other_logs or needed[old] <= in_other_logs:
            continue
        copied(path, damaged)
        flip(damaged / log.name, of_log[0].body_offset)
        missing = {name: f"{len(serials - in_other_logs)} of {len(serials)} chunks" for name, serials in needed.items()}
        reason = "; ".join(f"{name}: {missing[name]} that its items refer to are missing" for name in (new, old))
        files_before = files(damaged)
        with raises(StorageError, f"{damaged}: none of 2 checkpoints can be used: {reason}{ADVICE}"):
            open_sample(damaged)
        assert files(damaged) == files_before
        (damaged / log.name).write_bytes(log.read_bytes())
        assert state(damaged) == expected
        num_rejected += 1
    assert num_rejected


@sample_store(checkpointed)
def test_a_damaged_chunk_is_read_from_another_log_that_has_it(sample, tmp_path):
    path, (table_states, values, _) = sample
    needed, chunks_by_log = serials(path / NEW), chunks(path)
    logs_checked = 0
    for log in sorted(path.glob("log-*")):
        of_log = [record for each, record in chunks_by_log if each == log]
        in_other_logs = {record.u64(0) for each, record in chunks_by_log if each != log}
        if {record.u64(0) for record in of_log} & needed and needed <= in_other_logs:
            damaged = copied(path, tmp_path / "damaged")
            flip(damaged / log.name, of_log[0].body_offset)
            assert state(damaged)[:2] == (table_states, values)
            logs_checked += 1
    assert logs_checked


def chunks(path):
    """Returns a pair for each record of a chunk in any log: the log's path, and the record."""
    logs = sorted(path.glob("log-*"))
    return [(log, record) for log in logs for record in records.records(log) if record.kind == "chunk"]


def serials(checkpoint):
    """Returns the serial numbers of the chunks that a checkpoint's items refer to."""
    lists = [record for record in records.records(checkpoint) if record.kind == "serials"]
    pairs = [(each.u64(4 + 16 * index), each.u64(12 + 16 * index)) for each in lists for index in range(each.u32(0))]
    return {serial for first, count in pairs for serial in range(first, first + count)}


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", IN_CHECKPOINTS)
@sample_store(checkpointed)
def test_a_damaged_checkpoint_is_not_used(sample, tmp_path, kind):
    path, (table_states, values, _) = sample
    damaged = copied(path, tmp_path / "damaged")
    for record in first_and_last(path / NEW, kind):
        for damage, reason in each_damage(record):
            (damaged / NEW).write_bytes((path / NEW).read_bytes())
            damage(damaged / NEW)
            note = f"{NEW} is not used: it is damaged at byte {record.offset}: {reason}"
            assert state(damaged) == (table_states, values, (note,))
        cut(damaged / NEW, record.offset)
        assert state(damaged) == (table_states, values, (f"{NEW} is not used: it is incomplete",))


@pytest.mark.parametrize("kind", IN_CHECKPOINTS)
@sample_store(checkpointed)
def test_a_checkpoint_whose_records_have_further_bytes_is_not_used(sample, tmp_path, kind):
    path, (table_states, values, _) = sample
    damaged = copied(path, tmp_path / "damaged")
    content, number = (path / NEW).read_bytes()[:FILE_HEAD], records.Head.of(path / NEW).number
    offset = None
    for record in records.records(path / NEW):
        moved = record._replace(offset=len(content))
        if record.kind == kind and offset is None:
            offset = moved.offset
            moved = moved._replace(body=record.body + bytes(8))
        content += moved.bytes(number)
    (damaged / NEW).write_bytes(content)
    note = f"{NEW} is not used: it has a record at byte {offset} that cannot be used: 8 extra bytes at the end"
    assert state(damaged) == (table_states, values, (note,))


@sample_store(checkpointed)
def test_a_checkpoint_with_a_second_head_is_not_used(sample, tmp_path):
    path, (table_states, values, _) = sample
    damaged = copied(path, tmp_path / "damaged")
    content, number = (path / NEW).read_bytes()[:FILE_HEAD], records.Head.of(path / NEW).number
    head, *others, end = records.records(path / NEW)
    assert (head.kind, end.kind) == ("logs", "end")
    num_tables, num_records = struct.unpack("<IQ", end.body)
    end = end._replace(body=struct.pack("<IQ", num_tables, num_records + 1))
    for record in (head, *others, head, end):
        offset = len(content)
        content += record._replace(offset=offset).bytes(number)
    second = offset - len(head._replace(offset=0).bytes(number))
    (damaged / NEW).write_bytes(content)
    note = f"{NEW} is not used: it has a second `logs` record, at byte {second}"
    assert state(damaged) == (table_states, values, (note,))


@sample_store(checkpointed)
def test_files_are_kept_until_two_checkpoints_are_valid_again(sample, tmp_path):
    path, (table_states, values, _) = sample
    store = copied(path, tmp_path / "store")
    flip(store / NEW, records.records(path / NEW)[-1].offset)
    files_before = files(store)
    del files_before["CLOSED"]  # removed when the store is opened
    with open_sample(store) as opened:
        assert opened.checkpoint().number == 3
    assert files_before.items() <= files(store).items()
    assert state(store)[:2] == (table_states, values)
    with open_sample(store) as opened:
        assert opened.checkpoint().number == 4
    names = {name for name in files(store) if name.startswith("checkpoint")}
    assert names == {"checkpoint-0000000003", "checkpoint-0000000004"}
    assert state(store) == (table_states, values, ())


@sample_store(checkpointed)
def test_a_store_without_a_valid_checkpoint_is_rejected(sample, tmp_path):
    path, expected = sample
    damaged = copied(path, tmp_path / "damaged")
    offset = FILE_HEAD
    for name in (OLD, NEW):
        flip(damaged / name, offset)
    files_before = files(damaged)
    reason = f"it is damaged at byte {offset}: the checksum of the record's header is wrong"
    with raises(
        StorageError, f"{damaged}: none of 2 checkpoints can be used: {NEW}: {reason}; {OLD}: {reason}{ADVICE}"
    ):
        open_sample(damaged)
    assert files(damaged) == files_before
    for name in (OLD, NEW):
        flip(damaged / name, offset)
    assert state(damaged) == expected


# --- padding and heads ---------------------------------------------------------------------------


@sample_store(checkpointed)
def test_padding_after_a_record_is_not_read(sample, tmp_path):
    path, expected = sample
    damaged = copied(path, tmp_path / "damaged")
    for file in damaged.glob("*-*"):
        for record in records.records(file):
            if record.padding_offset < record.end:
                flip(file, record.padding_offset)
    assert files(damaged) != files(path)
    assert state(damaged) == expected


def each_head_damage():
    """Yields ways to damage the file header, as `each_damage` does for a record."""
    for offset in range(FILE_HEAD):
        reason = (
            "it is not an Engram file, or its first 8 bytes are damaged"
            if offset < 8
            else "its file header (the first 48 bytes) is damaged"
        )
        yield lambda path, offset=offset: flip(path, offset), reason
    for length in (0, 1, FILE_HEAD - 1):
        yield (
            lambda path, offset=length: cut(path, offset),
            f"it has {length} byte{'s' if length != 1 else ''}, fewer than a file header (48 bytes)",
        )


@sample_store(checkpointed)
def test_a_checkpoint_with_a_damaged_head_is_not_used(sample, tmp_path):
    path, (table_states, values, _) = sample
    damaged = copied(path, tmp_path / "damaged")
    for damage, reason in each_head_damage():
        (damaged / NEW).write_bytes((path / NEW).read_bytes())
        damage(damaged / NEW)
        assert state(damaged) == (table_states, values, (f"{NEW} is not used: it is damaged: {reason}",))


@pytest.mark.parametrize("name", [FIRST, SECOND])
@sample_store(logged_twice)
def test_a_log_with_a_damaged_head_is_rejected(sample, tmp_path, name):
    path, expected = sample
    damaged = copied(path, tmp_path / "damaged")
    for damage, reason in each_head_damage():
        (damaged / name).write_bytes((path / name).read_bytes())
        damage(damaged / name)
        files_before = files(damaged)
        with raises(StorageError, f"{damaged}: {name} is damaged: {reason}{ADVICE}"):
            open_sample(damaged)
        assert files(damaged) == files_before
    (damaged / name).write_bytes((path / name).read_bytes())
    assert state(damaged) == expected
