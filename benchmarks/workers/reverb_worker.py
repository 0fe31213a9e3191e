"""Reverb's side: a server and its client in one process."""

import itertools
import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb
import tensorflow as tf

from benchmarks.workers import common
from benchmarks.workers.common import Block, Task

TABLE = "replay"
LENGTH = 2  # steps per item

# Best, or within noise of it, on two cores (one run each): flush every 50 ... 1,000 steps, leaving
# 0 ... 1,000 unconfirmed.
FLUSH_EVERY = 100
UNCONFIRMED = 100
# Best, or within noise of it, on two cores that were not always calm (one run each): 64 ... 4,096 in flight,
# 1 ... 8 workers, prefetch 0, 2, 8 and AUTOTUNE, parallel batching, two interleaved datasets (batched inside
# or outside).
IN_FLIGHT = 256
WORKERS = 4
PREFETCH = 2


class InProcess:
    """One server with one table, and its client."""

    def __init__(self, task: Task) -> None:
        """Open the table that `task` wants, empty."""
        shape, dtype = common.OBS[task.step]
        scalars = {"action": tf.int32, "reward": tf.float32, "discount": tf.float32}
        signature = {"obs": tf.TensorSpec((LENGTH, *shape), dtype, "obs")}
        signature |= {name: tf.TensorSpec((LENGTH,), dtype, name) for name, dtype in scalars.items()}
        selectors = reverb.selectors
        table = reverb.Table(
            TABLE,
            sampler=selectors.Prioritized(0.6) if task.prioritized else selectors.Uniform(),
            remover=selectors.Fifo(),
            max_size=task.items,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self.server = reverb.Server([table], port=None)
        self.client = self.server.localhost_client()

    def fill(self, task: Task) -> None:
        """Insert `task.items` items with uneven priorities."""
        stream = itertools.cycle(common.steps(task.step))
        writer = self.client.trajectory_writer(num_keep_alive_refs=LENGTH)
        writer.append(next(stream))
        for i, priority in enumerate(common.priorities(task.items).tolist()):
            writer.append(next(stream))
            last = {name: column[-LENGTH:] for name, column in writer.history.items()}
            writer.create_item(TABLE, priority, last)
            if i % FLUSH_EVERY == 0:
                writer.flush(block_until_num_items=UNCONFIRMED)
        writer.flush()
        writer.close()


def trajectory(task: Task, place: InProcess) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: append, slice every column's history, create the item."""
    stream = itertools.cycle(common.steps(task.step))
    writer = place.client.trajectory_writer(num_keep_alive_refs=LENGTH)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(next(stream))
            last = {name: column[-LENGTH:] for name, column in writer.history.items()}
            writer.create_item(TABLE, 1.0, last)
        writer.flush(block_until_num_items=UNCONFIRMED)  # else its queue grows without bound
        return FLUSH_EVERY

    return block, writer.flush


def structured(task: Task, place: InProcess) -> tuple[Block, Callable[[], object]]:
    """The structured writer: the same items, declared once."""
    stream = itertools.cycle(common.steps(task.step))
    reference = reverb.structured.create_reference_step(next(stream))
    pattern = reverb.structured.pattern_from_transform(
        reference, lambda step: {name: node[-LENGTH:] for name, node in step.items()}
    )
    config = reverb.structured.create_config(pattern=pattern, table=TABLE)
    writer = place.client.structured_writer([config])
    writer.append(next(stream))

    def block() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(next(stream))
        writer.flush(block_until_num_items=UNCONFIRMED, timeout_ms=600_000)
        return FLUSH_EVERY

    return block, lambda: writer.flush(timeout_ms=600_000)


def insert(task: Task) -> float:
    """Steps per second, one item per step."""
    place = InProcess(task)
    block, finish = {"trajectory": trajectory, "structured": structured}[task.variant](task, place)
    return common.rate(block, task.seconds, finish)


def sample(task: Task) -> float:
    """Items per second, by the client's generator (items left unstacked) or the in-process dataset."""
    place = InProcess(task)
    place.fill(task)
    if task.variant == "client":

        def block() -> int:
            items = place.client.sample(TABLE, num_samples=task.batch, emit_timesteps=False)
            return sum(1 for _ in items)

        return common.rate(block, task.seconds)

    dataset = reverb.TrajectoryDataset.from_table_signature(
        place.client.server_address,
        TABLE,
        max_in_flight_samples_per_worker=IN_FLIGHT,
        num_workers_per_iterator=WORKERS,
    )
    batches = iter(dataset.batch(task.batch, drop_remainder=True).prefetch(PREFETCH))
    return common.rate(lambda: int(next(batches).data["obs"].shape[0]), task.seconds)


def update(task: Task) -> float:
    """Calls per second that each give new priorities to `batch` keys; the dicts are made beforehand."""
    place = InProcess(task)
    place.fill(task)
    items = place.client.sample(TABLE, 64 * task.batch, emit_timesteps=False)
    keys = [item.info.key for item in items]
    fresh = common.priorities(task.batch).tolist()
    updates = itertools.cycle(
        dict(zip(keys[i : i + task.batch], fresh, strict=True)) for i in range(0, len(keys), task.batch)
    )

    def block() -> int:
        place.client.mutate_priorities(TABLE, updates=next(updates))
        return 1

    return common.rate(block, task.seconds)


def memory(task: Task) -> float:
    """Resident bytes that one stored item costs, all in."""
    place = InProcess(task)
    common.steps(task.step)
    before = common.rss_bytes()
    place.fill(task)
    return (common.rss_bytes() - before) / task.items


if __name__ == "__main__":
    jobs = {"insert": insert, "sample": sample, "update": update, "memory": memory}
    common.serve(["dm-reverb", "tensorflow", "numpy"], jobs)
