"""`TrajectoryWriter`: valid and invalid steps and items, and use after an error."""

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.compat_tables import items, step, table, tables_sampled_once, writer_with_three_steps
from helpers.support import raises

from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec

SIGNATURE = {"a": TensorSpec([None, 2], np.float32, "n"), "b": TensorSpec([], np.int64)}


class Step(NamedTuple):
    obs: list
    extras: Any


@pytest.fixture
def client():
    with tables_sampled_once(table("signed", signature=SIGNATURE, max_times_sampled=1)) as client:
        yield client


@pytest.fixture
def writer(client):
    return writer_with_three_steps(client)


def still_works(client, writer):
    """Checks that the writer still works: it creates an item of the two steps that are appended here."""
    writer.append(step(6))
    writer.append(step(7))
    history = writer.history
    writer.create_item("t", 1.0, {"x": history["a"][-1:], "y": history["b"][-2:]})
    writer.flush()
    assert items(client)[-1] == [[[7.0, 7.0]], [6, 7]]


# Steps


def test_structures_grow(client):
    writer = client.trajectory_writer(10)
    writer.append({"a": 1})
    writer.append({"a": 2, "deep": {"x": (1.0, None)}})
    writer.append(OrderedDict(deep={"y": "text", "x": [2.0, 3.0]}))
    writer.append({"deep": None, "a": 4})
    history = writer.history
    assert [len(history["a"]), len(history["deep"]["x"][1]), len(history["deep"]["y"])] == [4, 4, 4]
    assert isinstance(history["deep"]["x"], tuple)
    present = [[reference is not None for reference in each] for each in (history["a"], history["deep"]["x"][1])]
    assert present == [[True, True, False, True], [False, False, True, False]]
    writer.create_item("t", 1.0, [history["deep"]["y"][2], history["a"][[0, 3]], history["deep"]["x"][0][1:3]])
    writer.flush()
    assert items(client) == [[b"text", [1, 4], [1.0, 2.0]]]


def test_named_tuples_and_lists_grow(client):
    writer = client.trajectory_writer(10)
    writer.append(Step([1], {"x": 1.0}))
    writer.append(Step([2, 3], {"x": 2.0, "y": 5}))
    history = writer.history
    assert isinstance(history, Step)
    assert [len(each) for each in history.obs] == [2, 2]
    assert history.extras["y"][-1].numpy() == 5
    with raises(
        ValueError,
        "a step has a list at ('extras',), but earlier steps have a dict; steps may add leaves, but must not "
        "change containers",
    ):
        writer.append(Step([4, 5], [6]))
    with pytest.raises(ValueError, match=r"a step has a dict at .'obs', 0., but earlier steps have a leaf"):
        writer.append(Step([{"deeper": 1}], None))
    assert len(history.obs[0]) == 2


def test_other_containers_grow(client):
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Observation:
        pixels: int
        more: dict

    writer = client.trajectory_writer(10)
    writer.append(OrderedDict(o=Observation(1, {"k": 2.0}), a=defaultdict(list, z=1)))
    writer.append(OrderedDict(o=Observation(3, {"k": 4.0, "m": 5}), a=defaultdict(list, z=2, y=3)))
    history = writer.history
    assert (type(history), type(history["o"]), type(history["a"])) == (OrderedDict, Observation, defaultdict)
    columns = history["o"].pixels[:], history["o"].more["m"][1], history["a"]["y"][1], history["a"]["z"][:]
    assert [column.numpy().tolist() for column in columns] == [[1, 3], 5, 3, [1, 2]]


@pytest.mark.parametrize(
    "value",
    [
        True,
        3,
        2.5,
        1 + 2j,
        "text",
        b"bytes\0",
        np.float16(2),
        np.array(["ab", "c"]),
        np.zeros((0, 3)),
        2**63,
        np.array([1, 256], ">i2"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.bool_(1),
        np.uint8(200),
    ],
    ids=repr,
)
def test_values_are_sampled_as_numpy_converts_them(client, value):
    """Values are sampled as NumPy would convert them, text as bytes."""
    writer = client.trajectory_writer(3)
    for _ in range(2):
        writer.append([value])
    expected = np.asarray(value)
    if expected.dtype.kind == "U":
        expected = np.array([each.encode() for each in expected.ravel().tolist()], object).reshape(expected.shape)
    if isinstance(value, bytes):  # NumPy's bytes dtype would drop trailing zero bytes
        expected = np.array(value, object)
    column = writer.history[0][-2:]
    assert (column.shape, column.dtype) == ((2, *expected.shape), expected.dtype.newbyteorder("="))
    writer.create_item("t", 1.0, [column, writer.history[0][-1]])
    writer.flush()
    both, one = next(client.sample("t", emit_timesteps=False)).data
    assert both.dtype == one.dtype == column.dtype
    np.testing.assert_array_equal(both, np.stack([expected, expected]))
    np.testing.assert_array_equal(one, expected)


def test_first_values_set_the_dtype(client, writer):
    """A column that had only None has no dtype; a text column rejects numbers."""
    writer.append({"c": None, "d": "text"})
    writer.append({"c": np.zeros(()), "d": b"bytes"})
    for wrong in (np.zeros(()), 1.0, np.float64(2)):
        with raises(ValueError, "Tensor of wrong dtype provided for column ('d',). Got double but expected string."):
            writer.append({"d": wrong})
    assert writer.history["c"][-1].numpy() == 0.0
    still_works(client, writer)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (
            {"a": np.zeros(2), "b": 1},
            ValueError,
            "Tensor of wrong dtype provided for column ('a',). Got double but expected float.",
        ),
        (
            {"a": np.zeros((2, 3), np.float32)},
            ValueError,
            "Tensor of incompatible shape provided for column ('a',). Got [2,3] which is incompatible with [2].",
        ),
        ({"b": 1.0}, ValueError, "Tensor of wrong dtype provided for column ('b',). Got double but expected int64."),
        ({"new": 1, "b": int}, TypeError, "it contains an object of type type"),
        ({"new": np.datetime64("2020-01-01")}, TypeError, "the dtype datetime64[D] is not supported"),
        ({"a": {"x": 1}}, ValueError, "a step has a dict at ('a',), but earlier steps have a leaf"),
        ([1], ValueError, "a step has a list at the top level, but earlier steps have a dict"),
    ],
    ids=repr,
)
def test_invalid_steps_are_rejected(client, writer, data, error, text):
    with pytest.raises(error) as raised:
        writer.append(data)
    assert text in str(raised.value)
    assert (writer.episode_steps, list(writer.history), len(writer.history["a"])) == (3, ["a", "b"], 3)
    still_works(client, writer)


def test_partial_steps_are_completed_by_later_appends(client, writer):
    writer.append({"b": 3}, partial_step=True)
    history = writer.history
    assert (writer.episode_steps, len(history["a"]), history["b"][-1].numpy()) == (3, 4, 3)
    with pytest.raises(ValueError, match="cannot contain any None"):
        history["a"][-1]
    writer.create_item("t", 1.0, history["b"][-2:])
    with raises(
        ValueError,
        "Field ('b',) has already been set in the active step by previous (partial) append call and thus must be "
        "omitted or set to None but got: 4",
    ):
        writer.append({"b": 4, "new": 1})
    assert "new" not in writer.history
    writer.append({"c": 1}, partial_step=True)
    writer.append({"a": np.zeros(2, np.float32), "b": None})
    assert (writer.episode_steps, history["a"][-1].numpy().tolist()) == (4, [0, 0])
    assert writer.history["c"][-1].numpy() == 1
    still_works(client, writer)


def test_history_needs_a_step(client):
    with raises(RuntimeError, "history cannot be accessed before `append` is called at least once."):
        client.trajectory_writer(1).history  # noqa: B018, a property


# Items


def test_items_may_have_any_slices(client, writer):
    """Strided, reversed and repeated steps are stored as selected."""
    history = writer.history
    b = history["b"]
    for column in (b[::2], b[::-1], b[[2, 0, 0]], b[1], b[-2:], b[:][[0, 2]], b[:][1:], b[1:][0]):
        writer.create_item("t", 1.0, column)
    writer.flush()
    assert [item[0] for item in items(client)] == [[0, 2], [2, 1, 0], [2, 0, 0], 1, [1, 2], [0, 2], [1, 2], 1]


def test_items_are_flattened(client, writer):
    """Nests are flattened in the order of dm-tree."""
    history = writer.history
    writer.create_item("t", 1.0, {"z": history["b"][-1], "y": (history["b"][0], {"x": history["a"][-1]})})
    writer.flush()
    assert items(client) == [[0, [2.0, 2.0], 2]]


@pytest.mark.parametrize(
    ("trajectory", "error", "text"),
    [
        (lambda _: {}, ValueError, "trajectory must not be empty: it has no columns."),
        (lambda h: h["b"][[]], ValueError, "trajectory must not be empty: a column refers to no steps."),
        (lambda h: [h["b"][:], h["a"][2:2]], ValueError, "trajectory must not be empty: a column refers to no steps."),
        (lambda _: [1], TypeError, "All leaves of `trajectory` must be `TrajectoryColumn` but got [1]"),
        (lambda h: [h["b"]], TypeError, None),
        (
            lambda h: reverb.TrajectoryColumn([next(iter(h["a"])), list(h["b"])[1]]),
            ValueError,
            "Error in column 0: Column references tensors with different dtypes: float (index 0) != int64 (index 1).",
        ),
        (
            lambda h: [h["b"][:], reverb.TrajectoryColumn([next(iter(h["b"])), list(h["c"])[-1]])],
            ValueError,
            (
                "Error in column 1: Column references tensors with incompatible shapes: [] (index 0) not compatible "
                "with [2] (index 1)."
            ),
        ),
        (
            lambda h: reverb.TrajectoryColumn([next(iter(h["b"])), list(h["d"])[-1]]),
            ValueError,
            ("Error in column 0: Column mixes values of several columns, or refers to no writer's history."),
        ),
    ],
)
def test_invalid_trajectories_are_rejected(client, writer, trajectory, error, text):
    writer.append({**step(3), "c": np.zeros(2, np.int64), "d": 1})
    with pytest.raises(error) as raised:
        writer.create_item("t", 1.0, trajectory(writer.history))
    assert text is None or str(raised.value) == text
    still_works(client, writer)


def test_invalid_items_are_rejected(client, writer):
    column = writer.history["b"][-1]
    with raises(ValueError, "`priority` must not be nan."):
        writer.create_item("t", float("nan"), column)
    with raises(TypeError, "`priority` must be a number; got 'x' (str)"):
        writer.create_item("t", "x", column)
    with raises(TypeError, "`table` must be text; got 3 (int)"):
        writer.create_item(3, 1.0, column)
    with raises(ValueError, "Unable to create item in table 'nope' since the table could not be found."):
        writer.create_item("nope", 1.0, column)
    with pytest.raises(ValueError, match="priority"):
        writer.create_item("prioritized", -1.0, column)
    other = client.trajectory_writer(1)
    other.append([1])
    with raises(ValueError, "Error in column 0: Column refers to another writer's history."):
        writer.create_item("t", 1.0, other.history[0][-1])
    writer.create_item("t", -1.0, column)
    writer.create_item("t", float("inf"), column)
    still_works(client, writer)


def test_the_first_failed_check_is_reported(writer):
    """Checks are made in the order emptiness, priority, columns, table, which existing code may rely on."""
    nan = float("nan")
    stale = writer.history["b"][0]
    writer.append(step(3))
    writer.append(step(4))
    with pytest.raises(ValueError, match="must not be empty"):
        writer.create_item("nope", nan, {})
    with pytest.raises(ValueError, match="must not be nan"):
        writer.create_item("nope", nan, stale)
    with pytest.raises(ValueError, match="Error in column 0"):
        writer.create_item("nope", 1.0, stale)


def test_references_to_expired_steps_are_rejected(client, writer):
    history, column = writer.history, writer.history["b"][:2]
    assert column.numpy().tolist() == [0, 1]
    for value in (3, 4):
        writer.append(step(value))
    kept = "the history has 5 steps, of which those from index 1 on are kept (num_keep_alive_refs: 4)"
    with raises(ValueError, f"Error in column 1: Column contains expired CellRef: {kept}."):
        writer.create_item("t", 1.0, [history["b"][-1], column])
    with raises(RuntimeError, "Cannot convert TrajectoryColumn with expired data references to numpy array."):
        column.numpy()
    assert [reference.expired for reference in column] == [True, False]
    none = "TrajectoryColumns cannot contain any None data references: ('b',)"
    for index, shown in (
        (slice(3), "[:3]"),
        (0, "[0]"),
        ([1, 0], "[[1, 0]]"),
        (slice(-6, None), "[-6:]"),
        (-6, "[-6]"),
    ):
        with raises(ValueError, f"{none}{shown} selects expired steps, or steps without a value; {kept}."):
            history["b"][index]
    for index in (5, [4, 5]):
        with raises(IndexError, "list index out of range: 5 of a history of 5 steps"):
            history["b"][index]
    assert [len(history["b"][index]) for index in (slice(5, 9), slice(3, 9))] == [0, 2]
    still_works(client, writer)


SIGNED = "0: Tensor<name: 'a/n', dtype: float, shape: [?,2]>, 1: Tensor<name: 'b', dtype: int64, shape: []>"


@pytest.mark.parametrize(
    ("trajectory", "why", "item_text"),
    [
        (
            lambda h: [h["a"][:]],
            "The trajectory has 1 columns but the table signature has 2 columns.",
            "0: Tensor<name: '0', dtype: float, shape: [3,2]>",
        ),
        (
            lambda h: [h["a"][:], h["a"][0]],
            "The table expects column 1 to be a int64 [] tensor but got a float [2] tensor.",
            "0: Tensor<name: '0', dtype: float, shape: [3,2]>, 1: Tensor<name: '1', dtype: float, shape: [2]>",
        ),
        (
            lambda h: [h["a"][0], h["b"][0]],
            "The table expects column 0 to be a float [?,2] tensor but got a float [2] tensor.",
            "0: Tensor<name: '0', dtype: float, shape: [2]>, 1: Tensor<name: '1', dtype: int64, shape: []>",
        ),
    ],
)
def test_items_that_do_not_fit_the_signature_are_rejected(client, writer, trajectory, why, item_text):
    text = (
        "Unable to create item in table 'signed' since the provided trajectory is inconsistent with the table "
        f"signature. {why}\n\nThe table signature is:\n\t{SIGNED}\n\nThe provided trajectory signature is:\n\t"
        f"{item_text}.\n"
    )
    for _ in range(2):
        with raises(ValueError, text):
            writer.create_item("signed", 1.0, trajectory(writer.history))
    still_works(client, writer)
    # Names are not compared.
    writer.create_item("signed", 1.0, {"q": writer.history["b"][1], "p": writer.history["a"][1:3]})
    writer.flush()
    assert items(client, "signed") == [[[[1, 1], [2, 2]], 1]]


def test_a_signature_timeout_other_than_zero_is_ignored(client):
    """In older releases of Reverb, it limited the wait for a signature. 0 disables validation, as it did there."""
    for timeout in (None, 300_000):
        writer = client.trajectory_writer(2, get_signature_timeout_ms=timeout)
        writer.append(["anything"])
        with pytest.raises(ValueError, match="signature"):
            writer.create_item("signed", 1.0, writer.history[0][-1])


@pytest.mark.parametrize("option", [{"validate_items": False}, {"get_signature_timeout_ms": 0}])
def test_without_validation_the_signature_is_not_checked(client, option):
    writer = client.trajectory_writer(2, **option)
    writer.append(["anything"])
    writer.create_item("signed", 1.0, writer.history[0][-1])
    with raises(RuntimeError, "Priority table nope was not found; known tables: `prioritized`, `queue`, `signed`, `t`"):
        writer.create_item("nope", 1.0, writer.history[0][-1])
    writer.flush()
    assert items(client, "signed") == [[b"anything"]]
