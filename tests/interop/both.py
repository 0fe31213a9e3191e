"""Programs that see the same of Engram's server and of dm-reverb's. Each returns what it saw."""

import threading
import time

import numpy as np
import reverb
import tensorflow as tf
import tree
from seen import info, outcome, plain, sampled, whole


def program(function):
    """Marks one for the tests, which look for the word."""
    return function


def every_type():
    """An array of each type."""
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
    return [sampled(client, "types", 1), whole(client, "types", 1)]


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
    return [sampled(client, "strings", 1), whole(client, "strings", 1)]


@program
def legacy(address):
    client = reverb.Client(address)
    seen = []
    for length in (1, 2, 3, 7):
        for delta in (0, 1):
            table = f"legacy_{length}_{delta}"
            with client.writer(7, delta_encoded=bool(delta), chunk_length=length) as writer:
                for at in range(20):
                    image = (np.arange(48).reshape(4, 4, 3) * at % 251).astype(np.uint8)
                    wide = np.array([[-at, at * 2**40], [2**62, -(2**62)]], np.int64)
                    writer.append([image, np.float32(at), wide, np.array(at, np.int16), at % 3 == 0])
                    for steps in (1, 2, 5, 7):
                        if at + 1 >= steps and at % 2:
                            writer.create_item(table, steps, at + steps / 10)
            seen.append(info(client, table))
            seen.append(whole(client, table, 30))
            seen.append(sampled(client, table, 4))
    return seen


@program
def trajectory(address):
    client = reverb.Client(address)
    seen = []
    for length in (1, 2, 5):
        table = f"trajectory_{length}"
        with client.trajectory_writer(num_keep_alive_refs=5) as writer:
            for path in (("obs", "image"), ("obs", "scalar"), ("action",), ("text",)):
                writer.configure(path, num_keep_alive_refs=5, max_chunk_length=length)
            for episode in range(2):
                for at in range(9):
                    image = np.full((3, 2), 10 * episode + at, np.uint8)
                    step = {
                        "obs": {"image": image, "scalar": np.float64(at)},
                        "action": np.int32(-at),
                        "text": f"{episode}.{at}",
                    }
                    writer.append(step)
                    history = writer.history
                    if at >= 4:
                        chosen = {
                            "stack": history["obs"]["image"][-4:],
                            "last": history["obs"]["scalar"][-1],
                            "actions": history["action"][-3:],
                            "texts": history["text"][-2:],
                            "text": history["text"][-5],
                        }
                        writer.create_item(table, priority=at + episode, trajectory=chosen)
                writer.end_episode()
            writer.flush()
        seen.append(info(client, table))
        seen.append(whole(client, table, 10))
    return seen


@program
def strided(address):
    """What is asked for on the wire is stored, be it what was asked of the client or not."""
    client = reverb.Client(address)
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        writer.configure(("x",), num_keep_alive_refs=4, max_chunk_length=4)
        for at in range(4):
            writer.append({"x": np.int32(at)})
        writer.create_item("sparse", 1.0, [writer.history["x"][[0, 2]]])
        writer.flush()
        for at in range(4, 8):
            writer.append({"x": np.int32(at)} if at % 2 else {"x": None})
        writer.create_item("sparse", 1.0, [writer.history["x"][-1], writer.history["x"][-3]])
    return whole(client, "sparse", 2)


@program
def several_tables(address):
    """One item after the other into two tables, sharing chunks."""
    client = reverb.Client(address)
    client.insert([np.arange(3)], {"several_1": 1.0, "several_2": 2.0})
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for at in range(10):
            writer.append([np.float32(at)])
            if at >= 2:
                for table in ("several_1", "several_2"):
                    writer.create_item(table, at, [writer.history[0][-3:]])
            if at == 5:
                writer.flush(block_until_num_items=2)
        writer.flush()
    return [whole(client, table, 9) for table in ("several_1", "several_2")]


@program
def partial(address):
    client = reverb.Client(address)
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for at in range(6):
            writer.append({"a": np.int32(at)}, partial_step=True)
            writer.append({"b": np.array([at, at], np.float32)} if at % 2 else {"c": f"c{at}"})
            if at >= 3:
                history = writer.history
                columns = {"a": history["a"][-2:], "b": history["b"][-1 if at % 2 else -2]}
                writer.create_item("partial", 1.0, columns)
        writer.end_episode(clear_buffers=False)
        writer.append({"a": np.int32(6), "b": np.zeros(2, np.float32), "c": "end"})
        writer.create_item("partial", 1.0, {"a": writer.history["a"][-3:]})
    return whole(client, "partial", 4)


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
        for at in range(8):
            writer.append({"x": np.full(2, at, np.float32), "y": np.int32(at + episode), "s": f"{episode}{at}"})
        writer.end_episode()
    writer.flush()
    counts = [client.server_info(30)[table].current_size for table in ("structured", "structured_end")]
    return [counts, whole(client, "structured", counts[0]), whole(client, "structured_end", counts[1])]


def fill_steps(client, table, count):
    """Items of one step each, as the signature `STEP` says."""
    with client.writer(1) as writer:
        for at in range(count):
            action = (np.int32(at), np.array([True, at % 2 == 0]))
            writer.append({"action": action, "observation": np.full(3, at, np.float32)})
            writer.create_item(table, 1, 1.0)


def fill_sequences(client, table, count):
    """Items of growing lengths, as the signature `SEQUENCE` says."""
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        for at in range(count):
            writer.append({"action": [np.int32(at)], "observation": np.full(3, at, np.float32)})
            some = at % 4 + 1
            columns = tree.map_structure(lambda column, some=some: column[-some:], writer.history)
            if at >= 3:
                writer.create_item(table, float(at), columns)


def taken(dataset, count):
    """Some elements, but for their keys."""
    seen = []
    for element in dataset.take(count):
        about = element.info
        facts = (about.probability, about.table_size, about.priority, about.times_sampled)
        seen.append((plain(list(facts)), plain(element.data)))
    return seen


@program
def timestep_dataset(address):
    client = reverb.Client(address)
    fill_steps(client, "steps", 1)
    dataset = reverb.TimestepDataset.from_table_signature(address, "steps", max_in_flight_samples_per_worker=3)
    unpacked = sampled(client, "steps", 2, unpack_as_table_signature=True)
    return [str(dataset.element_spec), taken(dataset, 5)[0][1], unpacked[0][2]]


@program
def trajectory_dataset(address):
    client = reverb.Client(address)
    fill_sequences(client, "sequences", 4)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "sequences", max_in_flight_samples_per_worker=10, max_samples=20, num_workers_per_iterator=2
    )
    elements = taken(dataset, 100)
    return [str(dataset.element_spec), len(elements), elements[0][1]]


@program
def dataset_timeout(address):
    client = reverb.Client(address)
    fill_sequences(client, "timeout", 10)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "timeout", max_in_flight_samples_per_worker=2, rate_limiter_timeout_ms=200
    )
    return taken(dataset, 100)


@program
def signatures(address):
    client = reverb.Client(address)
    names = ("steps", "sequences", "odd", "types")
    return [repr(client.server_info(30)[name].signature) for name in names]


@program
def infos(address):
    client = reverb.Client(address)
    names = ("weighted", "lowest", "thrice", "uniform", "mutated")
    for at in range(7):
        client.insert([np.float32(at)], {name: float(at) for name in names})
    for name in names[1:3]:
        list(client.sample(name, 4))
    return [info(client, name) for name in names]


@program
def mutate(address):
    client = reverb.Client(address)
    client.reset("mutated")
    for at in range(8):
        client.insert([np.int32(at)], {"mutated": float(at)})
    seen = [info(client, "mutated"), whole(client, "mutated", 2)]
    (best,) = next(client.sample("mutated", 1))
    client.mutate_priorities("mutated", updates={best.info.key: -5.0, 2**64 - 2: 3.0})
    seen.append(whole(client, "mutated", 1))
    (best,) = next(client.sample("mutated", 1))
    client.mutate_priorities("mutated", updates={best.info.key: 1.0}, deletes=[best.info.key, 12345])
    seen.append(whole(client, "mutated", 1))
    client.mutate_priorities("mutated")
    return [*seen, info(client, "mutated")]


@program
def reset(address):
    client = reverb.Client(address)
    for at in range(3):
        client.insert([np.int32(at)], {"reset": 1.0})
    whole(client, "reset", 2)
    seen = [info(client, "reset")]
    client.reset("reset")
    seen.append(info(client, "reset"))
    client.insert([np.int32(9)], {"reset": 1.0})
    return [*seen, whole(client, "reset", 1), info(client, "reset")]


@program
def blocked(address):
    """A full queue holds its writer up until somebody samples."""
    client = reverb.Client(address)
    done = []

    def write():
        with client.writer(1) as writer:
            for at in range(12):
                writer.append([np.int32(at)])
                writer.create_item("blocked", 1, 1.0)
        done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    end = time.monotonic() + 20
    while client.server_info(30)["blocked"].current_size < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    seen = [bool(done), client.server_info(30)["blocked"].current_size]
    values = [int(sample[2][0][0][0]) for sample in whole(client, "blocked", 12)]
    thread.join(30)
    return [*seen, bool(done), values]


@program
def large(address):
    """Chunks of tens of MiB, that do not compress and that do."""
    client = reverb.Client(address)
    noise = np.random.default_rng(1).integers(0, 255, (30 << 20,), np.uint8)
    with client.writer(2) as writer:
        for array in (noise, np.zeros_like(noise)):
            writer.append([array])
            writer.create_item("large", 1, 1.0)
        writer.create_item("large", 2, 1.0)
    samples = whole(client, "large", 3)
    return [[(data.shape, int(data.sum(dtype=np.int64))) for data in sample[2][0]] for sample in samples]


@program
def repeated(address):
    """Many samples over one stream, in messages of their own."""
    client = reverb.Client(address)
    for at in range(3):
        client.insert([np.full((1000,), at)], {"repeated": float(at)})
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

    def beyond():
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
        beyond,
        lambda: next(client.sample("errors", 1, unpack_as_table_signature=True))[0].data["action"],
        lambda: next(iter(reverb.TrajectoryDataset(address, "nowhere", [tf.int32], [[]], 1))),
        lambda: reverb.TimestepDataset.from_table_signature(address, "types", 1),
    ]
    return [outcome(call, address) for call in calls]


@program
def in_a_graph(address):
    """TFClient: operations of TensorFlow's."""
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
    """Writers and readers of one table at once."""
    client = reverb.Client(address)

    def write(who):
        with client.trajectory_writer(2) as writer:
            for at in range(100):
                writer.append([np.int32(who * 1000 + at)])
                if at:
                    writer.create_item("several_1", 1.0, [writer.history[0][-2:]])

    writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in writers:
        thread.start()
    pairs = [tuple(sample[2][0][0].tolist()) for sample in whole(client, "several_1", 4 * 99)]
    for thread in writers:
        thread.join(30)
    return sorted(pairs)
