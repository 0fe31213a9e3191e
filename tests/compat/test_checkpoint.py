"""Checkpoints: which one a server loads, and where they are stored."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.compat_tables import serving, steps, table
from helpers.support import raises

import engram
from engram.buffers import MappedFile, ReplayBuffer
from engram.compat import reverb
from engram.compat.reverb._server_store import _DirectoryListing
from engram.compat.reverb.tensor_spec import TensorSpec

DefaultCheckpointer = reverb.checkpointers.DefaultCheckpointer
WRITTEN_BY_REVERB = Path(__file__).parents[1] / "imports" / "dm-reverb-0.14"
"""A checkpoint that dm-reverb 0.14 wrote."""


def write_checkpoint(path, *tables, items=3):
    """Writes a checkpoint of tables with items of the values `0`, `1`, ..., and returns its path."""
    with serving(*tables, checkpointer=DefaultCheckpointer(path)) as (_, client):
        for n in range(items):
            client.insert([n], {each.name: n + 1.0 for each in tables})
        return client.checkpoint()


def test_a_server_loads_the_newest_checkpoint(tmp_path):
    path = write_checkpoint(tmp_path, table())
    assert path == f"{tmp_path}/checkpoint-0000000001"
    assert Path(path).is_file()
    with serving(table(), checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        assert client.server_info()["t"].rate_limiter_info.insert_stats.completed == 3
        client.insert([3], {"t": 1.0})
        client.checkpoint()
        client.insert([4], {"t": 1.0})  # not in a checkpoint
    mine = table(max_times_sampled=1)
    with serving(mine, checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        assert mine.info.current_size == 4  # the table was loaded
        assert steps(client, n=4) == [[0], [1], [2], [3]]


def test_priorities_and_counts_are_kept(tmp_path):
    with serving(table(), checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        client.insert([0], {"t": 2.0})
        ((step,),) = client.sample("t")
        client.mutate_priorities("t", {step.info.key: 7.0})
        client.checkpoint()
    with serving(table(), checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        ((again,),) = client.sample("t")
        assert (again.info.key, again.info.priority, again.info.times_sampled) == (step.info.key, 7.0, 2)
        assert client.server_info()["t"].num_unique_samples == 1


def test_without_a_checkpoint_a_server_starts_empty(tmp_path):
    with serving(table(), checkpointer=DefaultCheckpointer(tmp_path / "new" / "deep")) as (_, client):
        client.insert([1], {"t": 1.0})
    with serving(table(), checkpointer=DefaultCheckpointer(tmp_path / "new" / "deep")) as (_, client):
        assert client.server_info()["t"].current_size == 0


def test_table_options_are_those_of_the_constructor(tmp_path):
    write_checkpoint(tmp_path, table(signature=TensorSpec([], "int64")))
    given = table(max_size=2, sampler=reverb.selectors.Lifo(), max_times_sampled=5)
    with serving(given, checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        info = client.server_info()["t"]
        assert (info.max_size, info.max_times_sampled, info.signature) == (2, 5, None)
        assert info.sampler_options.WhichOneof("distribution") == "lifo"
        assert (info.current_size, steps(client)) == (2, [[2]])  # the oldest item did not fit


def test_a_checkpoint_with_an_unknown_table_is_an_error(tmp_path):
    write_checkpoint(tmp_path, table("a"), table("b"))
    text = "Trying to load table 'b' but table was not found in provided list of tables: a, c"
    with raises(ValueError, text):
        reverb.Server([table("a"), table("c")], checkpointer=DefaultCheckpointer(tmp_path), host="localhost")
    with serving(table("a"), table("b"), table("c"), checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        assert {name: info.current_size for name, info in client.server_info().items()} == {"a": 3, "b": 3, "c": 0}


def test_the_fallback_path_is_loaded_if_the_path_has_no_checkpoint(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    path = write_checkpoint(old, table())
    before = sorted(old.iterdir())
    for fallback in (old, path):  # a directory, or a checkpoint in it
        checkpointer = DefaultCheckpointer(new, fallback_checkpoint_path=fallback)
        with serving(table(max_size=2), checkpointer=checkpointer) as (_, client):
            assert client.server_info()["t"].current_size == 2
            client.insert([7], {"t": 1.0})
            assert client.checkpoint().startswith(f"{new}/")
        with serving(table(), checkpointer=checkpointer) as (_, client):  # `new` has a checkpoint now
            assert [int(data[0]) for data in steps(client)] == [2]
        for each in new.iterdir():
            each.unlink()
    assert sorted(old.iterdir()) == before


def test_a_server_that_cannot_start_leaves_no_files(tmp_path):
    """It cannot start because the fallback has an unknown table, or because the port is in use."""
    write_checkpoint(tmp_path / "wrong", table("a"), table("b"))
    write_checkpoint(tmp_path / "right", table("a"), items=2)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "log-book").write_text("mine")
    checkpointer = lambda path, fallback: DefaultCheckpointer(path, fallback_checkpoint_path=tmp_path / fallback)  # noqa: E731
    for path in (tmp_path / "new" / "deep", tmp_path / "there"):
        before = sorted(tmp_path.rglob("*"))
        with raises(ValueError, "Trying to load table 'b' but table was not found in provided list of tables: a"):
            reverb.Server([table("a")], checkpointer=checkpointer(path, "wrong"), host="localhost")
        with serving(table("a")) as (other, _), pytest.raises(ValueError, match="is already in use"):
            reverb.Server([table("a")], other.port, checkpointer=checkpointer(path, "nowhere"), host="localhost")
        with serving(table("a")) as (other, _), pytest.raises(ValueError, match="is already in use"):
            reverb.Server([table("a")], other.port, checkpointer=checkpointer(path, "right"), host="localhost")
        assert sorted(tmp_path.rglob("*")) == before
        with serving(table("a"), checkpointer=checkpointer(path, "right")) as (_, client):
            assert client.server_info()["a"].current_size == 2


def test_a_server_that_cannot_start_leaves_the_items_of_a_store_without_checkpoints(tmp_path):
    """Nor does a fallback replace them."""
    write_checkpoint(tmp_path / "fallback", table("a"), table("b"))
    with engram.Store.open(tmp_path / "store", [engram.Table("a", max_size=5)]) as store:
        for n in range(200):
            store.insert({"x": np.full(500, n)}, {"a": 1.0})
    for fallback in (None, tmp_path / "fallback"):
        checkpointer = DefaultCheckpointer(tmp_path / "store", fallback_checkpoint_path=fallback)
        with serving(table("a")) as (other, _), pytest.raises(ValueError, match="is already in use"):
            reverb.Server([table("a"), table("b")], other.port, checkpointer=checkpointer, host="localhost")
        with engram.Store.open(tmp_path / "store") as store:
            assert (store.info()["a"].size, store.notes) == (5, ())
    with serving(table("a"), table("b"), checkpointer=checkpointer) as (_, client):
        assert [each.current_size for each in client.server_info().values()] == [5, 0]


def test_a_server_that_cannot_start_leaves_the_files_of_another(tmp_path, monkeypatch):
    """The other one opens the directory as soon as the first has closed it."""
    opened = []
    restore = _DirectoryListing.restore

    def open_and_restore(listing):
        opened.append(engram.Store.open(tmp_path / "store", [engram.Table("t")]))
        restore(listing)

    monkeypatch.setattr(_DirectoryListing, "restore", open_and_restore)
    write_checkpoint(tmp_path / "wrong", table("a"), table("b"))
    checkpointer = DefaultCheckpointer(tmp_path / "store", fallback_checkpoint_path=tmp_path / "wrong")
    with pytest.raises(ValueError, match="Trying to load table 'b'"):
        reverb.Server([table("a")], checkpointer=checkpointer, host="localhost")
    opened[0].insert({"x": 1}, {"t": 1.0})
    opened[0].close()
    with engram.Store.open(tmp_path / "store") as store:
        assert store.info()["t"].size == 1


def test_a_server_removes_no_file_that_is_in_use(tmp_path):
    path = tmp_path / "checkpoint-0000000001.tmp"
    with ReplayBuffer(5, storage=MappedFile(path)) as buffer:
        buffer.add({"x": 1})
        with pytest.raises(RuntimeError, match=rf"{path} is in use by this process"):
            reverb.Server([table()], checkpointer=DefaultCheckpointer(tmp_path), host="localhost")
    with ReplayBuffer(5, storage=MappedFile(path)) as buffer:
        assert buffer.num_items == 1


def test_a_missing_fallback_is_ignored(tmp_path):
    for fallback in (tmp_path / "nowhere", tmp_path / "nowhere" / "checkpoint-0000000001"):
        checkpointer = DefaultCheckpointer(tmp_path / "new", fallback_checkpoint_path=fallback)
        with serving(table(), checkpointer=checkpointer) as (_, client):
            assert client.server_info()["t"].current_size == 0


def test_two_checkpoints_are_kept_and_nothing_else_is_removed(tmp_path):
    (tmp_path / "zebra").mkdir()
    with serving(table(), checkpointer=DefaultCheckpointer(tmp_path)) as (_, client):
        for n in range(4):
            client.insert([n], {"t": 1.0})
            path = client.checkpoint()
    names = sorted(each.name for each in tmp_path.iterdir() if not each.name.startswith(("log-", "LOCK", "CLOSED")))
    assert names == ["checkpoint-0000000003", "checkpoint-0000000004", "zebra"]
    assert path.endswith("checkpoint-0000000004")


def test_one_server_at_a_time_uses_a_directory(tmp_path):
    mine = table()
    with (
        serving(table(), checkpointer=DefaultCheckpointer(tmp_path)),
        pytest.raises(RuntimeError, match=rf"{tmp_path} is in use by this process"),
    ):
        reverb.Server([mine], checkpointer=DefaultCheckpointer(tmp_path), host="localhost")
    with serving(mine, checkpointer=DefaultCheckpointer(tmp_path)):  # the server that failed does not own the table
        pass


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(RuntimeError, match="Not a directory"):
        reverb.Server([table()], checkpointer=DefaultCheckpointer(tmp_path / "file" / "below"), host="localhost")


def test_a_corrupt_checkpoint_is_not_loaded(tmp_path):
    path = Path(write_checkpoint(tmp_path, table()))
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    with pytest.raises(RuntimeError, match="checkpoint-0000000001"):
        reverb.Server([table()], checkpointer=DefaultCheckpointer(tmp_path), host="localhost")


def test_the_default_is_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for options in ({}, {"checkpointer": reverb.checkpointers.default_checkpointer()}):
        with serving(table(), **options):
            (directory,) = tmp_path.iterdir()
        assert not directory.exists()  # it was removed, because it has no checkpoint
    with serving(table(), checkpointer=reverb.checkpointers.TempDirCheckpointer()) as (_, client):
        client.insert([1], {"t": 1.0})
        path = Path(client.checkpoint())
    assert path.parent.parent == tmp_path
    with serving(table(), checkpointer=DefaultCheckpointer(path.parent)) as (_, client):
        assert steps(client) == [[1]]


def test_the_checkpoint_path_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_checkpoint("here", table()) == f"{tmp_path}/here/checkpoint-0000000001"


def test_checkpoint_groups_are_rejected():
    text = "group ('staff') is not supported: files belong to the user that runs the server"
    with raises(ValueError, text):
        DefaultCheckpointer("here", group="staff")
    with raises(ValueError, text):
        reverb.checkpointers.default_checkpointer("staff")
    DefaultCheckpointer("here", "")


def test_arguments_of_wrong_types_are_rejected():
    with raises(TypeError, "`path` must be a path; got 3 (int)"):
        DefaultCheckpointer(3)
    with raises(ValueError, "path must be nonempty"):
        DefaultCheckpointer("")
    with raises(TypeError, "`fallback_checkpoint_path` must be a path; got 3 (int)"):
        DefaultCheckpointer("here", fallback_checkpoint_path=3)
    with raises(TypeError, "`checkpointer` must be one of reverb.checkpointers; got 'here' (str)"):
        reverb.Server([table()], checkpointer="here")


def test_a_custom_checkpointer_must_return_checkpoint_paths(tmp_path):
    class Mine(reverb.checkpointers.CheckpointerBase):
        def internal_checkpointer(self):
            return DefaultCheckpointer(tmp_path).internal_checkpointer()

    class Wrong(reverb.checkpointers.CheckpointerBase):
        def internal_checkpointer(self):
            return "here"

    with serving(table(), checkpointer=Mine()) as (_, client):
        assert client.checkpoint() == f"{tmp_path}/checkpoint-0000000001"
    text = "`checkpointer.internal_checkpointer()` must be a CheckpointPaths; got 'here' (str)"
    with raises(TypeError, text):
        reverb.Server([table()], checkpointer=Wrong())
    with pytest.raises(TypeError, match="abstract"):
        reverb.checkpointers.CheckpointerBase()


def test_checkpoint_raises_without_a_server(monkeypatch):
    monkeypatch.setattr("engram.compat.reverb.client._PROBE_TIMEOUT", 0.1)
    with pytest.raises(RuntimeError, match="the server at localhost:1 cannot be reached"):
        reverb.Client("localhost:1").checkpoint()


def test_reverb_checkpoints_are_loaded(tmp_path):
    root = tmp_path / "root"
    reverb_checkpoint = root / "2026-11-20T09:34:53.098553403+00:00"
    shutil.copytree(WRITTEN_BY_REVERB, reverb_checkpoint)
    expected = json.loads((WRITTEN_BY_REVERB / "expected.json").read_text())
    before = sorted(each.name for each in reverb_checkpoint.iterdir())
    for checkpointer in (
        DefaultCheckpointer(tmp_path / "new", fallback_checkpoint_path=reverb_checkpoint),
        DefaultCheckpointer(tmp_path / "other", fallback_checkpoint_path=root),
        DefaultCheckpointer(root),
    ):
        tables = [table(name, max_size=1_000, max_times_sampled=0) for name in expected]
        for _ in range(2):  # the second time, Engram's own checkpoint is loaded
            with serving(*tables, checkpointer=checkpointer) as (_, client):
                infos = client.server_info()
                assert {name: info.current_size for name, info in infos.items()} == {
                    name: len(content["items"]) for name, content in expected.items()
                }
    assert sorted(each.name for each in reverb_checkpoint.iterdir()) == before


def test_a_corrupt_reverb_checkpoint_is_rejected(tmp_path):
    reverb_checkpoint = Path(shutil.copytree(WRITTEN_BY_REVERB, tmp_path / "root" / "2026"))
    chunks = reverb_checkpoint / "chunks.tfrecord"
    chunks.write_bytes(chunks.read_bytes()[:100])
    with pytest.raises(RuntimeError, match=r"chunks\.tfrecord"):
        reverb.Server([table()], checkpointer=DefaultCheckpointer(reverb_checkpoint.parent), host="localhost")
