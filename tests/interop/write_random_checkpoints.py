"""Writes random checkpoints with the real dm-reverb, and what it serves once it has loaded them. Not a test.

python write_random_checkpoints.py DIRECTORY FIRST END: for each seed from FIRST to END - 1, creates
DIRECTORY/<seed>/checkpoints/<time> and DIRECTORY/<seed>/expected.json.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import reverb
import tensorflow as tf
from reverb import structured_writer as sw
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2

SELECTORS = {
    "Uniform": reverb.selectors.Uniform,
    "Prioritized": lambda: reverb.selectors.Prioritized(0.7),
    "Fifo": reverb.selectors.Fifo,
    "Lifo": reverb.selectors.Lifo,
    "MinHeap": reverb.selectors.MinHeap,
    "MaxHeap": reverb.selectors.MaxHeap,
}
STEP = {"x": None, "y": None}


def random_table(rng, name):
    """Returns the arguments of a table, so that a second server can have the same."""
    return {
        "name": name,
        "sampler": rng.choice(list(SELECTORS)),
        "remover": rng.choice(list(SELECTORS)),
        "max_size": rng.choice([3, 20, 50]),
        "max_times_sampled": rng.choice([0, 0, 0, 3]),
    }


def create(table):
    options = {**table, "sampler": SELECTORS[table["sampler"]](), "remover": SELECTORS[table["remover"]]()}
    return reverb.Table(**options, rate_limiter=reverb.rate_limiters.MinSize(1))


def step(width, number):
    return {"x": np.float32(number), "y": np.full(width, number % 100, np.int32)}


def write(rng, client, tables):
    """Writes steps and items with a random kind of writer, which flushes now and then."""
    width, length = rng.choice([1, 50]), rng.randint(1, 8)
    kind = rng.choice([trajectory_writer, structured_writer, legacy_writer])
    writer, create_items = kind(rng, client, tables, length)
    flush_every, episode_every = rng.choice([0, 1, 4, 7]), rng.choice([0, 9, 25])
    for number in range(rng.choice([5, 30, 60])):
        writer.append(step(width, number))
        create_items(number)
        if flush_every and number % flush_every == flush_every - 1:
            writer.flush()
        if episode_every and kind is not legacy_writer and number % episode_every == episode_every - 1:
            writer.end_episode()
    writer.flush()
    return writer


def trajectory_writer(rng, client, tables, length):
    """A writer, and a function that creates items of the newest steps."""
    writer = client.trajectory_writer(num_keep_alive_refs=max(length, 8) + rng.randint(0, 4))
    if rng.random() < 0.5:
        for column in ("x", "y"):
            writer.configure((column,), num_keep_alive_refs=8, max_chunk_length=rng.randint(1, 8))

    def create_items(_):
        if writer.episode_steps < length:
            return
        history = writer.history
        for table in tables:
            if rng.random() < 0.7:
                last = history["y"][-1] if rng.random() < 0.5 else history["y"][-length:]
                writer.create_item(table, rng.randint(0, 5) / 2, {"x": history["x"][-length:], "y": last})

    return writer, create_items


def structured_writer(rng, client, tables, length):  # noqa: ARG001, as the others
    reference = sw.create_reference_step(STEP)
    pattern = {"x": reference["x"][-length:], "y": reference["y"][-1]}
    configs = [sw.create_config(pattern, table, []) for table in tables]
    return client.structured_writer(configs), lambda _: None


def legacy_writer(rng, client, tables, length):
    writer = client.writer(length, chunk_length=rng.randint(1, length), delta_encoded=rng.random() < 0.5)

    def create_items(number):
        for table in tables:
            if number + 1 >= length:
                writer.create_item(table, length, rng.randint(0, 5) / 2)

    return writer, create_items


def change(rng, client, tables):
    """Samples, and changes priorities."""
    for table in tables:
        for _ in range(rng.choice([0, 1, 6])):
            if client.server_info()[table].current_size == 0:
                break
            try:
                [sample] = client.sample(table, 1, emit_timesteps=False)
            except ValueError:  # an item that dm-reverb has stored with a wrong range
                break
            if rng.random() < 0.5:
                client.mutate_priorities(table, {sample.info.key: rng.randint(0, 5) / 2})


def records(path, kind):
    for record in tf.data.TFRecordDataset(str(path), compression_type="ZLIB").as_numpy_iterator():
        yield kind.FromString(record)


def plain(column):
    return {"dtype": column.dtype.name, "shape": column.shape, "data": column.ravel().tolist()}


def served(tables, root):
    """Samples and deletes all items of a server that has loaded the checkpoint: keys and columns by table, in order."""
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = reverb.Server([create(table) for table in tables], checkpointer=checkpointer)
    client = reverb.Client(f"localhost:{server.port}")
    items = {}
    for name, info in client.server_info(10).items():
        items[name] = []
        for _ in range(info.current_size):
            try:
                [sample] = client.sample(name, 1, emit_timesteps=False)
            except ValueError as error:
                items[name].append(str(error))
                break
            items[name].append([sample.info.key, [plain(np.asarray(column)) for column in sample.data]])
            client.mutate_priorities(name, deletes=[sample.info.key])
    server.stop()
    return items


def write_checkpoint(root, seed):
    rng = random.Random(seed)  # noqa: S311, not a secret
    tables = [random_table(rng, name) for name in ("a", "b")[: rng.randint(1, 2)]]
    checkpoints = root / "checkpoints"
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(checkpoints))
    server = reverb.Server([create(table) for table in tables], checkpointer=checkpointer)
    client = reverb.Client(f"localhost:{server.port}")
    names = [table["name"] for table in tables]
    writers = []
    for _ in range(rng.randint(1, 3)):
        writers.append(write(rng, client, names))
        change(rng, client, names)
    checkpoint = Path(client.checkpoint())
    del writers
    server.stop()
    expected = {
        table.table_name: {
            "counts": [
                table.rate_limiter.insert_count,
                table.rate_limiter.sample_count,
                table.rate_limiter.delete_count,
            ],
            "unique": table.num_unique_samples,
            "sampler": next(each["sampler"] for each in tables if each["name"] == table.table_name),
            "items": {},
        }
        for table in records(checkpoint / "tables.tfrecord", checkpoint_pb2.PriorityTableCheckpoint)
    }
    for item in records(checkpoint / "items.tfrecord", schema_pb2.PrioritizedItem):
        expected[item.table]["items"][item.key] = [item.priority, item.times_sampled]
    for name, items in served(tables, checkpoints).items():
        expected[name]["served"] = items
    (root / "expected.json").write_text(json.dumps(expected))


def main():
    root, first, end = Path(sys.argv[1]), *map(int, sys.argv[2:])
    for seed in range(first, end):
        (root / str(seed)).mkdir(parents=True)
        write_checkpoint(root / str(seed), seed)


main()
