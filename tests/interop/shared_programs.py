"""Programs whose observations must be the same at Engram's server and at dm-reverb's. Each returns its observations."""

import threading
import time

import numpy as np
import reverb
import tensorflow as tf
import tree
from observations import info, outcome, plain, sample_items, sample_observations


def program(function):
    """Marks a program: test_same_as_reverb.py searches this file for the decorator."""
    return function


def every_type():
    """Arrays and numbers of each type, among them extreme values."""
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    arrays = [
        (np.arange(6).reshape(2, 3) % 2 if name == "bool" else np.arange(6).reshape(2, 3)) for name in names.split()
    ]
    arrays = [array.astype(name) for array, name in zip(arrays, names.split(), strict=True)]
    extreme = [np.array([np.nan, -np.inf, 0.0]), np.array(np.iinfo(np.int64).min), np.array(2**64 - 1, np.uint64)]
    return [*arrays, *extreme, np.zeros((0, 4), np.float32), np.float32(7), 3, 2.5, True]


@program
def types(address):
    client = reverb.Client(address)
    client.insert(every_type(), {"types": 1.5})
    client.insert(every_type(), {"types": 2.5})
    return [sample_observations(client, "types", 1), sample_items(client, "types", 1)]


@program
def strings(address):
    client = reverb.Client(address)
    steps = [
        [np.array(["a", "bb", ""], object), "text", b"\x00\xff"],
        [np.array(["ccc" * 100, "é", "\x00"], object), "", b""],
    ]
    with client.writer(2) as writer:
        for step in steps:
            writer.append(step)
        writer.create_item("strings", 2, 1.0)
    client.insert([np.zeros((2, 0), object).astype(str), np.array([["x"], ["y"]], object)], {"strings": 1.0})
    return [sample_observations(client, "strings", 1), sample_items(client, "strings", 1)]


@program
def legacy(address):
    client = reverb.Client(address)
    observed = []
    for length in (1, 2, 3, 7):
        for delta in (0, 1):
            table = f"legacy_{length}_{delta}"
            with client.writer(7, delta_encoded=bool(delta), chunk_length=length) as writer:
                for index in range(20):
                    image = (np.arange(48).reshape(4, 4, 3) * index % 251).astype(np.uint8)
                    wide = np.array([[-index, index * 2**40], [2**62, -(2**62)]], np.int64)
                    writer.append([image, np.float32(index), wide, np.array(index, np.int16), index % 3 == 0])
                    for steps in (1, 2, 5, 7):
                        if index + 1 >= steps and index % 2:
                            writer.create_item(table, steps, index + steps / 10)
            # dm-reverb's legacy writer can close before its last item is in the table.
            observed.append(info(client, table, size=35))
            observed.append(sample_items(client, table, 30))
            observed.append(sample_observations(client, table, 4))
    return observed


@program
def trajectory(address):
    client = reverb.Client(address)
    observed = []
    for length in (1, 2, 5):
        table = f"trajectory_{length}"
        with client.trajectory_writer(num_keep_alive_refs=5) as writer:
            for path in (("obs", "image"), ("obs", "scalar"), ("action",), ("text",)):
                writer.configure(path, num_keep_alive_refs=5, max_chunk_length=length)
            for episode in range(2):
                for index in range(9):
                    image = np.full((3, 2), 10 * episode + index, np.uint8)
                    step = {
                        "obs": {"image": image, "scalar": np.float64(index)},
                        "action": np.int32(-index),
                        "text": f"{episode}.{index}",
                    }
                    writer.append(step)
                    history = writer.history
                    if index >= 4:
                        chosen = {
                            "stack": history["obs"]["image"][-4:],
                            "last": history["obs"]["scalar"][-1],
                            "actions": history["action"][-3:],
                            "texts": history["text"][-2:],
                            "text": history["text"][-5],
                        }
                        writer.create_item(table, priority=index + episode, trajectory=chosen)
                writer.end_episode()
            writer.flush()
        observed.append(info(client, table))
        observed.append(sample_items(client, table, 10))
    return observed


@program
def strided(address):
    """dm-reverb's client sends other slices than the caller requested; the server stores what it receives."""
    client = reverb.Client(address)
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        writer.configure(("x",), num_keep_alive_refs=4, max_chunk_length=4)
        for index in range(4):
            writer.append({"x": np.int32(index)})
        writer.create_item("sparse", 1.0, [writer.history["x"][[0, 2]]])
        writer.flush()
        for index in range(4, 8):
            writer.append({"x": np.int32(index)} if index % 2 else {"x": None})
        writer.create_item("sparse", 1.0, [writer.history["x"][-1], writer.history["x"][-3]])
    return sample_items(client, "sparse", 2)


@program
def several_tables(address):
    """Writes items into two tables in turn. The items share chunks."""
    client = reverb.Client(address)
    client.insert([np.arange(3)], {"several_1": 1.0, "several_2": 2.0})
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for index in range(10):
            writer.append([np.float32(index)])
            if index >= 2:
                for table in ("several_1", "several_2"):
                    writer.create_item(table, index, [writer.history[0][-3:]])
            if index == 5:
                writer.flush(block_until_num_items=2)
        writer.flush()
    return [sample_items(client, table, 9) for table in ("several_1", "several_2")]


@program
def partial(address):
    client = reverb.Client(address)
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for index in range(6):
            writer.append({"a": np.int32(index)}, partial_step=True)
            writer.append({"b": np.array([index, index], np.float32)} if index % 2 else {"c": f"c{index}"})
            if index >= 3:
                history = writer.history
                columns = {"a": history["a"][-2:], "b": history["b"][-1 if index % 2 else -2]}
                writer.create_item("partial", 1.0, columns)
        writer.end_episode(clear_buffers=False)
        writer.append({"a": np.int32(6), "b": np.zeros(2, np.float32), "c": "end"})
        writer.create_item("partial", 1.0, {"a": writer.history["a"][-3:]})
    return sample_items(client, "partial", 4)


@program
def structured(address):
    client = reverb.Client(address)
    step = {"x": np.zeros((2,), np.float32), "y": np.int32(0), "s": ""}
    reference = reverb.structured.create_reference_step(step)
    condition = reverb.structured.Condition
    patterns = [
        ({"last": reference["x"][-1], "run": reference["y"][-3:], "s": reference["s"][-2]}, "structured", []),
        ({"first": reference["y"][-2:]}, "structured", [condition.step_index() <= 4, condition.step_index() >= 2]),
        ({"every": reference["y"][-4::2]}, "structured_end", [condition.steps_since_applied() >= 3]),
        ({"all": reference["x"][-3:], "s": reference["s"][-1:]}, "structured_end", [condition.is_end_episode()]),
        ({"odd": reference["y"][-1]}, "structured_end", [condition.data(step)["y"] % 2 == 1]),
    ]
    configs = [reverb.structured.create_config(pattern, table, conditions) for pattern, table, conditions in patterns]
    writer = client.structured_writer(configs)
    for episode in range(2):
        for index in range(8):
            writer.append(
                {"x": np.full(2, index, np.float32), "y": np.int32(index + episode), "s": f"{episode}{index}"}
            )
        writer.end_episode()
    writer.flush()
    counts = [client.server_info(30)[table].current_size for table in ("structured", "structured_end")]
    return [counts, sample_items(client, "structured", counts[0]), sample_items(client, "structured_end", counts[1])]


def fill_steps(client, table, count):
    """Writes items of one step each that fit the signature `STEP`."""
    with client.writer(1) as writer:
        for index in range(count):
            action = (np.int32(index), np.array([True, index % 2 == 0]))
            writer.append({"action": action, "observation": np.full(3, index, np.float32)})
            writer.create_item(table, 1, 1.0)


def fill_sequences(client, table, count):
    """Writes items of different lengths that fit the signature `SEQUENCE`."""
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        for index in range(count):
            writer.append({"action": [np.int32(index)], "observation": np.full(3, index, np.float32)})
            length = index % 4 + 1
            columns = tree.map_structure(lambda column, length=length: column[-length:], writer.history)
            if index >= 3:
                writer.create_item(table, float(index), columns)


def read_elements(dataset, count):
    """Returns infos without keys, and data, of the first elements."""
    elements = []
    for element in dataset.take(count):
        info = element.info
        facts = (info.probability, info.table_size, info.priority, info.times_sampled)
        elements.append((plain(list(facts)), plain(element.data)))
    return elements


@program
def timestep_dataset(address):
    client = reverb.Client(address)
    fill_steps(client, "steps", 1)
    dataset = reverb.TimestepDataset.from_table_signature(address, "steps", max_in_flight_samples_per_worker=3)
    unpacked = sample_observations(client, "steps", 2, unpack_as_table_signature=True)
    return [str(dataset.element_spec), read_elements(dataset, 5)[0][1], unpacked[0][2]]


@program
def trajectory_dataset(address):
    client = reverb.Client(address)
    fill_sequences(client, "sequences", 4)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "sequences", max_in_flight_samples_per_worker=10, max_samples=20, num_workers_per_iterator=2
    )
    elements = read_elements(dataset, 100)
    return [str(dataset.element_spec), len(elements), elements[0][1]]


@program
def dataset_timeout(address):
    client = reverb.Client(address)
    fill_sequences(client, "timeout", 10)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "timeout", max_in_flight_samples_per_worker=2, rate_limiter_timeout_ms=200
    )
    return read_elements(dataset, 100)


@program
def signatures(address):
    client = reverb.Client(address)
    names = ("steps", "sequences", "odd", "types")
    return [repr(client.server_info(30)[name].signature) for name in names]


@program
def infos(address):
    client = reverb.Client(address)
    names = ("weighted", "lowest", "thrice", "uniform", "mutated")
    for index in range(7):
        client.insert([np.float32(index)], {name: float(index) for name in names})
    for name in names[1:3]:
        list(client.sample(name, 4))
    return [info(client, name) for name in names]


@program
def mutate(address):
    client = reverb.Client(address)
    client.reset("mutated")
    for index in range(8):
        client.insert([np.int32(index)], {"mutated": float(index)})
    observed = [info(client, "mutated"), sample_items(client, "mutated", 2)]
    (best,) = next(client.sample("mutated", 1))
    client.mutate_priorities("mutated", updates={best.info.key: -5.0, 2**64 - 2: 3.0})
    observed.append(sample_items(client, "mutated", 1))
    (best,) = next(client.sample("mutated", 1))
    client.mutate_priorities("mutated", updates={best.info.key: 1.0}, deletes=[best.info.key, 12345])
    observed.append(sample_items(client, "mutated", 1))
    client.mutate_priorities("mutated")
    return [*observed, info(client, "mutated")]


@program
def reset(address):
    client = reverb.Client(address)
    for index in range(3):
        client.insert([np.int32(index)], {"reset": 1.0})
    sample_items(client, "reset", 2)
    observed = [info(client, "reset")]
    client.reset("reset")
    observed.append(info(client, "reset"))
    client.insert([np.int32(9)], {"reset": 1.0})
    return [*observed, sample_items(client, "reset", 1), info(client, "reset")]


@program
def blocked(address):
    """A full queue blocks its writer until items are sampled."""
    client = reverb.Client(address)
    done = []

    def write():
        with client.writer(1) as writer:
            for index in range(12):
                writer.append([np.int32(index)])
                writer.create_item("blocked", 1, 1.0)
        done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    end = time.monotonic() + 20
    while client.server_info(30)["blocked"].current_size < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    observed = [bool(done), client.server_info(30)["blocked"].current_size]
    values = [int(sample[2][0][0][0]) for sample in sample_items(client, "blocked", 12)]
    thread.join(30)
    return [*observed, bool(done), values]


@program
def large(address):
    """Chunks of tens of MiB, compressible and not."""
    client = reverb.Client(address)
    noise = np.random.default_rng(1).integers(0, 255, (30 << 20,), np.uint8)
    with client.writer(2) as writer:
        for array in (noise, np.zeros_like(noise)):
            writer.append([array])
            writer.create_item("large", 1, 1.0)
        writer.create_item("large", 2, 1.0)
    samples = sample_items(client, "large", 3)
    return [[(data.shape, int(data.sum(dtype=np.int64))) for data in sample[2][0]] for sample in samples]


@program
def repeated(address):
    """Many samples over one stream, in separate messages."""
    client = reverb.Client(address)
    for index in range(3):
        client.insert([np.full((1000,), index)], {"repeated": float(index)})
    dataset = reverb.TrajectoryDataset(
        address,
        "repeated",
        [tf.int64],
        [tf.TensorShape([1, 1000])],
        max_in_flight_samples_per_worker=500,
        max_samples=3000,
    )
    elements = list(dataset)
    return [len(elements), {float(element.info.priority) for element in elements}, int(elements[-1].info.times_sampled)]


@program
def errors(address):
    client = reverb.Client(address)
    step = {"action": (np.int32(1), np.zeros(2, bool)), "observation": np.zeros(3, np.float32)}

    def write(change):
        with client.writer(1) as writer:
            writer.append({**step, **change})
            writer.create_item("errors", 1, 1.0)

    def create(change, table="errors"):
        with client.trajectory_writer(1) as writer:
            writer.append({**step, **change})
            writer.create_item(table, 1.0, tree.map_structure(lambda column: column[:], writer.history))

    def create_without_validation():
        with client.trajectory_writer(1, validate_items=False) as writer:
            writer.append(step)
            writer.create_item("nowhere", 1.0, tree.map_structure(lambda column: column[:], writer.history))
            writer.flush()

    wrong = {"observation": np.zeros(4, np.float32)}
    calls = [
        lambda: list(client.sample("nowhere", 1)),
        lambda: client.mutate_priorities("nowhere", {1: 1.0}),
        lambda: client.reset("nowhere"),
        lambda: client.insert([1], {"nowhere": 1.0}),
        lambda: write({}),
        lambda: write(wrong),
        lambda: create(wrong),
        lambda: create({}, "nowhere"),
        lambda: create({}),
        create_without_validation,
        lambda: next(client.sample("errors", 1, unpack_as_table_signature=True))[0].data["action"],
        lambda: next(iter(reverb.TrajectoryDataset(address, "nowhere", [tf.int32], [[]], 1))),
        lambda: reverb.TimestepDataset.from_table_signature(address, "types", 1),
    ]
    return [outcome(call, address) for call in calls]


@program
def tf_client(address):
    """All calls of `TFClient`."""
    client = reverb.TFClient(address)
    step = [tf.constant([1.5, 2.5]), tf.constant(7)]
    client.insert(step, tf.constant(["graph"]), tf.constant([3.0], tf.float64))
    first = client.sample("graph", [tf.float32, tf.int32])
    key = tf.reshape(first.info.key, [1])
    client.update_priorities("graph", key, tf.constant([4.0], tf.float64))
    again = client.sample("graph", [tf.float32, tf.int32])
    return [(sample.info.priority.numpy(), plain(sample.data)) for sample in (first, again)]


@program
def threads(address):
    """Concurrent writers and readers of one table."""
    client = reverb.Client(address)

    def write(writer_number):
        with client.trajectory_writer(2) as writer:
            for index in range(100):
                writer.append([np.int32(writer_number * 1000 + index)])
                if index:
                    writer.create_item("several_1", 1.0, [writer.history[0][-2:]])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in writers:
        thread.start()
    pairs = [tuple(sample[2][0][0].tolist()) for sample in sample_items(client, "several_1", 4 * 99)]
    for thread in writers:
        thread.join(30)
    return sorted(pairs)
