"""Datasets and `TFClient` in graphs: in a session, in TensorFlow 1's mode, in `tf.function` and in `tf.distribute`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.reverb_items import put_items, specs
from helpers.support import BackgroundCall, wait_until

from engram.compat import reverb

pytestmark = pytest.mark.frameworks

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6]
NUM_ELEMENTS = 6


def timesteps(tf, address, **options):
    return reverb.TimestepDataset(address, "t", *specs(tf, ()), 4, **options)


def trajectories(tf, address, **options):
    return reverb.TrajectoryDataset(address, "t", *specs(tf, None), 4, **options)


def sequences(tf, address, **options):
    return reverb.ReplayDataset(address, "t", *specs(tf, None), 4, emit_timesteps=False, **options)


def eagerly(tf, make):
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), each) for each in make().take(NUM_ELEMENTS)]


def in_a_function(tf, make):
    """An eager iterator whose elements are read in a function."""
    iterator = iter(make())
    following = tf.function(lambda iterator: next(iterator), reduce_retracing=True)  # noqa: PLW0108, `next` has no signature
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), following(iterator)) for _ in range(NUM_ELEMENTS)]


def created_in_a_function(tf, make):
    @tf.function
    def read():
        iterator = iter(make())
        return [next(iterator) for _ in range(NUM_ELEMENTS)]

    return tf.nest.map_structure(lambda tensor: tensor.numpy(), read())


def one_shot(tf, make):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        element = make().make_one_shot_iterator().get_next()
        return [session.run(element) for _ in range(NUM_ELEMENTS)]


def initializable(tf, make):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = make().make_initializable_iterator()
        session.run(iterator.initializer)
        element = iterator.get_next()
        return [session.run(element) for _ in range(NUM_ELEMENTS)]


def transformed(tf, make):
    """TensorFlow 1's iterator of a dataset that was transformed with `map`."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        element = make().map(lambda sample: sample).make_one_shot_iterator().get_next()
        return [session.run(element) for _ in range(NUM_ELEMENTS)]


def distributed(tf, make):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: make()))
    read = tf.function(lambda: strategy.run(lambda sample: sample, args=(next(iterator),)))
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), read()) for _ in range(NUM_ELEMENTS)]


MODES = [in_a_function, created_in_a_function, one_shot, initializable, transformed, distributed]


def plain(samples):
    """Elements as lists, without the keys, which are random."""
    return [
        [sample.data["cell"].tolist(), sample.data["item_step"].tolist(), np.ravel(sample.info.priority).tolist()]
        for sample in samples
    ]


# All modes of trajectories, and one mode of each of the others.
KINDS_AND_MODES = [
    pytest.param(kind, mode, marks=[] if kind is trajectories or mode is one_shot else pytest.mark.slow)
    for mode in MODES
    for kind in (timesteps, trajectories, sequences)
]


@pytest.mark.parametrize(("kind", "mode"), KINDS_AND_MODES)
def test_elements_equal_those_of_an_eager_program(tf, kind, mode):
    results = []
    for read in (eagerly, mode):
        with serving(reverb.Table.queue("t", 100)) as (_, client):
            put_items(client, "t", lengths=LENGTHS)
            results.append(plain(read(tf, lambda client=client: kind(tf, client.server_address))))
            if read is distributed:  # it prefetches, so more items are used
                continue
            # Unused items are returned once TensorFlow has deleted the iterator. Three items are
            # used for six steps, which are all steps of two items and two steps of the third.
            left = len(LENGTHS) - (3 if kind is timesteps else NUM_ELEMENTS)
            wait_until(lambda client=client, left=left: client.server_info()["t"].current_size == left)
    assert results[0] == results[1]
    assert len(results[0]) == NUM_ELEMENTS


def test_an_iterator_that_ended_in_a_session_can_be_initialized_again(tf):
    with serving(reverb.Table.queue("t", 100)) as (_, client):
        put_items(client, "t", lengths=[1] * 5)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            dataset = trajectories(tf, client.server_address, rate_limiter_timeout_ms=100)
            iterator = dataset.make_initializable_iterator()
            element = iterator.get_next().data["item_step"]
            item_steps = []
            for num_inserted in (0, 5):
                put_items(client, "t", lengths=[1] * num_inserted)
                session.run(iterator.initializer)
                with pytest.raises(tf.errors.OutOfRangeError):
                    while True:
                        item_steps.append(session.run(element)[0])
        assert item_steps == [0, 1, 2, 3, 4] * 2


def test_a_queue_accepts_inserts_while_a_session_holds_elements(tf):
    """After each batch, the queue can be filled again, although the session still has the batch."""
    queue = serving(reverb.Table.queue("t", 4))
    with queue as (_, client), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        element = timesteps(tf, client.server_address).batch(4).make_one_shot_iterator().get_next()
        item_steps = []
        for _ in range(3):
            BackgroundCall(lambda: put_items(client, "t", lengths=[1] * 4)).result(30)
            item_steps.append(session.run(element).data["item_step"].tolist())
    assert item_steps == [[0, 1, 2, 3]] * 3


def run(code, address):
    """Runs a program in its own process, because its settings apply to the process; returns the JSON that it prints."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code, address], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TENSORFLOW_1_PROGRAM = """
import json, sys
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
from helpers.reverb_items import specs
from engram.compat import reverb

address = sys.argv[1]
dataset = reverb.TrajectoryDataset(address, "t", *specs(tf, None), 4)
client = reverb.TFClient(address)
element = dataset.make_one_shot_iterator().get_next().data["item_step"]
insert = client.insert([tf.constant(1.5)], tf.constant(["u"]), tf.constant([1.0], tf.float64))
sample = client.sample("u", [tf.float32])
with tf.Session() as session:
    item_steps = [session.run(element).tolist() for _ in range(4)]
    session.run(insert)
    sampled = session.run(sample)
print(json.dumps([item_steps, sampled.data[0].item(), sampled.info.priority.item()]))
"""


def test_datasets_and_clients_work_in_the_mode_of_tensorflow_1(tf):  # noqa: ARG001, TensorFlow must be installed
    with serving(reverb.Table.queue("t", 100), table("u")) as (_, client):
        put_items(client, "t", lengths=LENGTHS)
        item_steps, value, priority = run(TENSORFLOW_1_PROGRAM, client.server_address)
        wait_until(lambda: client.server_info()["t"].current_size == len(LENGTHS) - 4)
    assert np.array_equal([each[0] for each in item_steps], [0, 1, 2, 3])
    assert [len(each) for each in item_steps] == LENGTHS[:4]
    assert (value, priority) == (1.5, 1.0)


TWO_REPLICAS_PROGRAM = """
import json, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from helpers.reverb_items import specs
from engram.compat import reverb

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dataset = reverb.TimestepDataset(sys.argv[1], "t", *specs(tf, ()), 4)
batches = []
for batch in strategy.experimental_distribute_dataset(dataset.batch(4).take(2)):
    values = strategy.experimental_local_results(batch.data["item_step"])
    batches.append([value.numpy().tolist() for value in values])
print(json.dumps(batches))
"""


def test_batches_are_split_between_two_replicas(tf):  # noqa: ARG001, TensorFlow must be installed
    with serving(reverb.Table.queue("t", 100)) as (_, client):
        put_items(client, "t", lengths=[1] * 10)
        batches = run(TWO_REPLICAS_PROGRAM, client.server_address)
    assert batches == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_client_calls_work_in_a_session(tf):
    with serving(table(), table("u")) as (_, client), tf.Graph().as_default():
        made = reverb.TFClient(client.server_address)
        insert = made.insert([tf.constant([1.0, 2.0])], tf.constant(["t"]), tf.constant([1.5], tf.float64))
        sample = made.sample("t", [tf.float32])
        update = made.update_priorities("t", sample.info.key[None], tf.constant([7.0], tf.float64))
        unknown = made.sample("nix", [tf.float32])
        with tf.compat.v1.Session() as session:
            session.run(insert)
            assert session.run(sample).data[0].tolist() == [1.0, 2.0]
            session.run(update)
            assert session.run(sample).info.priority == 7.0
            with pytest.raises(tf.errors.NotFoundError, match="Priority table nix was not found; known tables: `t`"):
                session.run(unknown)
