"""Files that `write_parquet` writes: their columns, row groups and parts, and what an error leaves."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.full_disk import limit_file_size
from helpers.support import fill, raises

from engram import Store, Table
from engram.errors import ClosedError, InvalidArgumentError, SignatureError, StorageError, UnknownTableError
from engram.parquet import read_parquet, write_parquet
from engram.parquet.output import Output


def test_a_row_per_item_with_ordinary_columns(open_store, tmp_path):
    store = open_store(Table("t"))
    keys = []
    for n in range(3):
        item = {"obs": {"pixels": np.full((2, 2), n, np.uint8), "text": f"n{n}"}, "reward": np.float32(n)}
        keys.append(store.insert(item, {"t": n + 0.5}))
    store.sample("t", 5)
    path = tmp_path / "t.parquet"
    assert write_parquet(store, "t", path) == 3
    table = pq.read_table(path)
    assert table.column_names == ["obs/pixels", "obs/text", "reward", "_key", "_priority", "_times_sampled"]
    assert table["obs/pixels"].to_pylist() == [[n] * 4 for n in range(3)]
    assert table.schema.field("obs/pixels").type.list_size == 4
    assert table["obs/text"].to_pylist() == ["n0", "n1", "n2"]
    assert table["reward"].to_pylist() == [0.0, 1.0, 2.0]
    assert table.schema.field("reward").type == pa.float32()
    assert table["_key"].to_pylist() == keys
    assert table["_priority"].to_pylist() == [0.5, 1.5, 2.5]
    assert sum(table["_times_sampled"].to_pylist()) == 5
    assert list(tmp_path.iterdir()) == [path]


def test_a_time_axis_is_a_list(open_store, tmp_path):
    store = open_store(Table("t"))
    for length in (1, 3):
        store.insert({"x": np.arange(2 * length).reshape(length, 2)}, {"t": 1.0}, time_axis=True)
    write_parquet(store, "t", tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["x"].to_pylist() == [[[0, 1]], [[0, 1], [2, 3], [4, 5]]]


def test_items_that_are_one_array(open_store, tmp_path):
    store = open_store(Table("t"))
    store.insert(np.arange(3.0), {"t": 1.0})
    write_parquet(store, "t", tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["data"].to_pylist() == [[0.0, 1.0, 2.0]]


def test_row_groups_and_parts(tmp_path):
    with Store([Table("t")]) as store:
        fill(store, "t", range(10))
        write_parquet(store, "t", tmp_path / "one", batch_size=3, row_group_size=4)
        metadata = pq.read_metadata(tmp_path / "one")
        assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [4, 4, 2]
        write_parquet(store, "t", tmp_path / "parts", batch_size=7, items_per_file=5)
        parts = sorted((tmp_path / "parts").iterdir())
        assert [part.name for part in parts] == ["part-0000000000.parquet", "part-0000000001.parquet"]
        assert [pq.read_table(part)["x"].to_pylist() for part in parts] == [[*range(5)], [*range(5, 10)]]
        assert pq.read_table(tmp_path / "parts")["x"].to_pylist() == [*range(10)]


def test_files_of_large_directories_sort_in_the_order_of_the_items(tmp_path):
    """As `read_parquet` reads them."""
    with Store([Table("t")]) as store:
        fill(store, "t", range(2))
        (batch,) = store.scan("t")
    with Output(tmp_path, 1, None) as output:
        output._num_files = 99_999
        output.add(batch)
    assert [pq.read_table(part)["x"].to_pylist() for part in sorted(tmp_path.iterdir())] == [[0], [1]]


def test_row_groups_are_bounded_in_bytes(tmp_path):
    with Store([Table("t")]) as store:
        for _ in range(40):
            store.insert({"x": np.zeros(1 << 19)}, {"t": 1.0})  # 4 MiB
        write_parquet(store, "t", tmp_path / "t", batch_size=2)
        metadata = pq.read_metadata(tmp_path / "t")
        assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [16, 16, 8]


def test_selected_items_in_an_order(tmp_path):
    with Store([Table("t")]) as store:
        keys = fill(store, "t", range(10))
        assert write_parquet(store, "t", tmp_path / "t", keys=keys[2:5], order="newest_first") == 3
        assert pq.read_table(tmp_path / "t")["x"].to_pylist() == [4, 3, 2]


@pytest.mark.parametrize("items_per_file", [None, 5])
def test_an_empty_table(open_store, tmp_path, items_per_file):
    store = open_store(Table("t"), Table("copy"))
    assert write_parquet(store, "t", tmp_path / "t", items_per_file=items_per_file) == 0
    assert pq.read_table(tmp_path / "t").num_rows == 0
    assert read_parquet(store, "copy", tmp_path / "t") == 0


def test_items_with_different_columns_need_parts(open_store, tmp_path):
    store = open_store(Table("t"))
    store.insert({"x": 1}, {"t": 1.0})
    key = store.insert({"x": np.zeros(2)}, {"t": 1.0})
    with raises(
        SignatureError,
        f"the items of a file must have the same columns; item {key} has column `x` float64[2], and those before it "
        "have column `x` int64[]; for a directory of files, pass `items_per_file`",
    ):
        write_parquet(store, "t", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []
    assert write_parquet(store, "t", tmp_path / "t", items_per_file=1000) == 2
    assert len(list((tmp_path / "t").iterdir())) == 2


def test_items_with_different_nests_need_parts(tmp_path):
    with Store([Table("t")]) as store:
        store.insert({"x": 1}, {"t": 1.0})
        store.insert(np.zeros((3, 2)), {"t": 1.0}, time_axis=True)
        with pytest.raises(SignatureError, match=r"has the columns `data`, and those before it have the columns `x`; "):
            write_parquet(store, "t", tmp_path / "t")
        store.reset("t")
        store.insert((np.zeros(1),), {"t": 1.0})
        store.insert([np.zeros(1)], {"t": 1.0})
        with pytest.raises(SignatureError, match=r"has the nest \[.*, and those before it have the nest \(.*; "):
            write_parquet(store, "t", tmp_path / "t")


def test_a_column_with_the_name_of_an_additional_one(open_store, tmp_path):
    store = open_store(Table("t"))
    store.insert({"_key": 1}, {"t": 1.0})
    with raises(SignatureError, "column `_key` must have another name: Engram adds a column of this name to the file"):
        write_parquet(store, "t", tmp_path / "t")


def test_an_error_in_the_middle_leaves_the_old_file(open_store, tmp_path):
    """The second batch cannot be written."""
    store = open_store(Table("t"))
    path = tmp_path / "t.parquet"
    store.insert({"x": 0}, {"t": 1.0})
    write_parquet(store, "t", path)
    before = path.read_bytes()
    fill(store, "t", range(100))
    store.insert({"y": 1}, {"t": 1.0})
    with pytest.raises(SignatureError):
        write_parquet(store, "t", path, batch_size=10, row_group_size=5)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before
    store.delete("t", [batch.info.key[0] for batch in store.scan("t", batch_size=1)][-1:])
    assert write_parquet(store, "t", path) == 101, "a complete file replaces the old one"


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, monkeypatch, mode):
    path = tmp_path / "t.parquet"
    path.touch()
    path.chmod(mode)
    modes = []
    close = pq.ParquetWriter.close

    def recorded(self):
        modes.extend(each.stat().st_mode & 0o777 for each in tmp_path.iterdir() if each != path)
        close(self)

    monkeypatch.setattr(pq.ParquetWriter, "close", recorded)
    with Store([Table("t")]) as store:
        fill(store, "t", range(3))
        write_parquet(store, "t", path)
    assert path.stat().st_mode & 0o777 == mode
    assert set(modes) == {0o600}, "only the owner can read the file before it has its mode"
    assert pq.read_table(path)["x"].to_pylist() == [0, 1, 2]


def test_an_empty_directory_keeps_its_mode(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t").chmod(0o750)
    with Store([Table("t")]) as store:
        fill(store, "t", range(3))
        write_parquet(store, "t", tmp_path / "t", items_per_file=2)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o750
    assert len(list((tmp_path / "t").iterdir())) == 2


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("items_per_file", [None, 2])
def test_the_target_of_a_symbolic_link_is_replaced(tmp_path, exists, items_per_file):
    (tmp_path / "data").mkdir()
    target, link = tmp_path / "data" / "target", tmp_path / "link"
    link.symlink_to("data/target")
    if exists:
        target.touch() if items_per_file is None else target.mkdir()
    with Store([Table("t")]) as store:
        fill(store, "t", range(3))
        write_parquet(store, "t", link, items_per_file=items_per_file)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "data", link]
    assert list((tmp_path / "data").iterdir()) == [target]
    assert target.is_dir() == (items_per_file is not None)
    assert pq.read_table(target)["x"].to_pylist() == [0, 1, 2]


def test_an_error_in_the_middle_leaves_no_directory(open_store, tmp_path):
    store = open_store(Table("t"))
    fill(store, "t", range(100))
    store.insert({"_key": 1}, {"t": 1.0})
    with pytest.raises(SignatureError):
        write_parquet(store, "t", tmp_path / "t", batch_size=10, items_per_file=20)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_file(tmp_path, monkeypatch):
    """Ctrl-C while a row group is written."""
    with Store([Table("t")]) as store:
        fill(store, "t", range(100))
        write_table = pq.ParquetWriter.write_table
        calls = []

        def interrupted(*args, **kwargs):
            calls.append(args)
            if len(calls) == 3:
                raise KeyboardInterrupt
            write_table(*args, **kwargs)

        monkeypatch.setattr(pq.ParquetWriter, "write_table", interrupted)
        for options in ({}, {"items_per_file": 20}):
            calls.clear()
            with pytest.raises(KeyboardInterrupt):
                write_parquet(store, "t", tmp_path / "t", row_group_size=10, **options)
            assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_created(tmp_path):
    with Store([Table("t")]) as store:
        fill(store, "t", range(10))
        # A name that is too long cannot be created.
        path = tmp_path / ("x" * 250)
        with pytest.raises(StorageError, match=r"^cannot write .*xxx: File name too long$"):
            write_parquet(store, "t", path)


def test_a_closed_store(open_store, tmp_path):
    store = open_store(Table("t"))
    store.close()
    with pytest.raises(ClosedError):
        write_parquet(store, "t", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_mistaken_arguments(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with Store([Table("t")]) as store:
        with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 5 (int)"):
            write_parquet(5, "t", tmp_path / "t")
        with raises(
            InvalidArgumentError,
            f"`path` must not exist, or be an empty directory, with `items_per_file`; got {tmp_path / 'full'}",
        ):
            write_parquet(store, "t", tmp_path / "full", items_per_file=5)
        with raises(
            InvalidArgumentError,
            f"`path` must be a file; {tmp_path / 'full'} is a directory; for a directory of files, pass "
            "`items_per_file`",
        ):
            write_parquet(store, "t", tmp_path / "full")
        with raises(InvalidArgumentError, f"`path`: the directory {tmp_path / 'no'} does not exist; create it"):
            write_parquet(store, "t", tmp_path / "no" / "t")
        with raises(InvalidArgumentError, "`items_per_file` must be at least 1; got 0"):
            write_parquet(store, "t", tmp_path / "t", items_per_file=0)
        with raises(InvalidArgumentError, "`row_group_size` must be at least 1; got 0"):
            write_parquet(store, "t", tmp_path / "t", row_group_size=0)
        with pytest.raises(UnknownTableError):
            write_parquet(store, "u", tmp_path / "t")
        assert [each.name for each in tmp_path.iterdir()] == ["full"]


def test_a_name_with_nul_is_refused(open_store, tmp_path):
    store = open_store(Table("t"))
    store.insert({"a\0b": 1}, {"t": 1.0})
    with raises(SignatureError, "column `a\\x00b` must have a name without NUL, at which other programs end it"):
        write_parquet(store, "t", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"items_per_file": 20}])
def test_a_full_disk_leaves_the_old_file(tmp_path, options):
    path = tmp_path / "t"
    with Store([Table("t")]) as store:
        fill(store, "t", range(10))
        if not options:
            write_parquet(store, "t", path)
        before = path.read_bytes() if path.exists() else None
        for value in np.random.default_rng(0).random((40, 1000)):
            store.insert({"x": value}, {"t": 1.0})
        keys = np.concatenate([batch.info.key for batch in store.scan("t")])[10:]
        try:
            limit_file_size(100_000)
            with pytest.raises(StorageError, match=f"^cannot write {path}: .*File too large$"):
                write_parquet(store, "t", path, keys=keys, row_group_size=5, **options)
        finally:
            limit_file_size(None)
    assert (path.read_bytes() if path.exists() else None) == before
    assert list(tmp_path.iterdir()) == ([] if before is None else [path])


def test_an_error_of_pyarrow(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise pa.ArrowCapacityError("too large")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    with Store([Table("t")]) as store:
        fill(store, "t", range(10))
        with raises(StorageError, f"cannot write {tmp_path / 't'}: too large"):
            write_parquet(store, "t", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []
