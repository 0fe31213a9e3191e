"""Calls in a `tf.function`: their order, loops, results, and the lifetime of buffers."""

import gc
import subprocess
import sys
import weakref

import pytest
from helpers.tf_agents_buffers import BufferModel, batch, data_spec, fill, values

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("create", ["ring", "tables"], indirect=True)
def test_calls_in_a_graph_run_in_order(tf, create):
    buffer = create(tf.TensorSpec([], tf.int64), 1, 10)

    @tf.function
    def call(i):
        buffer.clear()
        buffer.add_batch(i[tf.newaxis])
        first = buffer.num_frames()
        buffer.add_batch(i[tf.newaxis] + 1)
        gathered, drawn = buffer.gather_all(), buffer.get_next(num_steps=2)[0]
        buffer.clear()
        return first, gathered, drawn, buffer.num_frames()

    for i in range(20):
        result = [each.numpy().tolist() for each in call(tf.constant(i, tf.int64))]
        assert result == [1, [[i, i + 1]], [i, i + 1], 0]


def test_a_loop_in_a_graph_adds_items(tf, create):
    """As a driver of TF-Agents does."""
    buffer = create(tf.TensorSpec([], tf.int64), 2, 10)

    @tf.function
    def collect(n):
        for i in tf.range(n, dtype=tf.int64):
            buffer.add_batch(tf.stack([i, -i]))
        return buffer.num_frames()

    assert collect(6) == 12
    assert buffer.gather_all().numpy().tolist() == [[0, 1, 2, 3, 4, 5], [0, -1, -2, -3, -4, -5]]


def test_methods_are_traced_like_functions(tf, create):
    model, buffer = BufferModel(2, 4), create(data_spec(tf), 2, 4)
    add = tf.function(lambda items: [buffer.add_batch(items), None][1])
    for number in range(3):
        add(tf.nest.map_structure(tf.constant, batch(2, number)))
    assert add.experimental_get_tracing_count() == 1
    model.items = [0, 1, 2]
    data, info = tf.function(buffer.get_next)(8)
    assert {(number // 1000, frame) for number, frame in zip(values(data), info.ids.numpy(), strict=True)} <= {
        (segment, frame) for segment in range(2) for frame in range(3)
    }
    assert isinstance(tf.function(buffer.num_frames)(), tf.Tensor)


def test_operations_are_returned_in_a_graph(tf, create):
    buffer = create(data_spec(tf), 2, 4)
    returned = []

    @tf.function
    def call():
        returned.extend([buffer.add_batch(batch(2, 0)), buffer.clear()])

    call()
    assert [isinstance(each, tf.Operation) for each in returned] == [True, True]


def test_a_graph_does_not_keep_a_buffer_alive(tf, create):
    buffer, model = create(data_spec(tf), 1, 4), BufferModel(1, 4)
    fill(buffer, model, 2)
    tf.function(buffer.num_frames)()
    reference = weakref.ref(buffer._storage)
    iterator = iter(buffer.as_dataset(2).prefetch(2))
    next(iterator)
    del buffer, iterator
    gc.collect()
    assert reference() is None


def test_a_graph_of_a_deleted_buffer_raises_an_error(tf, replay_buffers):
    buffer = replay_buffers.TFUniformReplayBuffer(data_spec(tf), 1, 4)
    graph = tf.function(buffer.num_frames).get_concrete_function()
    assert graph() == 0
    del buffer
    gc.collect()
    text = "the replay buffer was deleted; keep a reference to it while its graphs are used"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        graph()


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dataset_keeps_its_buffer_alive(tf, create, deterministic):
    def iterate():
        buffer, model = create(data_spec(tf), 1, 4), BufferModel(1, 4)
        fill(buffer, model, 4)
        return iter(buffer.as_dataset(1, single_deterministic_pass=deterministic).batch(2).prefetch(1))

    iterator = iterate()
    gc.collect()
    for _ in range(2):
        data, _ = next(iterator)
        assert values(data).shape == (2, 1)


PREFETCHES_AT_EXIT = """
import numpy as np, tensorflow as tf
from engram.compat.tf_agents.replay_buffers import TFUniformReplayBuffer
buffer = TFUniformReplayBuffer(tf.TensorSpec([1000], tf.float32), 1, 100)
for _ in range(100):
    buffer.add_batch(np.zeros((1, 1000), np.float32))
iterator = iter(buffer.as_dataset(64, 2, 3).prefetch(1000))
print(next(iterator)[0].shape)
"""


@pytest.mark.slow
def test_a_process_exits_while_a_dataset_prefetches():
    command = [sys.executable, "-c", PREFETCHES_AT_EXIT]
    # On a busy machine, the import of TensorFlow alone takes half a minute.
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, "(64, 2, 1000)\n"), done
