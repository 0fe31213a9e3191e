"""Makes the checkpoint beside it, with the real dm-reverb: `python make.py`, in the environment of `make test-interop`."""

import shutil
import tempfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import reverb
import tensorflow as tf
from reverb.platform.default import checkpointers
from tensorflow.python.framework.tensor_spec import BoundedTensorSpec

HERE = Path(__file__).parent / "dm-reverb-0.14"
Pair = namedtuple("Pair", ["low", "high"])  # noqa: PYI024, its name is part of what is kept
SIGNATURE = {
    "a": tf.TensorSpec([None], tf.int32, "a"),
    "b": [Pair(BoundedTensorSpec([], tf.float32, -1.5, 2, "low"), BoundedTensorSpec([2], tf.uint8, [1, 2], 9)), (), []],
    "c": (tf.TensorSpec(None, tf.string),),
}
selectors = reverb.selectors
root = tempfile.mkdtemp()
tables = [
    reverb.Table("uniform", selectors.Uniform(), selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1)),
    reverb.Table(
        "heap",
        selectors.MaxHeap(),
        selectors.MinHeap(),
        5,
        reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 6.0),
        max_times_sampled=-1,
    ),
    reverb.Table.queue("queue", 10),
    reverb.Table(
        "prioritized", selectors.Prioritized(0.7), selectors.Lifo(), 1000, reverb.rate_limiters.MinSize(2), max_times_sampled=3
    ),
    reverb.Table.stack("signature", 3, signature=SIGNATURE),
]
server = reverb.Server(tables, port=None, checkpointer=checkpointers.DefaultCheckpointer(path=root))
client = server.localhost_client()
with client.trajectory_writer(4) as writer:
    for at in range(8):
        writer.append({"a": np.int32(at), "o": np.full(3, at, np.float32)})
        history = writer.history
        if at >= 3:
            writer.create_item("heap", float(at), {"a": history["a"][-3:], "o": history["o"][-3:]})
            writer.create_item("prioritized", float(at), {"a": history["a"][-1], "o": history["o"][-2:]})
with client.writer(3, delta_encoded=True, chunk_length=2) as writer:
    for at in range(6):
        writer.append([np.full((4, 4), at * 7, np.int64), f"text {at}", at % 2 == 0])
        if at >= 2:
            writer.create_item("queue", 3, 1.0 + at)
            writer.create_item("uniform", 2, 2.0 + at)
for table, count in (("heap", 3), ("queue", 1), ("prioritized", 4), ("uniform", 2)):
    list(client.sample(table, count, emit_timesteps=False))
best = next(client.sample("heap", 1, emit_timesteps=False))
client.mutate_priorities("heap", updates={best.info.key: -1.0})
made = client.checkpoint()
for name, about in sorted(client.server_info().items()):
    limiter = about.rate_limiter_info
    counts = (limiter.insert_stats.completed, limiter.sample_stats.completed, about.num_unique_samples)
    print(name, about.current_size, about.num_episodes, about.max_times_sampled, *counts)  # noqa: T201, for who runs it
server.stop()
shutil.rmtree(HERE, ignore_errors=True)
shutil.copytree(made, HERE)
