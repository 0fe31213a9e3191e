"""The trajectory writer: histories and their slices, partial steps, new columns, errors."""

import gc
import itertools
import sys
import warnings
from collections import deque, namedtuple

import numpy as np
import pytest
from helpers.support import case, raises

import engram
from engram import ArraySpec, Table, selectors
from engram._engram import flatten
from engram.errors import (
    ClosedError,
    ExpiredStepError,
    InvalidArgumentError,
    SignatureError,
    UnknownTableError,
)


@pytest.fixture
def store(open_store):
    return open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))


def count_up(writer, steps, first=0):
    for value in range(first, first + steps):
        writer.append({"x": value, "y": np.full(2, value, np.float32)})


def created_item(store, writer, trajectory):
    """Creates an item and returns its data, as sampled from the table."""
    writer.create_item("t", trajectory=trajectory)
    writer.flush(10)
    return store.sample("t", 1, timeout=0).data


# --- slices --------------------------------------------------------------------------------------


def test_slices_work_like_those_of_a_list(store):
    indices = [
        slice(None),
        slice(-2, None),
        slice(-3, -1),
        slice(2, 5),
        slice(None, None, 2),
        slice(1, None, 3),
        slice(None, None, -1),
        slice(-1, -4, -2),
        [0],
        [3, 1, 4, 1],
        [-1, 0, -1],
        [np.int64(2), 0],
    ]
    for chunk_length, index in itertools.product((None, 1, 2, 5), indices):
        with case(chunk_length, index), store.writer(history=10, chunk_length=chunk_length) as writer:
            count_up(writer, 6)
            column = writer.history["y"][index]
            expected = np.arange(6, dtype=np.float32)[index][:, None].repeat(2, axis=1)
            assert len(column) == len(expected)
            assert (tuple(column.shape), column.dtype) == (expected.shape, np.float32)
            np.testing.assert_array_equal(column.numpy(), expected)
            data = created_item(store, writer, {"y": column, "x": writer.history["x"][-1]})
            np.testing.assert_array_equal(data["y"], expected[None])
            assert data["x"].tolist() == [5]


def test_an_index_is_a_step_without_a_time_axis(store):
    with store.writer() as writer:
        count_up(writer, 6)
        for index in (0, 3, -1, -6, np.int32(2)):
            column = writer.history["y"][index]
            with case(index):
                assert (column.is_squeezed, tuple(column.shape)) == (True, (2,))
                assert created_item(store, writer, [column])[0].tolist() == [[index % 6, index % 6]]


def test_columns_of_an_item_can_differ_in_length_and_position(store):
    with store.writer(chunk_length=2) as writer:
        count_up(writer, 6)
        x, y = writer.history["x"], writer.history["y"]
        data = created_item(store, writer, {"b": (x[:2], y[-4:]), "a": x[::-2]})
        assert data["a"].tolist() == [[5, 3, 1]]
        assert data["b"][0].tolist() == [[0, 1]]
        assert data["b"][1][0, :, 0].tolist() == [2, 3, 4, 5]


def test_history_counts_from_the_start_of_the_episode(store):
    with store.writer(history=3) as writer:
        count_up(writer, 5)
        assert (len(writer.history["x"]), writer.episode_steps) == (5, 5)
        writer.end_episode()
        assert (len(writer.history["x"]), writer.episode_steps) == (0, 0)
        count_up(writer, 2, first=100)
        assert created_item(store, writer, {"x": writer.history["x"][:]})["x"].tolist() == [[100, 101]]
        writer.end_episode(clear=False)
        count_up(writer, 1, first=102)
        assert created_item(store, writer, {"x": writer.history["x"][-3:]})["x"].tolist() == [[100, 101, 102]]
        assert writer.episode_steps == 1


def test_expired_steps_are_rejected(store):
    def expired(step, available):
        return raises(
            ExpiredStepError,
            f"the trajectory refers to column `x` at step {step} of this writer (counted from 0 over all episodes), "
            "which has expired: the writer retains only the newest 2 steps (`history`); "
            f"steps {available} are available; create items earlier or raise `history`",
        )

    with store.writer(history=2) as writer:
        count_up(writer, 5)
        with expired(2, "3 to 4"):
            writer.create_item("t", trajectory={"x": writer.history["x"][-3:]})
        with expired(0, "3 to 4"):
            writer.create_item("t", trajectory={"x": writer.history["x"][:4]})
        with raises(IndexError, "index 5 is out of range for column `x` of `history`, which has 5 steps"):
            writer.history["x"][5]
        with raises(
            ExpiredStepError,
            "`num_steps` is 3, but the writer retains only the newest 2 steps (`history`); raise `history` to at "
            "least 3 or select fewer steps",
        ):
            writer.create_item("t", num_steps=3)
        newest = writer.history["x"][-2:]
        count_up(writer, 1)
        with expired(3, "4 to 5"):
            writer.create_item("t", trajectory={"x": newest})
    assert store.info()["t"].size == 0


def test_more_steps_than_were_appended_are_rejected(store):
    with store.writer(history=2) as writer:
        count_up(writer, 1)
        with raises(
            InvalidArgumentError,
            "`num_steps` is 2, but only 1 step was appended in this episode; append more steps first, or select fewer",
        ):
            writer.create_item("t", num_steps=2)
    assert store.info()["t"].size == 0


def test_an_index_outside_the_history_is_rejected(store):
    with store.writer() as writer:
        count_up(writer, 6)
        for index in (6, -7):
            text = f"index {index} is out of range for column `x` of `history`, which has 6 steps"
            with raises(IndexError, text):
                writer.history["x"][index]
            with raises(IndexError, text):
                writer.history["x"][[0, index]]


def test_an_index_of_more_than_64_bits_is_out_of_range(store):
    with store.writer() as writer:
        count_up(writer, 6)
        text = "an index of more than 64 bits is out of range for column `x` of `history`, which has 6 steps"
        for index in (1 << 63, -(1 << 100), 1 << 20_000):
            with case(index.bit_length()):
                with raises(IndexError, text):
                    writer.history["x"][index]
                with raises(IndexError, text):
                    writer.history["x"][[0, index]]


def test_an_index_of_another_type_is_rejected(store):
    with store.writer() as writer:
        count_up(writer, 1)
        text = "indices of column `x` of `history` must be integers, slices or lists of integers; got "
        with raises(TypeError, text + "tuple"):
            writer.history["x"][0, 1]
        with raises(TypeError, text + "str"):
            writer.history["x"][[0, "1"]]


NO_SLICE = (
    'column `x` of the trajectory must be a slice of the writer\'s history, such as writer.history["obs"][-2:]; got int'
)


def test_bad_trajectories_are_rejected(store):
    with store.writer() as writer, store.writer() as other:
        with raises(InvalidArgumentError, "`history` is not available before the first append"):
            writer.history  # noqa: B018, raises
        count_up(writer, 2)
        count_up(other, 2)
        history = writer.history
        cases = [
            (
                {"x": history["x"][:0]},
                InvalidArgumentError,
                "column `x` of the trajectory selects no steps; select at least one",
            ),
            (
                other.history["x"][:],
                SignatureError,
                "the trajectory must be a slice of this writer's history; got one of another writer",
            ),
            (
                history["x"][:0],
                InvalidArgumentError,
                "the trajectory selects no steps; select at least one",
            ),
            ({}, InvalidArgumentError, "the trajectory has no columns; select at least one"),
            (
                {"x": 1},
                SignatureError,
                NO_SLICE,
            ),
            (
                {"a": {"b": other.history["x"][:]}},
                SignatureError,
                "column `a/b` of the trajectory must be a slice of this writer's history; got one of another writer",
            ),
        ]
        for trajectory, error, text in cases:
            with raises(error, text):
                writer.create_item("t", trajectory=trajectory)
        for trajectory, steps, got in ((None, None, "neither"), ({"x": history["x"][:]}, 1, "both")):
            text = f"create_item needs exactly one of `trajectory` and `num_steps`; got {got}"
            with raises(InvalidArgumentError, text):
                writer.create_item("t", trajectory=trajectory, num_steps=steps)
        for steps in (0, -1):
            with raises(InvalidArgumentError, f"`num_steps` must be at least 1; got {steps}"):
                writer.create_item("t", num_steps=steps)
        with raises(UnknownTableError, "no table `u`; known tables: `t`"):
            writer.create_item("u", num_steps=1)
    assert store.info()["t"].size == 0


def test_a_column_of_an_item_must_have_cells_of_one_shape(store):
    with store.writer() as writer:
        for size in (2, 2, 3):
            writer.append({"x": np.full(size, size)})
        x = writer.history["x"]
        assert created_item(store, writer, {"x": x[:2]})["x"].tolist() == [[[2, 2], [2, 2]]]
        assert created_item(store, writer, {"x": x[2]})["x"].tolist() == [[3, 3, 3]]
        with pytest.raises(
            SignatureError,
            match=r"^column `x` of the trajectory has cells of different shapes, \[2\] and, at step 2 of this writer",
        ):
            writer.create_item("t", trajectory={"x": x[:]})
        with raises(
            SignatureError, "column `x` of `history`: steps of shape [2] and [3] cannot be stacked into one array"
        ):
            x[1:].numpy()


# --- partial steps, missing values, growth -------------------------------------------------------


def test_partial_steps_are_merged(store):
    with store.writer() as writer:
        for value in range(3):
            writer.append({"x": value}, partial_step=True)
            assert writer.episode_steps == value
            writer.append({"y": value + 10})
        assert writer.episode_steps == 3
        history = writer.history
        data = created_item(store, writer, {"x": history["x"][:], "y": history["y"][:]})
        assert (data["x"].tolist(), data["y"].tolist()) == ([[0, 1, 2]], [[10, 11, 12]])
        writer.append({"x": 3}, partial_step=True)
        assert created_item(store, writer, {"x": history["x"][-2:]})["x"].tolist() == [[2, 3]]
        with raises(
            InvalidArgumentError,
            "column `x` already has a value in the open step; a step can have only one value per column",
        ):
            writer.append({"x": 4})
        writer.append({"y": 13})
        assert created_item(store, writer, {"y": history["y"][-1]})["y"].tolist() == [13]


def test_none_means_no_value(store):
    with store.writer() as writer:
        for value in range(3):
            writer.append({"x": value, "y": None if value == 1 else value})
        assert created_item(store, writer, {"y": writer.history["y"][[0, 2]]})["y"].tolist() == [[0, 2]]
        with raises(
            InvalidArgumentError,
            "the trajectory refers to column `y` at step 1 of this writer (counted from 0 over all episodes), "
            "where it has no value; select only steps with a value",
        ):
            writer.create_item("t", num_steps=2)


def test_a_column_that_never_had_a_value_is_rejected(store):
    with store.writer() as writer:
        writer.append({"x": 1, "y": None})
        with raises(SignatureError, "column `y` of the trajectory has never had a value"):
            writer.create_item("t", trajectory={"y": writer.history["y"][-1:]})


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ({"b": 1}, {"a": 2, "b": 3}, ["a", "b"]),
        ({"b": 1}, {"a": {"c": 2}}, ["a/c", "b"]),
        ([np.array(1)], [np.array(2), np.array(3)], ["0", "1"]),
        ({"a": (np.array(1),)}, {"a": (np.array(2), np.array(3)), "z": [np.array(4)]}, ["a/0", "a/1", "z/0"]),
    ],
)
def test_later_steps_may_add_columns(store, first, second, names):
    with store.writer() as writer:
        for step in (first, second):
            writer.append(step)
        columns, paths, _ = flatten(writer.history)
        assert paths == names
        given = dict(zip(*flatten(second)[1::-1], strict=True))
        for name, value in given.items():
            assert created_item(store, writer, [columns[names.index(name)][-1]])[0].tolist() == [value]


def test_structures_that_do_not_merge_are_rejected(store):
    with store.writer() as writer:
        writer.append({"x": 1})
        text = "steps may add or omit columns, but must keep the nesting of earlier steps, `x`; got"
        with raises(SignatureError, f"{text} `0`"):
            writer.append([np.zeros(1)])
        with raises(SignatureError, f"{text} `x/y`"):
            writer.append({"x": {"y": 1}})


def test_a_later_step_keeps_lists_and_tuples(store):
    Pair = namedtuple("Pair", "a b")  # noqa: PYI024
    parts = [np.zeros(1), np.ones(1)]
    containers = {
        "list": parts,
        "tuple": tuple(parts),
        "deque": deque(parts),
        "dict": {0: parts[0], 1: parts[1]},
        "namedtuple": Pair(*parts),
        "dict of text": {"left": "up", "right": "down"},
    }
    for first, second in itertools.permutations(containers, 2):
        if {first, second} == {"deque", "dict"}:  # both are stored as a dict
            continue
        with case(first, second), store.writer() as writer:
            writer.append({"x": containers[first]})
            for partial_step in (False, True):
                with pytest.raises(SignatureError, match=r"^steps may add or omit columns, but must keep the nesting"):
                    writer.append({"x": containers[second]}, partial_step=partial_step)
            writer.append({"x": containers[first]})


# --- rejected steps ------------------------------------------------------------------------------


def test_nothing_of_a_rejected_step_is_stored(store):
    with store.writer() as writer:
        count_up(writer, 2)
        text = "column `y` must keep its dtype; got float64[2] after float32[2]"
        with raises(SignatureError, text):
            writer.append({"x": 9, "y": np.zeros(2)})
        with raises(SignatureError, text):
            writer.append({"new": 1, "x": 9, "y": np.zeros(2)})
        assert list(writer.history) == ["x", "y"]
        count_up(writer, 1, first=2)
        writer.append({"new": "text", "x": 3, "y": np.zeros(2, np.float32)})
        assert created_item(store, writer, {"x": writer.history["x"][:]})["x"].tolist() == [[0, 1, 2, 3]]


def test_a_history_keeps_its_column_when_the_structure_grows(store):
    with store.writer() as writer:
        writer.append({"b": 1})
        history = writer.history["b"]
        newest = history[-1]
        writer.append({"a": np.zeros(3), "b": 2})
        assert newest.numpy() == 1
        assert (list(history[-1].shape), history[-1].numpy()) == ([], 2)
        data = created_item(store, writer, {"old": newest, "all": history[:]})
        assert (data["old"].tolist(), data["all"].tolist()) == ([1], [[1, 2]])
        with raises(IndexError, "index 2 is out of range for column `b` of `history`, which has 2 steps"):
            history[2]


def test_a_history_without_values_keeps_its_column_when_the_structure_grows(store):
    with store.writer() as writer:
        writer.append({"b": None, "c": 1})
        history = writer.history["b"]
        writer.append({"a": 2, "b": None, "c": 3})
        with raises(SignatureError, "column `x` of the trajectory has never had a value"):
            writer.create_item("t", trajectory={"x": history[-1:]})
        writer.append({"b": 4})
        assert created_item(store, writer, {"x": history[-1:]})["x"].tolist() == [[4]]


def test_a_rejected_first_step_has_no_effect(store):
    with store.writer() as writer:
        for bad in (object(), 2**64, -(2**63) - 1, np.array("2020", "M8[D]")):
            with pytest.raises(SignatureError):
                writer.append({"a": 1, "b": bad})
        writer.append({"a": "text"})
        assert list(writer.history) == ["a"]


def test_a_rejected_step_stores_no_value_of_a_new_column(store):
    with store.writer() as writer:
        writer.append({"m": 1})
        writer.append({"m": np.int64(2)}, partial_step=True)
        with pytest.raises(InvalidArgumentError):
            writer.append({"a": 5, "m": 3})
        writer.append({})
        writer.append({"a": 6, "m": 4})
        history = writer.history
        data = created_item(store, writer, {"a": history["a"][-1], "m": history["m"][:]})
        assert (data["a"].tolist(), data["m"].tolist()) == ([6], [[1, 2, 4]])


def test_create_item_checks_the_signature(open_store):
    signature = {"x": ArraySpec((2,), np.int64), "y": ArraySpec((2, 2), np.float32)}
    store = open_store(Table("t", signature=signature))
    mismatch = "item does not match the signature of table `t`: {}; signature: `x` int64[2], `y` float32[2,2]; item: {}"
    with store.writer() as writer:
        count_up(writer, 3)
        with raises(
            SignatureError,
            mismatch.format("column `x` must be int64[2]; got int64[3]", "`x` int64[3], `y` float32[3,2]"),
        ):
            writer.create_item("t", num_steps=3)
        with raises(SignatureError, mismatch.format("column `y` is missing", "`x` int64[2]")):
            writer.create_item("t", trajectory={"x": writer.history["x"][-2:]})
        assert writer.pending_items == 0
        writer.create_item("t", num_steps=2)
    assert store.info()["t"].size == 1


# --- close -------------------------------------------------------------------------------------


def test_a_closed_writer_raises_and_can_be_closed_again(store):
    writer = store.writer()
    count_up(writer, 1)
    writer.create_item("t", num_steps=1)
    writer.close()
    writer.close()
    assert store.info()["t"].size == 1
    for call in (lambda: count_up(writer, 1), lambda: writer.create_item("t", num_steps=1)):
        with raises(ClosedError, "this writer is closed"):
            call()


def test_dropping_a_writer_with_items_warns(store):
    writer = store.writer()
    count_up(writer, 1)
    writer.create_item("t", num_steps=1)
    text = "^a TrajectoryWriter was garbage-collected with 1 pending item of table `t`, which may be lost"
    with pytest.warns(ResourceWarning, match=text):
        del writer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer = store.writer()
        count_up(writer, 1)
        del writer


def test_a_writer_is_freed_without_the_garbage_collector(store):
    writer = store.writer()
    count_up(writer, 1)
    native = writer._native
    assert len(writer.history["x"]) == 1
    gc.disable()
    try:
        del writer
        assert sys.getrefcount(native) == 2, "only this test still refers to it"
    finally:
        gc.enable()


def test_bad_options_are_rejected(store):
    for options, text in (
        ({"history": 0}, "`history` must be at least 1; got 0"),
        ({"chunk_length": 0}, "`chunk_length` must be at least 1; got 0"),
        ({"max_in_flight_items": 0}, "`max_in_flight_items` must be at least 1; got 0"),
        ({"compression": "zip"}, '`compression` must be "auto", "delta" or "off"; got \'zip\' (str)'),
        ({"compression": True}, '`compression` must be "auto", "delta" or "off"; got True (bool)'),
    ):
        with case(options), raises(InvalidArgumentError, text):
            store.writer(**options)


def test_every_combination_of_history_and_chunk_length_works(store):
    for history in (1, 3, 8):
        for chunk_length in (1, 2, 50):
            with store.writer(history=history, chunk_length=chunk_length, compression="off") as writer:
                count_up(writer, 20)
                data = created_item(store, writer, {"x": writer.history["x"][-history:]})
                assert data["x"].tolist() == [list(range(20 - history, 20))]


def test_arguments_of_wrong_types_are_rejected(store):
    with store.writer() as writer:
        count_up(writer, 2)
        for options, text in (
            ({"table": 1}, "`table` must be a str, the name of a table; got 1 (int)"),
            ({"table": "t", "priority": None}, "`priority` must be a number; got None"),
            ({"table": "t", "num_steps": "two"}, "`num_steps` must be an integer; got 'two' (str)"),
        ):
            with case(options), raises(InvalidArgumentError, text):
                writer.create_item(**{"num_steps": 1, **options})


@pytest.mark.parametrize("base", [engram.TrajectoryWriter, engram.PatternWriter])
def test_a_subclass_can_override_append(store, monkeypatch, base):
    class Doubling(base):
        def append(self, step, *, partial_step=False):
            super().append({"x": 2 * step["x"]}, partial_step=partial_step)

    monkeypatch.setattr(f"engram.table_store.{base.__name__}", Doubling)
    patterns = base is engram.PatternWriter
    with store.pattern_writer([engram.Pattern("t", num_steps=1)]) if patterns else store.writer() as writer:
        writer.append({"x": 3})
        if not patterns:
            writer.create_item("t", num_steps=1)
    assert store.sample("t", 1, timeout=10).data["x"].tolist() == [[6]]
