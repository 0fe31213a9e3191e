"""Programs that are run at one server alone: Engram's, and the last of them dm-reverb's."""

import numpy as np
import reverb
import tensorflow as tf
from random_writers import PROGRAMS, outcomes
from seen import outcome, whole


def read_three(address):
    return whole(reverb.Client(address), "table", 3)


def write_pairs(address):
    client = reverb.Client(address)
    with client.trajectory_writer(2) as writer:
        for at in range(2):
            writer.append({"x": np.full(2, at, np.float32), "y": np.int64(at)})
        columns = {"x": writer.history["x"][:], "y": writer.history["y"][-1]}
        for table in ("table", "pairs"):
            writer.create_item(table, 1.0, columns)


def signature_of_pairs(address):
    tables = reverb.Client(address).server_info(30)
    assert tables["table"].signature is None
    return sorted((key, repr(spec)) for key, spec in tables["pairs"].signature.items())


def read_few_bits(address):
    dataset = reverb.TrajectoryDataset(address, "bfloat16", [tf.bfloat16], [tf.TensorShape([2])], 1)
    values = [tf.cast(element.data[0], tf.float32).numpy().tolist() for element in dataset.take(1)]
    return [values[0], outcome(lambda: whole(reverb.Client(address), "float8", 1))]


def sample_one(address):
    return outcome(lambda: whole(reverb.Client(address), "table", 1))


def bad_priorities(address):
    client = reverb.Client(address)
    client.insert([np.int32(1)], {"table": 1.0})
    key = next(client.sample("table", 1))[0].info.key

    def insert():
        with client.trajectory_writer(1) as writer:
            writer.append([np.int32(2)])
            writer.create_item("table", -1.0, [writer.history[0][:]])

    def mutate():
        client.mutate_priorities("table", updates={key: 5.0, 12345: -1.0}, deletes=[key])

    return [outcome(insert), outcome(mutate), [sample[1][2] for sample in whole(client, "table", 2)]]


def checkpoint(address):
    client = reverb.Client(address)
    client.insert([np.int32(1)], {"table": 1.0})
    return outcome(client.checkpoint)


WRITERS = []


def write_first(address):
    WRITERS[:] = [reverb.Client(address).trajectory_writer(1)]
    write_ten()


def write_second(address):
    write_ten()
    size = reverb.Client(address).server_info(30)["table"].current_size
    WRITERS.pop().close()
    return size


def write_ten():
    """Writes some items and waits until they are in."""
    for at in range(10):
        WRITERS[0].append([np.int32(at)])
        WRITERS[0].create_item("table", 1.0, [WRITERS[0].history[0][-1:]])
    WRITERS[0].flush()


def random_writers(address):
    client = reverb.Client(address)
    return [outcomes(client, "random", seed) for seed in range(PROGRAMS)]
