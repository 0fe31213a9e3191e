"""Checkpoints of dm-reverb. The one beside this file was written by dm-reverb 0.14: see real_checkpoint.py."""

import json
import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support import raises

import engram
from engram import Client, Server, Store, Table, rate_limiters, selectors
from engram.cli.app import app
from engram.errors import InvalidArgumentError, StorageError

REAL = Path(os.environ.get("ENGRAM_REVERB_CHECKPOINT", Path(__file__).parent / "dm-reverb-0.14"))
"""The interop run gives one that it has just had made."""

FILES = ["tables.tfrecord", "items.tfrecord", "chunks.tfrecord"]


@pytest.fixture
def expected():
    return json.loads((REAL / "expected.json").read_text())


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(REAL, tmp_path / "copy"))


def column(told):
    if told["dtype"] == "string":
        return np.array([text.encode() for text in told["data"]], object).reshape(told["shape"])
    return np.array(told["data"], told["dtype"]).reshape(told["shape"])


def by_key(store, table, wanted):
    """Every item of a table, by key, one sample each."""
    found = {}
    store.set_rate_limiter(table, rate_limiters.MinSize(1))
    while len(found) < wanted:
        batch = store.sample(table, 1, timeout=10)
        key = int(batch.info.key[0])
        found.setdefault(key, (batch.info, [leaf[0] for leaf in batch.data]))
        if len(found) < wanted and not store.info()[table].max_times_sampled:
            continue
        store.delete(table, [key])
    return found


def check(store, expected):
    infos = store.info()
    assert sorted(infos) == sorted(expected)
    for table, told in expected.items():
        info = infos[table]
        assert [info.inserts, info.samples, info.deletes] == told["counts"]
        assert (info.size, info.num_unique_samples) == (len(told["items"]), told["unique"])
        found = by_key(store, table, len(told["items"]))
        assert sorted(found) == sorted(item["key"] & (2**63 - 1) for item in told["items"])
        for item in told["items"]:
            facts, columns = found[item["key"] & (2**63 - 1)]
            assert facts.priority[0] == item["priority"]
            assert facts.times_sampled[0] > item["times_sampled"]
            for got, wanted in zip(columns, map(column, item["columns"]), strict=True):
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
                assert np.array_equal(got, wanted)


def test_everything_comes_along(expected):
    with Store([]) as store:
        imported = engram.import_reverb(REAL, store)
        assert imported.tables == tuple(sorted(expected))
        assert imported.items == sum(len(table["items"]) for table in expected.values())
        check(store, expected)


def test_times_sampled_and_order(expected):
    with Store([]) as store:
        engram.import_reverb(REAL, store)
        batch = store.sample("queue", len(expected["queue"]["items"]))
        assert batch.info.key.tolist() == [item["key"] & (2**63 - 1) for item in expected["queue"]["items"]]
        for table in ("uniform", "few"):
            told = {item["key"] & (2**63 - 1): item["times_sampled"] for item in expected[table]["items"]}
            batch = store.sample(table, 1)
            assert batch.info.times_sampled[0] == told[int(batch.info.key[0])] + 1


def test_tables_are_what_they_were():
    with Store([]) as store:
        engram.import_reverb(REAL, store)
        infos = store.info()
        few, empty = infos["few"], infos["empty"]
        assert (few.sampler, few.remover, few.max_size) == (selectors.Prioritized(0.8), selectors.MinHeap(), 50)
        assert few.rate_limiter == ("RateLimiter", 2.0, 3, -14.0, 26.0)
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


def test_the_newest_complete_one_of_many(tmp_path):
    for name in ("2026-01-02", "2026-01-01", "2026-01-03"):
        shutil.copytree(REAL, tmp_path / name)
    (tmp_path / "2026-01-03" / "DONE").unlink()
    (tmp_path / "something else").write_text("")
    with Store([]) as store:
        assert engram.import_reverb(tmp_path, store).path == tmp_path / "2026-01-02"


def test_it_lasts_where_the_store_does(tmp_path, expected):
    with Store.open(tmp_path) as store:
        engram.import_reverb(REAL, store)
    with Store.open(tmp_path) as store:
        check(store, expected)


def test_the_command(tmp_path, expected, capsys):
    app(["import-reverb", str(REAL), "--into", str(tmp_path / "store")], standalone_mode=False)
    said = capsys.readouterr().out.splitlines()
    items = {table: len(told["items"]) for table, told in expected.items()}
    assert said == [
        f"{REAL}: {sum(items.values())} items of {len(items)} tables",
        *(f"  {table}: {count} items" for table, count in sorted(items.items())),
    ]
    with Store.open(tmp_path / "store") as store:
        check(store, expected)


# --- what is not right ---------------------------------------------------------------------------


def test_a_name_that_is_taken():
    with Store([Table("queue")]) as store:
        store.insert({"x": 1}, {"queue": 1.0})
        with raises(InvalidArgumentError, "table `queue` exists already; each name is taken once"):
            engram.import_reverb(REAL, store)
        assert store.tables == ["queue"]
        assert store.info()["queue"].size == 1


def test_a_client_cannot():
    with Server([]) as server, Client(server.address) as client:
        text = "`store` must be an engram.Store in this process; got "
        with pytest.raises(InvalidArgumentError) as error:
            engram.import_reverb(REAL, client)
        assert str(error.value).startswith(text)


def test_nothing_there(tmp_path):
    with Store([]) as store:
        text = f"{tmp_path} has no complete checkpoint of dm-reverb: neither it nor a directory in it has a file DONE"
        with raises(StorageError, text):
            engram.import_reverb(tmp_path, store)
        with pytest.raises(StorageError, match="cannot be read: No such file"):
            engram.import_reverb(tmp_path / "nowhere", store)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_missing(copy, name):
    (copy / name).unlink()
    with Store([]) as store:
        with pytest.raises(StorageError, match=f"{name} cannot be read: No such file"):
            engram.import_reverb(copy, store)
        assert store.tables == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("compressed", [True, False])
def test_damage_is_told_and_nothing_added(copy, name, compressed):
    path = copy / name
    whole = path.read_bytes()
    if not compressed:
        whole = zlib.decompress(whole)  # as checkpoints were once
    path.write_bytes(whole)
    with Store([]) as store:
        engram.import_reverb(copy, store)
    chance = np.random.default_rng(7)
    told = []
    for _ in range(150):
        bad = bytearray(whole)
        if chance.random() < 0.5:
            del bad[int(chance.integers(len(bad))) :]
        else:
            bad[int(chance.integers(len(bad)))] ^= 1 << int(chance.integers(8))
        path.write_bytes(bad)
        with Store([]) as store:
            # Between two records of a file that is not compressed, it may end.
            with suppress(StorageError):
                engram.import_reverb(copy, store)
                continue
            assert store.tables == []
        with pytest.raises(StorageError) as error, Store([]) as store:
            engram.import_reverb(copy, store)
        told.append(str(error.value))
    assert len(told) > (140 if compressed else 100)
    assert all(name in text or "items.tfrecord" in text for text in told)
