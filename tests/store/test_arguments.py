"""Errors of wrong argument types name the argument, the value and what is allowed."""

import pytest
from helpers.support import case, raises

import engram
from engram import Dataset, Pattern, Store, Table
from engram.errors import InvalidArgumentError
from engram.gymnasium import Transitions, VectorWriter

TABLE = "`table` must be a str, the name of a table; got 3 (int)"
TIMEOUT = "`timeout` must be a number of seconds, at least 0, or None to wait forever; got 'x' (str)"
BOOLEAN = "must be True or False; got 'yes' (str)"


def test_methods_of_a_store_reject_wrong_types(open_store):
    store = open_store(Table("t"))
    cases = [
        (lambda store: store.sample(3, 2), TABLE),
        (lambda store: store.sample("t", 1, timeout="x"), TIMEOUT),
        (lambda store: store.sample("t", 1, pad="yes"), f"`pad` {BOOLEAN}"),
        (lambda store: store.update_priorities(3, [1], [1.0]), TABLE),
        (lambda store: store.update_priorities("t", [1], [1.0], wait="yes"), f"`wait` {BOOLEAN}"),
        (lambda store: store.delete(3, [1]), TABLE),
        (lambda store: store.delete("t", [1], wait="yes"), f"`wait` {BOOLEAN}"),
        (lambda store: store.reset(3), TABLE),
        (lambda store: store.drop_table(3), TABLE),
        (lambda store: store.set_rate_limiter(3, engram.rate_limiters.MinSize(1)), TABLE),
        (lambda store: store.insert({"x": 1}, {"t": 1.0}, timeout="x"), TIMEOUT),
        (lambda store: store.writer(timeout="x"), TIMEOUT),
        (lambda store: store.pattern_writer([Pattern("t", num_steps=1)], timeout="x"), TIMEOUT),
        (lambda store: store.batched_writer(1, [Pattern("t", num_steps=1)], timeout="x"), TIMEOUT),
        (lambda store: store.pattern_writer(3), "`patterns` must be a sequence of patterns; got 3 (int)"),
        (lambda store: Dataset(store, 3), TABLE),
        (lambda store: Dataset(store, "t", timeout="x"), TIMEOUT),
        (lambda store: Dataset(store, "t", pad="yes"), f"`pad` {BOOLEAN}"),
    ]
    for number, (call, text) in enumerate(cases):
        with case(number), raises(InvalidArgumentError, text):
            call(store)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.writer(max_waiting=3),
        lambda store: store.pattern_writer([Pattern("t", num_steps=1)], max_waiting=3),
        lambda store: store.batched_writer(1, [Pattern("t", num_steps=1)], max_waiting=3),
        lambda store: VectorWriter(
            store, 1, [Transitions("t", discount=0.5)], autoreset_mode="DISABLED", max_waiting=3
        ),
    ],
)
def test_writers_reject_unknown_options(open_store, call):
    text = (
        "unknown argument `max_waiting`; the options that all writers and adders accept are `chunk_length`, "
        "`max_in_flight_items`, `max_waiting_items`, `timeout`, `compression`"
    )
    with raises(TypeError, text):
        call(open_store(Table("t")))


def test_methods_of_a_writer_reject_wrong_types(open_store):
    store = open_store(Table("t"))
    cases = [
        (lambda writer: writer.append({"x": 1}, partial_step="yes"), f"`partial_step` {BOOLEAN}"),
        (lambda writer: writer.create_item(3, num_steps=1), TABLE),
        (lambda writer: writer.create_item("t", "high"), "`priority` must be a number; got 'high' (str)"),
        (lambda writer: writer.create_item("t", num_steps=1.5), "`num_steps` must be an integer; got 1.5 (float)"),
        (lambda writer: writer.flush("x"), TIMEOUT),
        (lambda writer: writer.end_episode("x"), TIMEOUT),
        (lambda writer: writer.end_episode(clear="yes"), f"`clear` {BOOLEAN}"),
        (lambda writer: writer.close("x"), TIMEOUT),
    ]
    for number, (call, text) in enumerate(cases):
        with case(number), store.writer() as writer:
            with raises(InvalidArgumentError, text):
                call(writer)
            writer.append({"x": 1})


PATH = "`path` must be a path, as a str or os.PathLike; got 3 (int)"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda _: Store(3), "`tables` must be a sequence of tables; got 3 (int)"),
        (lambda _: Store("replay"), "`tables` must be a sequence of tables; got 'replay' (str)"),
        (lambda _: Store.open(3), PATH),
        (lambda _: engram.inspect_directory(3), PATH),
        (lambda _: engram.import_reverb(3, Store([])), PATH),
        (lambda _: Store([]).restore(3), PATH),
        (lambda path: Store.open(path, rename="old"), "`rename` must map old table names to new ones; got 'old' (str)"),
        (
            lambda path: Store.open(path, rename={"old": 3}),
            "each value of `rename` must be a str, the name of a table; got 3 (int)",
        ),
        (lambda path: Store.open(path, drop="old"), "`drop` must be a sequence of table names; got 'old' (str)"),
        (lambda path: Store.open(path, progress=3), "`progress` must be a function or None; got 3 (int)"),
        (lambda _: engram.Server([], host=3), "`host` must be a str; got 3 (int)"),
        (
            lambda _: engram.Client("localhost:1", ca=3),
            "`ca` must be a path, as a str or os.PathLike; got 3 (int)",
        ),
    ],
)
def test_constructors_reject_wrong_types(tmp_path, call, text):
    with raises(InvalidArgumentError, text):
        call(tmp_path / "store")
    assert not (tmp_path / "store").exists()
