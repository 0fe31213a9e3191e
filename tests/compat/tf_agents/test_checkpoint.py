"""Buffers in a `tf.train.Checkpoint`."""

import gc
import weakref
from collections import OrderedDict

import numpy as np
import pytest
from helpers.support import raises, slow_except
from helpers.tf_agents_buffers import BufferModel, batch, data_spec, fill, value, values

pytestmark = pytest.mark.frameworks


def contents(buffer):
    """All items, and the ids and rows of a deterministic pass."""
    dataset = buffer.as_dataset(single_deterministic_pass=True)
    return values(buffer.gather_all()).tolist(), [int(info.ids) for _, info in dataset]


@pytest.mark.parametrize("count", slow_except(3, 9, of=[1, 3, 4, 5, 9]))
@pytest.mark.parametrize("added_before", slow_except(6, of=[0, 6]))
@pytest.mark.parametrize("create", ["ring", "tables"], indirect=True)
def test_a_round_trip(tf, create, tmp_path, count, added_before):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    fill(buffer, model, count)
    path = tf.train.Checkpoint(buffer=buffer).save(str(tmp_path / "checkpoint"))
    restored = create(data_spec(tf), 2, 4)
    for number in range(added_before):
        restored.add_batch(batch(2, 100 + number))
    tf.train.Checkpoint(buffer=restored).restore(path).assert_consumed()
    assert contents(restored) == contents(buffer)
    fill(restored, model, 3)  # continues with the ids
    data, info = restored.get_next(100)
    ids = info.ids.numpy().tolist()
    assert set(ids) == set(model.frames)
    for number, frame in zip(values(data).tolist(), ids, strict=True):
        assert number == value(number // 1000, model.items[frame])
    pair = [(int(values(data)), int(info.ids)) for data, info in restored.as_dataset(single_deterministic_pass=True)]
    assert pair == [
        (model.value(segment, frame), segment * 4 + frame) for segment in range(2) for frame in model.frames
    ]


def test_an_empty_buffer_and_one_after_clear(tf, create, tmp_path):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    checkpoint = tf.train.Checkpoint(buffer=buffer)
    empty = checkpoint.save(str(tmp_path / "empty"))
    fill(buffer, model, 6)
    buffer.clear()
    model.clear()
    fill(buffer, model, 1)
    one = checkpoint.save(str(tmp_path / "one"))
    checkpoint.restore(empty)
    assert buffer.num_frames() == 0
    checkpoint.restore(one)
    assert contents(buffer) == ([[6], [1006]], [0, 4])
    assert buffer.get_next(4)[1].ids.numpy().tolist() == [0] * 4


def test_a_checkpoint_may_be_restored_before_the_buffer_exists(tf, create, tmp_path):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    fill(buffer, model, 6)
    path = tf.train.Checkpoint(agent=tf.train.Checkpoint(buffer=buffer)).save(str(tmp_path / "checkpoint"))
    agent = tf.train.Checkpoint()
    tf.train.Checkpoint(agent=agent).restore(path)
    agent.buffer = create(data_spec(tf), 2, 4)
    assert contents(agent.buffer) == contents(buffer)


def test_all_dtypes(tf, create, tmp_path):
    names = ["bool", "int8", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]
    spec = {name: tf.TensorSpec([2], name) for name in names}
    buffers = [create(spec, 1, 3) for _ in range(2)]
    for number in range(4):
        buffers[0].add_batch({name: tf.cast([[number % 2, number]], name) for name in names})
    path = tf.train.Checkpoint(buffer=buffers[0]).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(buffer=buffers[1]).restore(path)
    expected, restored = (buffer.gather_all() for buffer in buffers)
    for name in names:
        np.testing.assert_array_equal(restored[name], expected[name])


def test_a_manager_keeps_checkpoints(tf, create, tmp_path):
    model, buffer = BufferModel(1, 4), create(data_spec(tf), 1, 4)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(buffer=buffer), str(tmp_path), max_to_keep=1)
    for _ in range(2):
        fill(buffer, model, 1)
        manager.save()
    buffer.clear()
    manager.restore_or_initialize()
    assert contents(buffer) == ([[0, 1]], [0, 1])


def test_another_max_length_keeps_the_newest_items(tf, replay_buffers, tmp_path):
    model, buffer = BufferModel(2, 5), replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 5)
    fill(buffer, model, 7)
    path = tf.train.Checkpoint(buffer=buffer).save(str(tmp_path / "checkpoint"))
    for max_length, frames in [(3, [4, 5, 6]), (9, [2, 3, 4, 5, 6])]:
        restored = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, max_length)
        tf.train.Checkpoint(buffer=restored).restore(path)
        if max_length == 3:
            assert values(restored.gather_all())[0].tolist() == frames
            assert set(restored.get_next(50)[1].ids.numpy().tolist()) == set(frames)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 4, "max_length": 2}, "with batch_size 2; expected 4"),
        ({"batch_size": 3}, "with room for 8 items; expected a multiple of `batch_size`, 3"),
        ({"a": [3]}, "whose items have shapes [[2], []]; expected [[3], []]"),
        ({"c": []}, "with another `data_spec`: it lacks column `c`"),
        ({"data_spec": "int32"}, "with another `data_spec`: it lacks the data"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_of_another_buffer_is_rejected(tf, replay_buffers, tmp_path, change, text, count):  # noqa: PLR0917, pytest's parameters
    model, buffer = BufferModel(2, 4), replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 4)
    fill(buffer, model, count)
    path = tf.train.Checkpoint(buffer=buffer).save(str(tmp_path / "checkpoint"))
    sizes = {"batch_size": 2, "max_length": 4} | change
    spec = data_spec(tf) | {name: tf.TensorSpec(sizes.pop(name), tf.float32) for name in ("a", "c") if name in sizes}
    if "data_spec" in sizes:
        spec = tf.TensorSpec([], sizes.pop("data_spec"))
    other = replay_buffers.TFUniformReplayBuffer(spec, **sizes)
    items = [tf.zeros([sizes["batch_size"], *each.shape], each.dtype) for each in tf.nest.flatten(spec)]
    other.add_batch(tf.nest.pack_sequence_as(spec, items))
    with raises(ValueError, f"the checkpoint is of a replay buffer {text}"):
        tf.train.Checkpoint(buffer=other).restore(path)
    assert other.num_frames() == sizes["batch_size"]
    right = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 4)
    tf.train.Checkpoint(buffer=right).restore(path).assert_consumed()
    assert contents(right) == contents(buffer)


def test_a_checkpoint_with_other_dtypes_is_rejected(tf, replay_buffers, tmp_path):
    buffers = [replay_buffers.TFUniformReplayBuffer(tf.TensorSpec([], dtype), 1, 4) for dtype in (tf.int32, tf.float32)]
    buffers[0].add_batch(np.array([5], np.int32))
    path = tf.train.Checkpoint(buffer=buffers[0]).save(str(tmp_path / "checkpoint"))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="expected dtype float does not equal original dtype int32"
    ):
        tf.train.Checkpoint(buffer=buffers[1]).restore(path)
    assert buffers[1].num_frames() == 0


def test_in_a_graph(tf, create, tmp_path):
    """A checkpoint of a session; a graph saves what the buffer has when the session runs."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        buffer = create(data_spec(tf), 2, 4)
        add = buffer.add_batch(tf.nest.map_structure(tf.constant, batch(2, 5)))
        gathered, clear = buffer.gather_all(), buffer.clear()
        checkpoint = tf.train.Checkpoint(buffer=buffer)
        session.run([tf.compat.v1.global_variables_initializer(), checkpoint.save_counter.initializer])
        paths = []
        for _ in range(2):
            session.run(add)
            paths.append(checkpoint.save(str(tmp_path / "checkpoint")))
        session.run(clear)
        for path, expected in zip(paths, ([[5], [1005]], [[5, 5], [1005, 1005]]), strict=True):
            checkpoint.restore(path).assert_consumed().run_restore_ops(session)
            assert values(session.run(gathered)).tolist() == expected
    eager = create(data_spec(tf), 2, 4)
    tf.train.Checkpoint(buffer=eager).restore(paths[1]).assert_consumed()
    assert contents(eager) == ([[5, 5], [1005, 1005]], [0, 1, 4, 5])


def test_an_asynchronous_checkpoint(tf, create, tmp_path):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    checkpoint = tf.train.Checkpoint(buffer=buffer)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for number in range(2):
        fill(buffer, model, 1)
        checkpoint.save(str(tmp_path / "checkpoint"), options=options)
        fill(buffer, model, 2)
        checkpoint.sync()
        restored = create(data_spec(tf), 2, 4)
        tf.train.Checkpoint(buffer=restored).restore(tf.train.latest_checkpoint(str(tmp_path)))
        assert values(restored.gather_all())[0].tolist() == [[0], [0, 1, 2, 3]][number]


def test_the_variables_of_a_checkpoint_are_of_one_moment(tf, replay_buffers):
    """An item that is added while a checkpoint is written is in none of them."""
    model, buffer = BufferModel(1, 3), replay_buffers.TFUniformReplayBuffer(data_spec(tf), 1, 3)
    fill(buffer, model, 1)
    variables = [*buffer._data_table._storage["b"].values(), buffer._id_table._storage, buffer._last_id]
    for expected in ([[0, 0, 0], [0, -1, -1], 0], [[0, 1, 2], [0, 1, 2], 2]):
        saved = [each._serialize_to_tensors()["VARIABLE_VALUE"] for each in (variables[0], *variables[-2:])]
        first = saved[0].tensor
        fill(buffer, model, 2)
        assert [each.numpy().tolist() for each in (first, *(each.tensor for each in saved[1:]))] == expected


def test_structures_that_tensorflow_does_not_track(tf, create, tmp_path):
    """Dicts whose keys are numbers."""

    spec = {0: tf.TensorSpec([], tf.int64), 1: OrderedDict(b=tf.TensorSpec([], tf.int64))}
    buffers = [create(spec, 1, 2) for _ in range(2)]
    buffers[0].add_batch({0: np.array([1]), 1: OrderedDict(b=np.array([2]))})
    path = tf.train.Checkpoint(buffer=buffers[0]).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(buffer=buffers[1]).restore(path).assert_consumed()
    assert [each.numpy().tolist() for each in tf.nest.flatten(buffers[1].gather_all())] == [[[1]], [[2]]]


def test_a_model_with_a_buffer_is_saved_without_its_items(tf, replay_buffers, tmp_path):
    model = tf.Module()
    model.buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 1, 3)
    model.weight = tf.Variable(3.0)
    tf.saved_model.save(model, str(tmp_path))
    assert tf.saved_model.load(str(tmp_path)).weight == 3


def test_a_buffer_is_freed_with_its_last_reference(tf, replay_buffers, tmp_path):
    """Not only when Python collects garbage: its memory may be most of what there is."""
    buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 1, 3)
    tf.train.Checkpoint(buffer=buffer).save(str(tmp_path / "checkpoint"))
    storage = weakref.ref(buffer._storage)
    gc.disable()
    try:
        del buffer
        assert storage() is None
    finally:
        gc.enable()
