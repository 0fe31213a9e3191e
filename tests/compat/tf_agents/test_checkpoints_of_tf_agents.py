"""Checkpoints of TF-Agents' classes restored into Engram's, and the other way round, where TF-Agents is installed."""

import numpy as np
import pytest
from helpers.support import slow_except
from helpers.tf_agents_buffers import batch, data_spec, values

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

L = 4


@pytest.fixture(params=["from TF-Agents", "to TF-Agents"])
def packages(request, tf, replay_buffers):  # noqa: ARG001, needs TensorFlow
    """The package whose objects are saved, and the one whose objects are restored."""
    original = pytest.importorskip("tf_agents.replay_buffers", exc_type=ImportError)
    return (original, replay_buffers) if request.param == "from TF-Agents" else (replay_buffers, original)


def fill(tf, buffer, batch_size, count, *, text=False):
    for number in range(count):
        items = batch(batch_size, number)
        if text:
            items["text"] = np.array([f"{each}" for each in items["b"][0]])
        buffer.add_batch(tf.nest.map_structure(tf.constant, items))


def contents(buffer):
    """All items, the newest id, and the ids of all sequences of one step."""
    drawn = buffer.get_next(60)[1].ids if int(buffer.num_frames()) else np.array([])
    return (values(buffer.gather_all()).tolist(), int(buffer._get_last_id()), set(np.asarray(drawn).tolist()))


@pytest.mark.parametrize("count", slow_except(0, 3, L + 2, of=[0, 1, 3, L, L + 2, 2 * L + 1]))
@pytest.mark.parametrize("batch_size", slow_except(3, of=[1, 3]))
@pytest.mark.parametrize("cleared", [False, True])
def test_buffers(tf, packages, tmp_path, count, batch_size, cleared):  # noqa: PLR0917, pytest's parameters
    """After a restore into a buffer with other items, both have the same, and continue with the same ids."""
    saved, restored = (package.TFUniformReplayBuffer(data_spec(tf), batch_size, L) for package in packages)
    if cleared:
        fill(tf, saved, batch_size, 7)
        saved.clear()
    fill(tf, saved, batch_size, count)
    fill(tf, restored, batch_size, 2)
    path = tf.train.Checkpoint(buffer=saved).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(buffer=restored).restore(path).assert_consumed()
    assert contents(restored) == contents(saved)
    for buffer in (saved, restored):
        fill(tf, buffer, batch_size, 3)
    assert contents(restored) == contents(saved)


@pytest.mark.parametrize("count", [3, L + 2])
def test_buffers_in_a_graph(tf, packages, tmp_path, count):
    found, path = [], None
    for package in packages:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            buffer = package.TFUniformReplayBuffer(data_spec(tf), 2, L)
            items = [tf.nest.map_structure(tf.constant, batch(2, number)) for number in range(count)]
            add = [buffer.add_batch(each) for each in items]
            checkpoint = tf.train.Checkpoint(buffer=buffer)
            gathered = buffer.gather_all(), buffer._get_last_id()
            if path:
                status = checkpoint.restore(path).assert_consumed()
                status.initialize_or_restore(session)
                status.run_restore_ops(session)
            else:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(checkpoint.save_counter.initializer)
                for operation in add:
                    session.run(operation)
                path = checkpoint.save(str(tmp_path / "checkpoint"))
            data, last_id = session.run(gathered)
            found.append((values(data).tolist(), last_id))
    assert found[0] == found[1]
    assert found[0][1] == count - 1


def test_from_a_graph_to_eager_calls(tf, packages, tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saved = packages[0].TFUniformReplayBuffer(data_spec(tf), 2, L)
        add, checkpoint = saved.add_batch(tf.nest.map_structure(tf.constant, batch(2, 5))), tf.train.Checkpoint(b=saved)
        session.run([tf.compat.v1.global_variables_initializer(), checkpoint.save_counter.initializer])
        session.run(add)
        path = checkpoint.save(str(tmp_path / "checkpoint"))
    restored = packages[1].TFUniformReplayBuffer(data_spec(tf), 2, L)
    tf.train.Checkpoint(b=restored).restore(path).assert_consumed()
    assert values(restored.gather_all()).tolist() == [[5], [1005]]


def test_buffers_with_text(tf, packages, tmp_path):
    """Engram has such items in tables, too."""
    spec = data_spec(tf) | {"text": tf.TensorSpec([], tf.string, "a")}
    saved, restored = (package.TFUniformReplayBuffer(spec, 2, L) for package in packages)
    fill(tf, saved, 2, 6, text=True)
    path = tf.train.Checkpoint(buffer=saved).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(buffer=restored).restore(path).assert_consumed()
    assert contents(restored) == contents(saved)
    assert restored.gather_all()["text"].numpy().tolist() == saved.gather_all()["text"].numpy().tolist()


def test_a_checkpointer_of_tf_agents(tf, packages, tmp_path):
    checkpointer = pytest.importorskip("tf_agents.utils.common", exc_type=ImportError).Checkpointer
    saved, restored = (package.TFUniformReplayBuffer(data_spec(tf), 2, L) for package in packages)
    fill(tf, saved, 2, 5)
    checkpointer(str(tmp_path), replay_buffer=saved).save(tf.constant(7))
    checkpointer(str(tmp_path), replay_buffer=restored).initialize_or_restore().assert_consumed()
    assert contents(restored) == contents(saved)


def test_tables(tf, packages, tmp_path):
    spec = [tf.TensorSpec([2], tf.float32, "x"), (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64, "x"))]
    written = [tf.constant([[1.0, 2.0]]), (tf.constant(["a"]), tf.constant([3], tf.int64))]
    saved, restored = (package.table.Table(spec, 3) for package in packages)
    saved.write([1], written)
    path = tf.train.Checkpoint(table=saved).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(table=restored).restore(path).assert_consumed()
    for got, expected in zip(*(tf.nest.flatten(table.read([0, 1])) for table in (restored, saved)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_second_buffer_whose_slots_are_named_as_those_of_the_first(tf, packages, tmp_path):
    """A process with TF-Agents names all slots differently: `x_1` is the first slot of the second buffer here."""
    tf.compat.v1.reset_default_graph()
    slots = [tf.TensorSpec([], tf.int64, "x") for _ in range(2)]
    package, other = packages
    package.TFUniformReplayBuffer(slots[0], 1, 2)
    second = package.TFUniformReplayBuffer(tuple(slots), 1, 2)
    second.add_batch((tf.constant([1], tf.int64), tf.constant([2], tf.int64)))
    path = tf.train.Checkpoint(buffer=second).save(str(tmp_path / "checkpoint"))
    tf.compat.v1.reset_default_graph()
    restored = other.TFUniformReplayBuffer(tuple(slots), 1, 2)
    tf.train.Checkpoint(buffer=restored).restore(path).assert_consumed()
    assert [each.numpy().tolist() for each in restored.gather_all()] == [[[1]], [[2]]]
