"""Import of dm-reverb checkpoints. dm-reverb 0.14 wrote the one in this folder (tests/interop/write_checkpoint.py)."""

import errno
import functools
import json
import os
import re
import shutil
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.reverb_checkpoints import check
from helpers.support import raises

import engram
from engram import Client, Server, Store, Table, rate_limiters, selectors
from engram.cli.app import app
from engram.cli.tables import read_tables
from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.errors import InvalidArgumentError, StorageError

REAL = Path(__file__).parent / "dm-reverb-0.14"

FILES = ["tables.tfrecord", "items.tfrecord", "chunks.tfrecord"]


@pytest.fixture
def expected():
    return json.loads((REAL / "expected.json").read_text())


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(REAL, tmp_path / "copy"))


def test_all_items_are_imported(expected):
    with Store([]) as store:
        imported = engram.import_reverb(REAL, store)
        assert imported.tables == {name: len(table["items"]) for name, table in expected.items()}
        assert imported.notes == ()
        check(store, expected)


def test_items_keep_their_order_and_how_often_they_were_sampled(expected):
    with Store([]) as store:
        engram.import_reverb(REAL, store)
        batch = store.sample("queue", len(expected["queue"]["items"]))
        assert batch.info.key.tolist() == [item["key"] & (2**63 - 1) for item in expected["queue"]["items"]]
        for table in ("uniform", "few"):
            times_sampled = {item["key"] & (2**63 - 1): item["times_sampled"] for item in expected[table]["items"]}
            batch = store.sample(table, 1)
            assert batch.info.times_sampled[0] == times_sampled[int(batch.info.key[0])] + 1


def test_tables_keep_their_configuration():
    with Store([]) as store:
        engram.import_reverb(REAL, store)
        infos = store.info()
        few, empty = infos["few"], infos["empty"]
        assert (few.sampler, few.remover, few.max_size) == (selectors.Prioritized(0.8), selectors.MinHeap(), 50)
        assert few.rate_limiter == rate_limiters.RateLimiter(2, 3, -14, 26)
        assert few.max_times_sampled == 5
        assert (empty.sampler, empty.remover, empty.max_times_sampled) == (selectors.MaxHeap(), selectors.Lifo(), None)
        note = json.loads(infos["uniform"].note)["reverb"]
        assert note["signature"]["dict"]["obs"] == {"spec": {"name": "o", "dtype": "float32", "shape": [None, 2]}}
        note = json.loads(empty.note)["reverb"]
        assert note["max_times_sampled"] == -3
        first, (second,) = note["signature"]["list"][0]["spec"], note["signature"]["list"][1]["tuple"]
        assert (first["dtype"], first["shape"]) == ("float32", [])
        assert first["minimum"] == {"shape": [], "data": "AADAvw=="}
        assert second["spec"]["maximum"] == {"shape": [2], "data": "AwQ="}


def test_the_newest_complete_checkpoint_is_read(tmp_path):
    for name in ("2026-01-02", "2026-01-01", "2026-01-03"):
        shutil.copytree(REAL, tmp_path / name)
    (tmp_path / "2026-01-03" / "DONE").unlink()
    (tmp_path / "something else").write_text("")
    with Store([]) as store:
        assert engram.import_reverb(tmp_path, store).path == tmp_path / "2026-01-02"


def test_imported_tables_are_durable(tmp_path, expected):
    with Store.open(tmp_path) as store:
        engram.import_reverb(REAL, store)
    with Store.open(tmp_path) as store:
        check(store, expected)


def test_the_command_imports_into_a_new_store_and_prints_the_tables(tmp_path, expected, capsys):
    app(["import-reverb", str(REAL), "--into", str(tmp_path / "store")], standalone_mode=False)
    output = capsys.readouterr().out.splitlines()
    items = {table: len(entry["items"]) for table, entry in expected.items()}
    assert output == [
        f"{REAL}: {sum(items.values())} items in {len(items)} tables",
        *(f"  {table}: {count} items" for table, count in sorted(items.items())),
    ]
    with Store.open(tmp_path / "store") as store:
        check(store, expected)


# --- errors ---------------------------------------------------------------------------


def test_a_table_name_in_use_is_rejected():
    with Store([Table("queue")]) as store:
        store.insert({"x": 1}, {"queue": 1.0})
        text = (
            "the store already has a table `queue`; drop it, rename it when you open a store on disk "
            "(`Store.open(path, rename=...)`), or import into another store"
        )
        with raises(InvalidArgumentError, text):
            engram.import_reverb(REAL, store)
        assert store.tables == ["queue"]
        assert store.info()["queue"].size == 1


def test_a_client_cannot_import():
    with Server([]) as server, Client(server.address) as client:
        text = "`store` must be an engram.Store in this process; got "
        with pytest.raises(InvalidArgumentError) as error:
            engram.import_reverb(REAL, client)
        assert str(error.value).startswith(text)


def test_a_directory_without_a_complete_checkpoint_is_rejected(tmp_path):
    with Store([]) as store:
        text = (
            f"{tmp_path} contains no complete checkpoint of dm-reverb: neither it nor a directory in it has a file DONE"
        )
        with raises(StorageError, text):
            engram.import_reverb(tmp_path, store)
        with pytest.raises(StorageError, match=r"cannot be read: " + os.strerror(errno.ENOENT)):
            engram.import_reverb(tmp_path / "nowhere", store)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_reported_and_nothing_added(copy, name):
    (copy / name).unlink()
    with Store([]) as store:
        with pytest.raises(StorageError, match=f"{name} cannot be read: " + os.strerror(errno.ENOENT)):
            engram.import_reverb(copy, store)
        assert store.tables == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("compressed", [True, False])
def test_a_corrupt_file_is_reported_and_nothing_added(copy, name, compressed):
    path = copy / name
    whole = path.read_bytes()
    if not compressed:
        whole = zlib.decompress(whole)  # as in old checkpoints
    path.write_bytes(whole)
    with Store([]) as store:
        engram.import_reverb(copy, store)
    rng = np.random.default_rng(7)
    texts = []
    for _ in range(150):
        corrupt = bytearray(whole)
        if rng.random() < 0.5:
            del corrupt[int(rng.integers(len(corrupt))) :]
        else:
            corrupt[int(rng.integers(len(corrupt)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(corrupt)
        with Store([]) as store:
            # Some imports succeed, as an uncompressed file can end between any two records.
            with suppress(StorageError):
                engram.import_reverb(copy, store)
                continue
            assert store.tables == []
        with pytest.raises(StorageError) as error, Store([]) as store:
            engram.import_reverb(copy, store)
        texts.append(str(error.value))
    assert len(texts) > (140 if compressed else 100)
    assert all(name in text or "items.tfrecord" in text for text in texts)


def test_a_failed_command_leaves_no_new_store_and_does_not_change_an_existing_one(copy, tmp_path, capsys):
    (copy / "chunks.tfrecord").write_bytes(b"")
    command = ["import-reverb", str(copy), "--into", str(tmp_path / "store")]
    with pytest.raises(SystemExit):
        app(command)
    assert "Could not find sequence chunk" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
    with Store.open(tmp_path / "store", [Table("mine")]):
        pass
    with pytest.raises(SystemExit):
        app(command)
    with Store.open(tmp_path / "store") as store:
        assert store.tables == ["mine"]


def test_missing_items_are_reported_and_nothing_added(copy):
    (copy / "items.tfrecord").write_bytes(b"")
    with Store([]) as store:
        text = "table `few` of the checkpoint is incomplete: it has 0 items, but counts 11 inserts and 0 deletes"
        with pytest.raises(StorageError) as error:
            engram.import_reverb(copy, store)
        assert re.sub(r"counts.*deletes?$", "counts 11 inserts and 0 deletes", str(error.value)) == text
        assert store.tables == []


def test_duplicate_records_are_rejected(copy):
    for name, text in (
        ("tables.tfrecord", "repeats an earlier table"),
        ("items.tfrecord", "equals that of an earlier item"),
    ):
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(zlib.decompress(whole) * 2)
        with Store([]) as store, pytest.raises(StorageError, match=f"record \\d+ of {copy / name} .*{text}"):
            engram.import_reverb(copy, store)
        (copy / name).write_bytes(whole)


def test_a_chunk_that_was_saved_twice_is_imported_once(copy):
    """dm-reverb saves a chunk as often as a writer has sent it."""
    with Store([]) as store:
        expected = engram.import_reverb(copy, store).tables
    chunks = copy / "chunks.tfrecord"
    chunks.write_bytes(zlib.decompress(chunks.read_bytes()) * 2)
    with Store([]) as store:
        assert engram.import_reverb(copy, store).tables == expected


def decoded(data):
    """Yields the bodies of a TFRecord file's records; `data` is not compressed."""
    while data:
        (length,) = struct.unpack_from("<Q", data)
        yield data[12 : 12 + length]
        data = data[16 + length :]


def encoded(bodies):
    """Returns the content of a TFRecord file with these records, not compressed."""
    table = [
        functools.reduce(lambda crc, _: crc >> 1 ^ (0x82F63B78 if crc & 1 else 0), range(8), n) for n in range(256)
    ]

    def masked(data):
        """Returns the checksum of a TFRecord: CRC32C, rotated and increased by a constant."""
        crc = 0xFFFFFFFF
        for byte in data:
            crc = crc >> 8 ^ table[(crc ^ byte) & 255]
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    heads = [struct.pack("<Q", len(body)) for body in bodies]
    return b"".join(head + masked(head) + body + masked(body) for head, body in zip(heads, bodies, strict=True))


def test_the_item_that_dm_reverb_was_inserting_is_counted(copy, expected):
    """A checkpoint of a full table can have one item whose insert dm-reverb counts later; more are missing records."""
    tables = copy / "tables.tfrecord"
    bodies = list(decoded(zlib.decompress(tables.read_bytes())))

    def counting_less(body, uncounted):
        [name] = [name for name in expected if name.encode() in body[:20]]
        inserts = max(0, expected[name]["counts"][0] - uncounted)
        return body + b"\x1a\x02\x38" + bytes([inserts])  # in the field `rate_limiter`, the field `insert_count`

    tables.write_bytes(encoded([counting_less(body, 1) for body in bodies]))
    with Store([]) as store:
        engram.import_reverb(copy, store)
        check(store, expected)
    tables.write_bytes(encoded([counting_less(body, 2) for body in bodies]))
    text = "table `few` of the checkpoint is incomplete: it has 10 items, but counts 9 inserts and 1 delete"
    with Store([]) as store, raises(StorageError, text):
        engram.import_reverb(copy, store)


def test_a_signature_that_cannot_be_imported_is_noted(copy, tmp_path):
    """A tables file can declare another one when the store is opened again."""
    tables = copy / "tables.tfrecord"
    unknown = b"\x4a\x05\x9a\x03\x02\x0a\x00"  # the field `signature`: a list of a value of no kind
    tables.write_bytes(encoded([body + unknown for body in decoded(zlib.decompress(tables.read_bytes()))]))
    with Store.open(tmp_path / "store") as store:
        imported = engram.import_reverb(copy, store)
        size = store.info()["queue"].size
    assert imported.notes[0] == (
        f"table `{min(imported.tables)}`: dm-reverb's clients do not receive its signature, which could not be "
        "imported. To send them another signature, write a file that declares the table with all its options, and "
        "start `engram serve` with it: with `--tables`, the signature is the key `reverb_signature` and has no bounds; "
        "with `--reverb-config`, it can have bounds"
    )
    assert len(imported.notes) == len(imported.tables)
    file = tmp_path / "tables.toml"
    file.write_text('[queue]\nlike = "queue"\nmax_size = 100\nreverb_signature = { x = "float32[?]" }')
    with Store.open(tmp_path / "store", read_tables(file)) as store, Server(store) as server:
        info = reverb.Client(server.address).server_info()["queue"]
        assert info.signature == {"x": TensorSpec([None], np.float32)}
        assert info.current_size == size


def test_records_that_need_too_much_memory_are_rejected(copy):
    name = "chunks.tfrecord"
    bodies = list(decoded(zlib.decompress((copy / name).read_bytes())))
    (copy / name).write_bytes(encoded(bodies))
    with Store([]) as store:
        engram.import_reverb(copy, store)
    many_tensors = b"\x08\x07\x2a\x80\x09" + b"\x0a\x00" * 576  # a chunk of many empty tensors
    with Store([]) as store:
        (copy / name).write_bytes(encoded([many_tensors]))
        with pytest.raises(StorageError, match=f"record 1 of {copy / name} cannot be imported"):
            engram.import_reverb(copy, store)
        body = b"\x0a\x00" * 1_000_000
        length = bytes([*(0x80 | len(body) >> 7 * i & 127 for i in range(2)), len(body) >> 14])  # a varint
        (copy / name).write_bytes(encoded([b"\x08\x07\x2a" + length + body]))
        with pytest.raises(StorageError, match=f"record 1 of {copy / name} is too large: message of"):
            engram.import_reverb(copy, store)
