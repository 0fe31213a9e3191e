"""`Table`: slots, rows, and buffers whose items are in the tables of a `table_fn`."""

import re
from collections import namedtuple

import numpy as np
import pytest
from helpers.support import raises
from helpers.tf_agents_buffers import batch, data_spec

pytestmark = pytest.mark.frameworks

Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024, untyped


def spec(tf):
    return {
        "x": Pair(tf.TensorSpec([2], tf.float32, "x"), tf.TensorSpec([], tf.int64)),
        "y": (tf.TensorSpec([], tf.string, "x"), tf.TensorSpec([1], tf.bool, "x_1"), tf.TensorSpec([], tf.int32)),
    }


def row(number, axes=()):
    """A row whose values are computed from the number; with these leading axes, from several numbers."""
    numbers = np.arange(number, number + int(np.prod(axes, initial=1))).reshape(axes)
    texts = np.vectorize(lambda each: str(each).encode(), otypes=[object])(numbers)
    first = np.stack([numbers, -numbers], -1).astype(np.float32)
    return {"x": Pair(first, numbers), "y": (texts, numbers[..., np.newaxis] % 2 == 1, numbers.astype(np.int32))}


def assert_same(tf, got, expected):
    tf.nest.assert_same_structure(got, expected)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_slots_have_unique_names(tf, replay_buffers):
    table = replay_buffers.table.Table(spec(tf), 4)
    assert table.slots == {"x": Pair("x", "slot"), "y": ("x_1", "x_1_1", "slot_1")}
    variables = table.variables()
    assert [each.shape.as_list() for each in variables] == [[4, 2], [4], [4], [4, 1], [4]]
    assert [each.name for each in variables] == [
        "Table/x:0",
        "Table/slot:0",
        "Table/x_1:0",
        "Table/x_1_1:0",
        "Table/slot_1:0",
    ]
    assert_same(tf, table.read(3), {"x": Pair(np.zeros(2), 0), "y": (b"", np.array([False]), 0)})


def test_variables_have_the_same_names_in_a_graph(tf, replay_buffers):
    with tf.Graph().as_default():
        names = [each.name for each in replay_buffers.table.Table(spec(tf), 4).variables()]
    assert names == [each.name for each in replay_buffers.table.Table(spec(tf), 4).variables()]
    assert names[0] == "Table/x:0"


@pytest.mark.parametrize("axes", [(), (1,), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("in_graph", [False, True])
def test_rows_are_written_and_read(tf, replay_buffers, axes, in_graph):
    table = replay_buffers.table.Table(spec(tf), 6)
    rows = np.array([4, 0, 3, 2])[: int(np.prod(axes, initial=1))].reshape(axes)
    written = tf.nest.map_structure(tf.constant, row(7, axes))
    if axes == (0,):
        written["y"] = (tf.zeros([0], tf.string), *written["y"][1:])

    def call():
        assert (table.write(rows, written) is None) == (not in_graph)
        return table.read(rows)

    assert_same(tf, (tf.function(call) if in_graph else call)(), written)
    untouched = sorted(set(range(6)) - set(rows.reshape(-1).tolist()))
    assert not np.any(table.read(untouched)["x"].first)


def test_some_slots_are_written_and_read(tf, replay_buffers):
    table = replay_buffers.table.Table(spec(tf), 6)
    table.write([0, 1], [np.array([5, 6]), np.array([[1, 2], [3, 4]], np.float32)], ["slot", "x"])
    read = table.read([1, 0], {"a": "x", "b": ("slot",)})
    assert_same(tf, read, {"a": np.array([[3, 4], [1, 2]]), "b": (np.array([6, 5]),)})
    assert table.read(1, "slot") == 6


def test_a_value_without_the_axes_of_the_rows_is_written_to_each(tf, replay_buffers):
    table = replay_buffers.table.Table(spec(tf), 6)
    table.write([1, 3], row(9))
    for number in (1, 3):
        assert_same(tf, table.read(number), row(9))


def test_errors(tf, replay_buffers):
    table = replay_buffers.table.Table({"a": tf.TensorSpec([2], tf.float32, "a")}, 3)
    for rows in ([3], [-1], [[0, 5]]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            table.read(rows)
        with pytest.raises(tf.errors.InvalidArgumentError):
            table.write(rows, {"a": np.zeros((*np.shape(rows), 2), np.float32)})
    with pytest.raises(tf.errors.InvalidArgumentError):
        table.write([0], {"a": np.zeros((2, 2), np.float32)})
    with raises(ValueError, "slots: unknown slot 'b'; the table has a"):
        table.read(0, "b")
    for values in ({"b": np.ones(2)}, (np.ones(2),)):
        with pytest.raises(ValueError, match="structure"):
            table.write(0, values)
    assert not np.any(table.read([0, 1, 2])["a"])


def test_a_checkpoint_has_the_rows(tf, replay_buffers, tmp_path):
    tables = [replay_buffers.table.Table(spec(tf), 3) for _ in range(2)]
    tables[0].write([1, 2], row(4, (2,)))
    path = tf.train.Checkpoint(table=tables[0]).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(table=tables[1]).restore(path).assert_consumed()
    assert_same(tf, tables[1].read([1, 2]), row(4, (2,)))


# --- as storage of a buffer -----------------------------------------------------------------------


def test_a_table_fn_creates_the_tables_that_have_the_items(tf, replay_buffers):
    created = []

    def table_fn(spec, capacity):
        created.append((spec, capacity, replay_buffers.table.Table(spec, capacity, "Mine")))
        return created[-1][2]

    buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 3, table_fn=table_fn)
    assert buffer.table_fn is table_fn
    assert [each[:2] for each in created] == [(data_spec(tf), 6), (tf.TensorSpec([], tf.int64, "id"), 6)]
    for number in range(4):
        buffer.add_batch(batch(2, number))
    data, ids = (each[2] for each in created)
    assert data.read(range(6))["b"][0].numpy().tolist() == [3, 1, 2, 1003, 1001, 1002]
    assert ids.read(range(6)).numpy().tolist() == [3, 1, 2] * 2
    variables = buffer.variables()
    assert [each.shape.as_list() for each in variables] == [[6, 2], [6], [6], []]
    assert variables[-1] == 3
    assert all(a is b for a, b in zip(variables, [*data.variables(), *ids.variables()], strict=False))
    data.write([0], {"a": np.array([[9, -9]], np.float32), "b": (np.array([9]), ())})
    assert buffer.gather_all()["b"][0].numpy().tolist() == [[1, 2, 9], [1001, 1002, 1003]]


def test_without_a_table_fn_there_are_no_variables(tf, replay_buffers):
    table = replay_buffers.table.Table
    for options in ({}, {"table_fn": table}):
        buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 3, **options)
        assert buffer.table_fn is table
        assert buffer.variables() == []


def test_text_is_stored_in_tables(tf, replay_buffers):
    buffer = replay_buffers.TFUniformReplayBuffer({"text": tf.TensorSpec([], tf.string)}, 2, 3)
    for number in range(4):
        buffer.add_batch({"text": np.array([f"a{number}", f"b{number}"])})
    assert buffer.gather_all()["text"].numpy().tolist() == [[b"a1", b"a2", b"a3"], [b"b1", b"b2", b"b3"]]
    drawn = buffer.get_next(4, 2)[0]["text"].numpy().tolist()
    assert all(sequence[0][:1] == sequence[1][:1] for sequence in drawn)


def test_an_item_whose_data_cannot_be_written_does_not_exist(tf, replay_buffers):
    class FullDiskError(Exception):
        pass

    class Failing(replay_buffers.table.Table):
        def write(self, rows, values, slots=None):
            if "b" in str(self.slots) and failing:
                raise FullDiskError
            return super().write(rows, values, slots)

    failing = False
    buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 3, table_fn=Failing)
    buffer.add_batch(batch(2, 0))
    failing = True
    with pytest.raises(FullDiskError):
        buffer.add_batch(batch(2, 1))
    failing = False
    buffer.add_batch(batch(2, 2))
    assert buffer.gather_all()["b"][0].numpy().tolist() == [[0, 2], [1000, 1002]]


@pytest.mark.parametrize("scope", ["TFUniformReplayBuffer", "mine"])
def test_the_scope_is_the_prefix_of_names(tf, replay_buffers, scope):
    class OtherTable(replay_buffers.table.Table):
        pass

    buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 1, 3, scope, table_fn=OtherTable)
    assert buffer.scope == scope
    assert [re.sub(r"_\d+:", ":", each.name) for each in buffer.variables()] == [
        f"{scope}/Table/a:0",
        f"{scope}/Table/b:0",
        f"{scope}/Table/id:0",
        f"{scope}/last_id:0",
    ]
