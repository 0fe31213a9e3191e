"""Programs that run against Engram's server only."""

import numpy as np
import reverb
import tensorflow as tf
from observations import outcome, sample_items


def read_three(address):
    return sample_items(reverb.Client(address), "table", 3)


def write_pairs(address):
    client = reverb.Client(address)
    with client.trajectory_writer(2) as writer:
        for index in range(2):
            writer.append({"x": np.full(2, index, np.float32), "y": np.int64(index)})
        columns = {"x": writer.history["x"][:], "y": writer.history["y"][-1]}
        for table in ("table", "pairs"):
            writer.create_item(table, 1.0, columns)


def write_pair(address):
    with reverb.Client(address).trajectory_writer(1) as writer:
        writer.append([np.zeros(2, np.float32), np.int64(1)])
        writer.create_item("pairs", 1.0, [writer.history[0][:], writer.history[1][-1]])


def signature_of_pairs(address):
    tables = reverb.Client(address).server_info(30)
    assert tables["table"].signature is None
    return sorted((key, repr(spec)) for key, spec in tables["pairs"].signature.items())


def read_small_floats(address):
    dataset = reverb.TrajectoryDataset(address, "bfloat16", [tf.bfloat16], [tf.TensorShape([2])], 1)
    values = [tf.cast(element.data[0], tf.float32).numpy().tolist() for element in dataset.take(1)]
    return [values[0], outcome(lambda: sample_items(reverb.Client(address), "float8", 1))]


def sample_one(address):
    return outcome(lambda: sample_items(reverb.Client(address), "table", 1))


def bad_priorities(address):
    client = reverb.Client(address)
    client.insert([np.int32(1)], {"table": 1.0})
    key = next(client.sample("table", 1))[0].info.key

    def insert(priority):
        with client.trajectory_writer(1) as writer:
            writer.append([np.int32(2)])
            writer.create_item("table", priority, [writer.history[0][:]])

    def mutate(priority):
        client.mutate_priorities("table", updates={key: 5.0, 12345: priority}, deletes=[key])

    outcomes = [outcome(lambda: call(bad)) for bad in (-1.0, np.inf) for call in (insert, mutate)]  # noqa: B023, called at once
    return [*outcomes, [sample[1][2] for sample in sample_items(client, "table", 2)]]


def one_step_twice(address):
    """Creates an item that has the last step twice.

    dm-reverb's writer sends it as a slice that extends beyond the chunk.
    """

    def write():
        with reverb.Client(address).trajectory_writer(4) as writer:
            writer.configure((0,), num_keep_alive_refs=4, max_chunk_length=4)
            for index in range(4):
                writer.append([np.int32(index)])
            writer.create_item("table", 1.0, [writer.history[0][[3, 3]]])

    return outcome(write)


def write_mismatching_item(address):
    client = reverb.Client(address)

    def write():
        with client.trajectory_writer(1, validate_items=False) as writer:
            writer.append([np.zeros(3, np.float32), np.int64(1)])
            writer.create_item("pairs", 1.0, [writer.history[0][:], writer.history[1][-1]])

    return outcome(write)


def insert_steps(address):
    client = reverb.Client(address)
    for step in range(2):
        client.insert({"x": np.full(2, step, np.float32), "y": np.int64(step)}, {"pairs": 1.0})


def write_two_steps(address):
    def write():
        with reverb.Client(address).trajectory_writer(2, validate_items=False) as writer:
            for step in range(2):
                writer.append({"x": np.full(2, step, np.float32), "y": np.int64(step)})
            writer.create_item("pairs", 1.0, {"x": writer.history["x"][:], "y": writer.history["y"][:]})

    return outcome(write)


def datasets_of_pairs(address):
    """Returns the outcomes of reading two elements from each of three datasets.

    The first two use the specs of the table's signature: a `TimestepDataset` and a `TrajectoryDataset`. The third is a
    `TimestepDataset` with specs of single steps; only its number of elements is returned.
    """

    def read(dataset):
        dataset = dataset.from_table_signature(address, "pairs", 1, max_samples=2)
        return [{key: value.numpy().tolist() for key, value in element.data.items()} for element in dataset]

    def read_steps():
        dtypes, shapes = {"x": tf.float32, "y": tf.int64}, {"x": tf.TensorShape([2]), "y": tf.TensorShape([])}
        return len(list(reverb.TimestepDataset(address, "pairs", dtypes, shapes, 1, max_samples=2)))

    calls = (lambda: read(reverb.TimestepDataset), lambda: read(reverb.TrajectoryDataset), read_steps)
    return [outcome(call) for call in calls]


def write_five_into_a_queue(address):
    with reverb.Client(address).trajectory_writer(1) as writer:
        for index in range(5):
            writer.append([np.int32(index)])
            writer.create_item("queue", 1.0, [writer.history[0][-1]])
        writer.flush()
    return "flushed"


def checkpoint(address):
    client = reverb.Client(address)
    client.insert([np.int32(1)], {"table": 1.0})
    return outcome(client.checkpoint)


WRITERS = []  # the writer that `write_first` opens and `write_second` closes


def write_first(address):
    WRITERS[:] = [reverb.Client(address).trajectory_writer(1)]
    write_ten()


def write_second(address):
    write_ten()
    size = reverb.Client(address).server_info(30)["table"].current_size
    WRITERS.pop().close()
    return size


def write_ten():
    """Writes ten items and waits until they are in the table."""
    for index in range(10):
        WRITERS[0].append([np.int32(index)])
        WRITERS[0].create_item("table", 1.0, [WRITERS[0].history[0][-1:]])
    WRITERS[0].flush()
