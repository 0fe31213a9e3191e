"""Writes a checkpoint with the real dm-reverb, and its content as JSON. Needs dm-reverb; not a test.

python write_checkpoint.py DIRECTORY: creates DIRECTORY/checkpoints/<time> and DIRECTORY/expected.json.
"""

import json
import sys
from pathlib import Path

import numpy as np
import reverb
import tensorflow as tf
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from tensorflow.python.framework import tensor_spec


def tables():
    signature = {"obs": tf.TensorSpec([None, 2], tf.float32, "o"), "act": tf.TensorSpec([None], tf.int64)}
    bounded = [bounded_spec([], tf.float32, -1.5, 2.5), (bounded_spec([2], tf.uint8, [0, 1], [3, 4]),)]
    few = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 20.0)
    return [
        reverb.Table(
            "uniform",
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            1000,
            reverb.rate_limiters.MinSize(1),
            signature=signature,
        ),
        reverb.Table(
            "few", reverb.selectors.Prioritized(0.8), reverb.selectors.MinHeap(), 50, few, max_times_sampled=5
        ),
        reverb.Table.queue("queue", 30),
        reverb.Table(
            "empty",
            reverb.selectors.MaxHeap(),
            reverb.selectors.Lifo(),
            7,
            reverb.rate_limiters.MinSize(2),
            max_times_sampled=-3,
            signature=bounded,
        ),
    ]


def bounded_spec(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high)


def fill(client):
    rng = np.random.default_rng(0)
    with client.trajectory_writer(6) as writer:
        for episode in range(3):
            for step in range(8):
                obs = rng.normal(size=2).astype(np.float32)
                writer.append({"obs": obs, "act": np.int64(episode * 100 + step)})
                history = writer.history
                if step >= 2:
                    item = {"obs": history["obs"][-3:], "act": history["act"][-2:]}
                    writer.create_item("uniform", float(step), item)
                if step % 2:
                    writer.create_item("queue", 1.0, {"x": history["act"][-1], "y": history["obs"][-2:]})
            writer.end_episode()
    with client.writer(max_sequence_length=4, delta_encoded=True, chunk_length=3) as writer:
        for step in range(14):
            text = np.array([str(step), f"é{step}"], dtype=object)
            writer.append((np.full((3, 2), step * 37 % 256, np.uint8), text, np.float64(step)))
            if step >= 3:
                writer.create_item("few", 4, 0.5 + step)
    for name, count in (("uniform", 7), ("few", 9), ("queue", 2)):
        for sample in client.sample(name, count, emit_timesteps=False):
            if name == "few":
                client.mutate_priorities("few", {sample.info.key: 9.25})


def plain(column):
    data = column.ravel().tolist()
    if column.dtype == object:
        return {"dtype": "string", "shape": column.shape, "data": [value.decode() for value in data]}
    return {"dtype": column.dtype.name, "shape": column.shape, "data": data}


def records(path, kind):
    for record in tf.data.TFRecordDataset(str(path), compression_type="ZLIB").as_numpy_iterator():
        yield kind.FromString(record)


def content(checkpoint):
    """Returns the columns of each item by key, sampled from a dm-reverb server that loaded the checkpoint."""
    server = reverb.Server(tables(), checkpointer=reverb.checkpointers.DefaultCheckpointer(str(checkpoint.parent)))
    client = reverb.Client(f"localhost:{server.port}")
    columns = {}
    for name, info in client.server_info(10).items():
        columns[name] = {}
        while len(columns[name]) < info.current_size and len(columns[name]) < 1000:
            if name == "few":  # avoids repeated samples, which its rate limiter would block
                client.mutate_priorities(name, dict.fromkeys(set(columns[name]), 0.0))
            sample = next(client.sample(name, 1, emit_timesteps=False))
            columns[name][sample.info.key] = [plain(np.asarray(column)) for column in sample.data]
    server.stop()
    return columns


def main():
    root = Path(sys.argv[1])
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root / "checkpoints"))
    server = reverb.Server(tables(), checkpointer=checkpointer)
    client = reverb.Client(f"localhost:{server.port}")
    fill(client)
    checkpoint = Path(client.checkpoint())
    server.stop()
    columns = content(checkpoint)
    expected = {}
    for table in records(checkpoint / "tables.tfrecord", checkpoint_pb2.PriorityTableCheckpoint):
        limiter = table.rate_limiter
        expected[table.table_name] = {
            "counts": [limiter.insert_count, limiter.sample_count, limiter.delete_count],
            "unique": table.num_unique_samples,
            "items": [],
        }
    for item in records(checkpoint / "items.tfrecord", schema_pb2.PrioritizedItem):
        expected[item.table]["items"].append(
            {
                "key": item.key,
                "priority": item.priority,
                "times_sampled": item.times_sampled,
                "columns": columns[item.table][item.key],
            }
        )
    (root / "expected.json").write_text(json.dumps(expected))


main()
