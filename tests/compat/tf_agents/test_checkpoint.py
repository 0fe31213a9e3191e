"""Buffers in a `tf.train.Checkpoint`."""

import re

import numpy as np
import pytest
from helpers.support import slow_except
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
        (
            {"batch_size": 3},
            "the checkpoint is of a replay buffer with batch_size 2; expected 3",
        ),
        (
            {"data_spec": "int32"},
            "the checkpoint is of a replay buffer with columns ['float32[2]', 'int64[]']; expected ['int32[]']",
        ),
    ],
)
def test_a_checkpoint_of_another_buffer_is_rejected(tf, replay_buffers, tmp_path, change, text):
    model, buffer = BufferModel(2, 4), replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 4)
    fill(buffer, model, 2)
    path = tf.train.Checkpoint(buffer=buffer).save(str(tmp_path / "checkpoint"))
    spec = tf.TensorSpec([], change["data_spec"]) if "data_spec" in change else data_spec(tf)
    other = replay_buffers.TFUniformReplayBuffer(spec, change.get("batch_size", 2), 4)
    with pytest.raises(ValueError, match=rf"\A{re.escape(text)}\Z"):
        tf.train.Checkpoint(buffer=other).restore(path)
    assert other.num_frames() == 0


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"no JSON\n", b'["engram"]\n', b'{"format": "engram.compat.tf_agents 2"}\n']
)
def test_other_bytes_are_rejected(tf, replay_buffers, data):
    buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 2, 4)
    with pytest.raises(ValueError, match=r"\Athe checkpoint does not have the content of an Engram replay buffer\Z"):
        buffer._storage.deserialize(data)
