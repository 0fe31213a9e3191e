"""Files that `read_parquet` reads: those of other programs, and damaged ones."""

import gc
import json
import threading
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.support import BackgroundCall, fill, raises, run_python

from engram import ArraySpec, Store, Table, selectors
from engram.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    PriorityError,
    SignatureError,
    StorageError,
    UnknownTableError,
)
from engram.parquet import read_parquet, write_parquet
from engram.parquet.column_reader import ColumnReader


def file_of(tmp_path, name="foreign.parquet", **columns):
    """A file that Engram has not written."""
    pq.write_table(pa.table(columns), tmp_path / name)
    return tmp_path / name


def items_of(store, table="t"):
    return [sample.data for sample in store.scan(table, batch_size=None)]


def test_columns_of_transitions(open_store, tmp_path):
    """Like a dump of D4RL: lists, numbers and flags."""
    path = file_of(
        tmp_path,
        observations=[[0.0, 1.0], [2.0, 3.0]],
        actions=pa.array([[1], [2]], pa.list_(pa.float32(), 1)),
        rewards=pa.array([0.5, 1.5], pa.float32()),
        terminals=[False, True],
    )
    store = open_store(Table("t"))
    assert read_parquet(store, "t", path) == 2
    (batch,) = store.scan("t")
    assert list(batch.data) == ["actions", "observations", "rewards", "terminals"]
    assert batch.data["observations"].tolist() == [[0, 1], [2, 3]]
    assert batch.data["observations"].dtype == np.float64
    assert (batch.data["actions"].dtype, batch.data["actions"].shape) == (np.float32, (2, 1))
    assert batch.data["terminals"].tolist() == [False, True]
    assert batch.info.priority.tolist() == [1.0, 1.0]
    assert all(batch.squeezed.values())


def test_selected_and_renamed_columns(open_store, tmp_path):
    path = file_of(tmp_path, observations=[1, 2], rewards=[0.5, 1.5], date=pa.array([0, 1], pa.date32()))
    store = open_store(Table("t"))
    read_parquet(store, "t", path, columns={"obs/state": "observations", "r": "rewards"}, priorities=3)
    read_parquet(store, "t", path, columns=["rewards"])
    (first, second) = store.scan("t")
    assert first.data["obs"]["state"].tolist() == [1, 2]
    assert first.data["r"].tolist() == second.data["rewards"].tolist() == [0.5, 1.5]
    assert first.info.priority.tolist() == [3, 3]


def test_nested_columns(open_store, tmp_path):
    path = file_of(
        tmp_path,
        **{
            "obs/a": [1],
            "obs/b\\/c": [2],
            "struct": [{"x": 3, "y": {"z": [4, 5]}}],
            "dictionary": pa.array(["text"]).dictionary_encode(),
            "binary": [b"bytes"],
            "fixed": pa.array([b"xy"], pa.binary(2)),
            "matrix": [[[1.0, 2.0], [3.0, 4.0]]],
            "dotted.name": [6],
        },
    )
    store = open_store(Table("t"))
    assert read_parquet(store, "t", path) == 1
    (item,) = items_of(store)
    assert item["obs"] == {"a": 1, "b/c": 2}
    assert item["struct"]["x"] == 3
    assert item["struct"]["y"]["z"].tolist() == [4, 5]
    assert (item["dictionary"], item["binary"], item["fixed"]) == ("text", b"bytes", b"xy")
    assert item["matrix"].tolist() == [[1, 2], [3, 4]]
    assert item["dotted.name"] == 6


def test_rows_that_are_trajectories(open_store, tmp_path):
    path = file_of(tmp_path, obs=[[[1, 2], [3, 4], [5, 6]], [[7, 8]]], action=[[1, 2], [3]], task=["a", "b"])
    store = open_store(Table("t"))
    assert read_parquet(store, "t", path, time_axis=True) == 2
    first, second = items_of(store)
    assert first["obs"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert first["action"].tolist() == [1, 2]
    assert second["obs"].tolist() == [[7, 8]]
    assert (first["task"], second["task"]) == ("a", "b")
    (batch,) = store.scan("t")
    assert batch.squeezed == {"action": False, "obs": False, "task": True}


def test_a_file_whose_metadata_was_removed_is_read_as_another(open_store, tmp_path):
    """As pandas or polars write it."""
    store = open_store(Table("t"), Table("copy"))
    store.insert({"obs": {"x": np.zeros(3)}}, {"t": 2.5})
    write_parquet(store, "t", tmp_path / "t")
    pq.write_table(pq.read_table(tmp_path / "t").replace_schema_metadata(), tmp_path / "t")
    read_parquet(store, "copy", tmp_path / "t")
    (batch,) = store.scan("copy")
    assert batch.data["obs"]["x"].tolist() == [[0, 0, 0]]
    assert list(batch.data) == ["obs"]
    assert batch.info.priority.tolist() == [2.5]


def test_lists_that_are_all_empty(open_store, tmp_path):
    path = file_of(tmp_path, x=pa.array([[], []], pa.list_(pa.list_(pa.float32()))))
    store = open_store(Table("t"))
    assert read_parquet(store, "t", path) == 2
    assert [(item["x"].shape, item["x"].dtype) for item in items_of(store)] == [((0, 0), np.float32)] * 2


@pytest.mark.parametrize("options", [{}, {"permutation": [0, 1]}])
def test_tensors(open_store, tmp_path, options):
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    tensor = pa.fixed_shape_tensor(pa.float32(), (3, 2), **options)
    flat = pa.array(values.reshape(2, 6).tolist(), tensor.storage_type)
    tensors = pa.ExtensionArray.from_storage(tensor, flat)
    path = file_of(tmp_path, x=tensors, s=pa.StructArray.from_arrays([tensors], ["y"]))
    store = open_store(Table("t"))
    assert read_parquet(store, "t", path) == 2
    for item, value in zip(items_of(store), values, strict=True):
        assert np.array_equal(item["x"], value)
        assert np.array_equal(item["s"]["y"], value)
    store.reset("t")
    read_parquet(store, "t", path, columns=["x"], time_axis=True)
    (batch,) = store.scan("t")
    assert batch.squeezed == {"x": False}, "as a list of lists"
    assert [item["x"].tolist() for item in items_of(store)] == values.tolist()


def test_extension_types_with_the_values_of_their_storage(open_store, tmp_path):
    identifiers = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    path = file_of(tmp_path, id=identifiers, json=pa.array(['{"a": 1}'], pa.json_()))
    store = open_store(Table("t"))
    read_parquet(store, "t", path)
    assert items_of(store) == [{"id": b"0123456789abcdef", "json": '{"a": 1}'}]


def test_a_batch_without_rows_does_not_set_the_size_of_lists():
    lists = pa.list_(pa.list_(pa.int64()))
    reader = ColumnReader.plain("x", lists, time_axis=False)
    assert reader.read(pa.array([], lists), 0).values.shape == (0, 0, 0)
    assert reader.read(pa.array([[[1, 2]]], lists), 0).values.tolist() == [[[1, 2]]]


def test_priorities(open_store, tmp_path):
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)), Table("copy"))
    fill(store, "t", range(3), priority=float)
    write_parquet(store, "t", tmp_path / "t")
    read_parquet(store, "copy", tmp_path / "t", priorities=7.5)
    assert [batch.info.priority.tolist() for batch in store.scan("copy")] == [[7.5] * 3]
    path = file_of(tmp_path, x=[1, 2], _priority=[1.0, float("nan")])
    with pytest.raises(PriorityError, match=rf"^{path}, rows 0 to 1: .*NaN"):
        read_parquet(store, "t", path)


@pytest.mark.parametrize("stored", [pa.nulls(2), pa.array([0, 1], pa.timestamp("s")), pa.array([1.0, None])])
def test_stored_priorities_that_are_not_wanted(tmp_path, stored):
    path = file_of(tmp_path, x=[1, 2], _priority=stored)
    with Store([Table("t")]) as store:
        with pytest.raises(SignatureError, match=rf"^{path}: column `_priority` must have "):
            read_parquet(store, "t", path)
        assert read_parquet(store, "t", path, priorities=1.5) == 2
        assert [(batch.data["x"].tolist(), batch.info.priority.tolist()) for batch in store.scan("t")] == [
            ([1, 2], [1.5, 1.5])
        ]


def test_items_of_a_directory(open_store, tmp_path):
    for number in range(3):
        file_of(tmp_path, f"{number}.parquet", x=[number, number])
    (tmp_path / "README").touch()
    store = open_store(Table("t"))
    assert read_parquet(store, "t", tmp_path) == 6
    assert [item["x"] for item in items_of(store)] == [0, 0, 1, 1, 2, 2]


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (
            {"x": pa.array([0], pa.timestamp("us"))},
            {},
            (
                "column `x` must have booleans, integers, floats, text, bytes, or lists or structs of them; got "
                "timestamp[us]; convert the column, or select others with `columns`"
            ),
        ),
        (
            {"s": [{"x": None}]},
            {},
            (
                "column `s/x` must have booleans, integers, floats, text, bytes, or lists or structs of them; got "
                "null; convert the column, or select others with `columns`"
            ),
        ),
        (
            {"x": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1], pa.int8()))},
            {},
            (
                "column `x` must not have an extension type, except fixed_shape_tensor, json and uuid; got "
                "extension<arrow.bool8>; convert the column, or select others with `columns`"
            ),
        ),
        (
            {
                "x": pa.ExtensionArray.from_storage(
                    pa.fixed_shape_tensor(pa.int64(), (2, 1), permutation=[1, 0]),
                    pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
                )
            },
            {},
            (
                "column `x` must have tensors whose dimensions are not permuted; got the permutation [1, 0]; convert "
                "the column, or select others with `columns`"
            ),
        ),
        (
            {
                "x": pa.ExtensionArray.from_storage(
                    pa.fixed_shape_tensor(pa.int64(), (2,)), pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
                )
            },
            {},
            "column `x` must have a value in every row; row 1 has null; fill or remove it",
        ),
        ({"x": [1, 2, None]}, {}, "column `x` must have a value in every row; row 2 has null; fill or remove it"),
        ({"x": [[1], [None]]}, {}, "column `x` must have a value in every row; row 1 has null; fill or remove it"),
        (
            {"x": [[[1]], [None]]},
            {"time_axis": True},
            "column `x` must have a value in every row; row 1 has null; fill or remove it",
        ),
        (
            {"s": [{"x": 1}, None]},
            {},
            "column `s/x` must have a value in every row; row 1 has null; fill or remove it",
        ),
        (
            {"x": [[1, 2], [3, 4], [5]]},
            {},
            (
                "column `x` must have lists of the same size in all rows, here 2; got 1 in row 2; for items "
                "with a time axis, pass `time_axis=True`"
            ),
        ),
        (
            {"x": [[[1, 2]], [[3, 4], [5]]]},
            {"time_axis": True},
            "column `x` must have lists of the same size in all rows, here 2; got 1 in row 1",
        ),
        ({"x": [[1], []]}, {"time_axis": True}, "column `x` must have a step in every row; row 1 is empty"),
    ],
)
def test_values_that_are_not_items(tmp_path, columns, options, text):
    path = file_of(tmp_path, **columns)
    with Store([Table("t")]) as store:
        with raises(SignatureError, f"{path}: {text}"):
            read_parquet(store, "t", path, **options)
        assert store.info()["t"].size == 0


def test_rows_are_numbered_across_batches(tmp_path):
    path = file_of(tmp_path, x=[*range(10), None])
    with Store([Table("t")]) as store:
        with pytest.raises(SignatureError, match="row 10 has null"):
            read_parquet(store, "t", path, batch_size=4)
        assert [item["x"] for item in items_of(store)] == [*range(8)]


def test_names_that_are_no_nest(tmp_path):
    with Store([Table("t")]) as store:
        path = file_of(tmp_path, **{"a": [1], "a/b": [2]})
        with raises(
            SignatureError,
            f"{path} must not have the column `a`, which has values, and below it the column `a/b`; select "
            "or rename columns with `columns`",
        ):
            read_parquet(store, "t", path)
        pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["x", "x"]), path)
        with raises(SignatureError, f"{path} must not have several columns of the same name; got `x` twice"):
            read_parquet(store, "t", path)
        path = file_of(tmp_path, _key=[1])
        with raises(SignatureError, f"{path} must have a column of the items; got the columns `_key`"):
            read_parquet(store, "t", path)


def test_items_that_do_not_match_the_signature(open_store, tmp_path):
    path = file_of(tmp_path, x=[1.5] * 5)
    store = open_store(Table("t", signature={"x": ArraySpec((), "int64")}))
    with pytest.raises(SignatureError, match=rf"^{path}, rows 0 to 1: .*`x`.*float64.*int64"):
        read_parquet(store, "t", path, batch_size=2)
    path = file_of(tmp_path, x=[[1.5]])
    with pytest.raises(
        SignatureError, match=rf"^{path}, rows 0 to 0: .*`x` has a time axis, but the signature has none"
    ):
        read_parquet(store, "t", path, time_axis=True)


@pytest.mark.filterwarnings("error")  # such as that of a writer whose items are lost
def test_a_closed_rate_limiter(open_store, tmp_path):
    store = open_store(Table.queue("t", max_size=3), Table.queue("with_time_axis", max_size=3))

    def read(table, *, time_axis):
        path = file_of(tmp_path, f"{table}.parquet", x=[[n] * (n + 1 if time_axis else 2) for n in range(5)])
        with pytest.raises(DeadlineExceededError) as caught:
            read_parquet(store, table, path, timeout=0.5, time_axis=time_axis)
        text = (
            f"table `{table}` did not accept all items within 0.5 s; it has the first 3 of 5 items; `{table}`: "
            "inserting waits: Queue(3)"
        )
        assert str(caught.value).startswith(f"{path}, rows 0 to 4: {text} is full")
        return caught

    readings = [
        BackgroundCall(lambda: read("t", time_axis=False)),
        BackgroundCall(lambda: read("with_time_axis", time_axis=True)),
    ]
    errors = [reading.result() for reading in readings]  # their tracebacks keep all variables of the calls
    gc.collect()
    for table in ("t", "with_time_axis"):
        assert store.info()[table].size == 3, table
        store.sample(table, 3)
        assert store.info()[table].size == 0, f"{table}: no item is inserted later"
    del errors, readings


def test_a_closed_rate_limiter_in_the_only_thread(tmp_path):
    expected = ""
    for equal_lengths in (False, True):
        path = file_of(
            tmp_path, f"{equal_lengths}.parquet", x=[[n] * (2 if equal_lengths else n + 1) for n in range(3)]
        )
        refused, waits = "did not accept all items", "it waits"
        if equal_lengths:
            refused, waits = "does not accept more items now", "the call waits"
        expected += (
            f"{path}, rows 0 to 2: table `t` {refused}; it has the first 1 of 3 items; `t`: inserting "
            "waits: Queue(1) is full: 1 inserted item is not sampled yet; this is the only thread of the process, so "
            f"nothing is sampled while {waits}: sample in another thread meanwhile, or read into a table that does not "
            "wait\n"
        )
    output = run_python(f"""
import engram
from engram.parquet import read_parquet
engram._engram.set_only_thread_checks(0.1, 0.1)
for name in ("False", "True"):
    path = f"{tmp_path}/{{name}}.parquet"
    try:
        read_parquet(engram.Store([engram.Table.queue("t", max_size=1)]), "t", path, time_axis=True)
    except (engram.errors.DeadlineExceededError, engram.errors.BackpressureError) as error:
        print(error)
""")
    assert output == expected


@pytest.mark.filterwarnings("error")
def test_the_timeout_is_that_of_a_batch(open_store, tmp_path):
    """A table that accepts an item each 0.2 s would take 1.4 s."""
    tables = ("different_lengths", "equal_lengths")
    store = open_store(*(Table.queue(table, max_size=1) for table in tables))
    stop = threading.Event()

    def sample(table):
        with suppress(ClosedError):
            while not stop.wait(0.2):
                store.sample(table, 1, timeout=10)

    def read(table):
        lengths = [2, 2] if table == "equal_lengths" else [1, 2]
        path = file_of(tmp_path, f"{table}.parquet", x=[[n] * lengths[n % 2] for n in range(8)])
        with pytest.raises(DeadlineExceededError, match=rf"^{path}, rows 0 to 7: "):
            read_parquet(store, table, path, timeout=0.3, time_axis=True)

    threads = [threading.Thread(target=sample, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    try:
        for reading in [BackgroundCall(lambda table=table: read(table)) for table in tables]:
            reading.result()
    finally:
        stop.set()
        store.close()
        for thread in threads:
            thread.join()


def test_damaged_files(tmp_path):
    with Store([Table("t"), Table("copy")]) as store:
        fill(store, "t", range(2_000))
        path = tmp_path / "t.parquet"
        write_parquet(store, "t", path, row_group_size=500)
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        with pytest.raises(StorageError, match=rf"^{path} cannot be read as a Parquet file: "):
            read_parquet(store, "copy", path)
        path.write_bytes(b"")
        with pytest.raises(StorageError, match=rf"^{path} cannot be read as a Parquet file: "):
            read_parquet(store, "copy", path)
        path.write_bytes(whole[:100] + bytes(2_000) + whole[2_100:])
        with pytest.raises(StorageError, match=rf"^{path} cannot be read as a Parquet file: "):
            read_parquet(store, "copy", path)


def description_of(path):
    return json.loads(pq.read_schema(path).metadata[b"engram"])


def with_description(path, description):
    """Replaces the description of the items in the metadata."""
    text = description if isinstance(description, bytes) else json.dumps(description)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"engram": text}), path)


@pytest.fixture
def described(tmp_path):
    """A file that Engram has written."""
    with Store([Table("t")]) as store:
        store.insert({"x": np.zeros(2), "y": 1}, {"t": 1.0})
        write_parquet(store, "t", tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_a_damaged_description(described):
    good = description_of(described)
    column = good["columns"][0]
    damaged = [
        b"{",
        b"[]",
        {**good, "columns": good["columns"][:1]},
        {**good, "columns": 5},
        {**good, "structure": "{}"},
        {**good, "structure": 7},
        {"format": 1},
        *(
            {**good, "columns": [{**column, **change}, good["columns"][1]]}
            for change in (
                {"name": 1},
                {"dtype": "object"},
                {"dtype": []},
                {"shape": [-1]},
                {"shape": 2},
                {"shape": ["2"]},
                {"time_axis": 1},
            )
        ),
    ]
    with Store([Table("t")]) as store:
        for description in damaged:
            with_description(described, description)
            with pytest.raises(StorageError, match=rf"^{described}: the description of its items in the metadata is "):
                read_parquet(store, "t", described)
        with_description(described, {**good, "format": 2})
        with raises(
            StorageError,
            f"{described} has format 2; this version of Engram reads format 1; use a newer version",
        ):
            read_parquet(store, "t", described)


def test_a_description_of_other_columns(described):
    good = description_of(described)
    with Store([Table("t")]) as store:
        table = pq.read_table(described)
        pq.write_table(table.drop_columns(["y"]), described)
        with raises(
            SignatureError,
            f"{described} must have the column `y`, according to its metadata `engram`; got the columns `_key`, "
            "`_priority`, `_times_sampled`, `x`; another program has changed the file: select other columns with "
            "`columns`",
        ):
            read_parquet(store, "t", described)
        assert read_parquet(store, "t", described, columns=["x"]) == 1
        pq.write_table(table.append_column("bonus", pa.array([1.0])), described)
        with raises(
            SignatureError,
            f"{described} must have no other columns than the columns `x`, `y`, according to its metadata `engram`; "
            "got also the columns `bonus`; another program has changed the file: select the columns to read with "
            "`columns`",
        ):
            read_parquet(store, "t", described)
        assert read_parquet(store, "t", described, columns=["x", "bonus"]) == 1
        pq.write_table(table, described)
        for change, expected, got in [
            ({"dtype": "float32"}, "fixed_size_list<element: float not null>[2]", "double"),
            ({"shape": []}, "double", "double"),
            (
                {"time_axis": True},
                "large_list<element: fixed_size_list<element: double not null>[2] not null>",
                "double",
            ),
        ]:
            with_description(described, {**good, "columns": [{**good["columns"][0], **change}, good["columns"][1]]})
            with raises(
                SignatureError,
                f"{described}: column `x` must have the type {expected}, according to the metadata `engram` of the "
                f"file; got fixed_size_list<element: {got} not null>[2]; another program has changed the file: remove "
                "that metadata",
            ):
                read_parquet(store, "t", described)
        with_description(described, {**good, "columns": [{**good["columns"][0], "shape": [3]}, good["columns"][1]]})
        with pytest.raises(
            SignatureError, match=r"must have lists of the same size in all rows, here 3; got 2 in row 0"
        ):
            read_parquet(store, "t", described)


def test_mistaken_arguments(tmp_path):
    path = file_of(tmp_path, x=[1])
    with Store([Table("t")]) as store:
        with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 5 (int)"):
            read_parquet(5, "t", path)
        with raises(InvalidArgumentError, f"`path`: there is no file or directory {tmp_path / 'no'}"):
            read_parquet(store, "t", tmp_path / "no")
        (tmp_path / "empty").mkdir()
        with raises(InvalidArgumentError, f"`path`: the directory {tmp_path / 'empty'} has no files `*.parquet`"):
            read_parquet(store, "t", tmp_path / "empty")
        with raises(InvalidArgumentError, f"`columns`: {path} has no column `y`; it has the columns `x`"):
            read_parquet(store, "t", path, columns=["x", "y"])
        with raises(InvalidArgumentError, "`columns` must name a column; got none"):
            read_parquet(store, "t", path, columns=[])
        with raises(
            InvalidArgumentError,
            "`columns` must be a sequence of names, or a mapping from names in the items; got 'x' (str)",
        ):
            read_parquet(store, "t", path, columns="x")
        with raises(InvalidArgumentError, "each name of `columns` must be a str; got 1 (int)"):
            read_parquet(store, "t", path, columns={"x": 1})
        with raises(InvalidArgumentError, "`priorities` must be a number or \"stored\"; got 'other'"):
            read_parquet(store, "t", path, priorities="other")
        with raises(InvalidArgumentError, "`batch_size` must be at most 65536; got 65537"):
            read_parquet(store, "t", path, batch_size=65_537)
        with pytest.raises(UnknownTableError):
            read_parquet(store, "u", path)
