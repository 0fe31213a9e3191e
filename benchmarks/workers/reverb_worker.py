"""Reverb's side: a server and its client, in one process or in two."""

import itertools
import operator
import os
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb
import tensorflow as tf

from benchmarks.workers import common, processes, saving
from benchmarks.workers.common import CALLS_UNDER_WAY, ERROR_BUFFER, MIN_SIZE, Answer, Block, Task

TABLE = "replay"

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
# The same for a server in another process (two runs each, calm): 24 ... 1,024 in flight, 1 ... 8 workers.
IN_FLIGHT_REMOTE = 64
WORKERS_REMOTE = 3
# And for sequences: chunks of 5 ... 20 steps, 1 ... 50 items unconfirmed, 16 ... 1,024 in flight, 1 ... 8 workers.
SEQUENCE_CHUNKS = 10
SEQUENCES_UNCONFIRMED = 2
IN_FLIGHT_SEQUENCES = 256
WORKERS_SEQUENCES = 2


def open_table(task: Task) -> reverb.Table:
    """Describe the table that `task` wants."""
    shape, dtype = common.OBS[task.step]
    scalars = {"action": tf.int32, "reward": tf.float32, "discount": tf.float32}
    signature = {"obs": tf.TensorSpec((task.length, *shape), dtype, "obs")}
    signature |= {name: tf.TensorSpec((task.length,), dtype, name) for name, dtype in scalars.items()}
    limiter = reverb.rate_limiters.MinSize(1)
    if task.ratio:
        limiter = reverb.rate_limiters.SampleToInsertRatio(task.ratio, MIN_SIZE, ERROR_BUFFER)
    selectors = reverb.selectors
    return reverb.Table(
        TABLE,
        sampler=selectors.Prioritized(0.6) if task.prioritized else selectors.Uniform(),
        remover=selectors.Fifo(),
        max_size=task.items,
        rate_limiter=limiter,
        signature=signature,
    )


def open_writer(task: Task, client: reverb.Client) -> reverb.TrajectoryWriter:
    """Open a writer whose chunks suit `task`."""
    writer = client.trajectory_writer(num_keep_alive_refs=task.length)
    if task.every > 1:
        for name in ("obs", "action", "reward", "discount"):
            writer.configure((name,), num_keep_alive_refs=task.length, max_chunk_length=SEQUENCE_CHUNKS)
    return writer


class Place:
    """Where the table is: `client` leads to it."""

    def __init__(self, task: Task) -> None:
        """Open the table that `task` wants, empty; or find the one that is there already."""
        self.pid: int | None = None  # of the server, if it is a process of its own
        self.address = task.address
        if not task.remote:
            keeper = reverb.checkpointers.DefaultCheckpointer(task.directory) if task.directory else None
            self.server = reverb.Server([open_table(task)], port=None, checkpointer=keeper)
            self.client = self.server.localhost_client()
            self.address = self.client.server_address
            return
        if not self.address:
            self.child = processes.Child(task, job="server")
            self.pid = self.child.pid
            self.address = self.child.hear()["address"]
        self.client = reverb.Client(self.address)

    def fill(self, task: Task) -> None:
        """Insert `task.items` items with uneven priorities."""
        stream = itertools.cycle(common.steps(task.step))
        writer = open_writer(task, self.client)
        for _ in range(task.length - task.every):
            writer.append(next(stream))
        for i, priority in enumerate(common.priorities(task.items).tolist()):
            for _ in range(task.every):
                writer.append(next(stream))
            last = {name: column[-task.length :] for name, column in writer.history.items()}
            writer.create_item(TABLE, priority, last)
            if i * task.every % FLUSH_EVERY < task.every:
                writer.flush(block_until_num_items=UNCONFIRMED // task.every)
        writer.flush()
        writer.close()


def server(task: Task) -> float:
    """Serve the table until the parent is gone."""
    server = reverb.Server([open_table(task)], port=None)
    processes.stand(f"127.0.0.1:{server.port}")
    return 0.0


def trajectory(task: Task, place: Place) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: append, slice every column's history, create the item."""
    stream = itertools.cycle(common.steps(task.step))
    length, writer = task.length, place.client.trajectory_writer(num_keep_alive_refs=task.length)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(next(stream))
            last = {name: column[-length:] for name, column in writer.history.items()}
            writer.create_item(TABLE, 1.0, last)
        writer.flush(block_until_num_items=UNCONFIRMED)  # else its queue grows without bound
        return FLUSH_EVERY

    return block, writer.flush


def structured(task: Task, place: Place, *, finds_priorities: bool = False) -> tuple[Block, Callable[[], object]]:
    """The structured writer: the same items, declared once."""
    stream = itertools.cycle(common.steps(task.step))
    reference = reverb.structured.create_reference_step(next(stream))
    pattern = reverb.structured.pattern_from_transform(
        reference, lambda step: {name: node[-task.length :] for name, node in step.items()}
    )
    priority = reverb.structured.td_error(0.9, next(stream), operator.itemgetter("reward"))
    config = reverb.structured.create_config(
        pattern=pattern, table=TABLE, priority=priority if finds_priorities else None
    )
    writer = place.client.structured_writer([config])
    writer.append(next(stream))

    def block() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(next(stream))
        writer.flush(block_until_num_items=UNCONFIRMED, timeout_ms=600_000)
        return FLUSH_EVERY

    return block, lambda: writer.flush(timeout_ms=600_000)


def td_errors(task: Task, place: Place) -> tuple[Block, Callable[[], object]]:
    """The structured writer, which finds the priorities in the items, too: rewards stand for TD errors."""
    return structured(task, place, finds_priorities=True)


def sequences(task: Task, place: Place) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: an item of the last `length` steps every so many steps."""
    stream = itertools.cycle(common.steps(task.step))
    writer = open_writer(task, place.client)
    for _ in range(task.length - task.every):
        writer.append(next(stream))

    def block() -> int:
        for _ in range(task.every):
            writer.append(next(stream))
        last = {name: column[-task.length :] for name, column in writer.history.items()}
        writer.create_item(TABLE, 1.0, last)
        writer.flush(block_until_num_items=SEQUENCES_UNCONFIRMED)
        return task.every

    return block, writer.flush


WRITERS = {"trajectory": trajectory, "structured": structured, "td_errors": td_errors, "sequences": sequences}


def insert(task: Task) -> float:
    """Steps per second, all writers together."""
    place = Place(task)
    if task.writers > 1:
        return processes.together(task, place.address)
    block, finish = WRITERS[task.variant](task, place)
    meet = processes.meet if task.child else None
    return common.rate(block, task.seconds, finish, meet, common.until_full(task))


def sampling(task: Task, place: Place) -> Block:
    """Batches, by the client's generator (items left unstacked) or a dataset."""
    if task.variant == "client":
        return lambda: sum(1 for _ in place.client.sample(TABLE, num_samples=task.batch, emit_timesteps=False))
    if task.in_flight:
        return common.few_in_flight(task, tf, reverb.TrajectoryDataset, place.address, TABLE)
    in_flight, workers = (IN_FLIGHT_REMOTE, WORKERS_REMOTE) if task.remote else (IN_FLIGHT, WORKERS)
    if task.every > 1:
        in_flight, workers = IN_FLIGHT_SEQUENCES, WORKERS_SEQUENCES
    dataset = reverb.TrajectoryDataset.from_table_signature(
        place.address, TABLE, max_in_flight_samples_per_worker=in_flight, num_workers_per_iterator=workers
    )
    batches = iter(dataset.batch(task.batch, drop_remainder=True).prefetch(PREFETCH))
    return lambda: int(next(batches).data["obs"].shape[0])


def sample(task: Task) -> float:
    """Items per second."""
    place = Place(task)
    place.fill(task)
    return common.rate(sampling(task, place), task.seconds)


def balance(task: Task) -> float:
    """Samples per second while a writer inserts as fast as the rate limiter lets it."""
    place = Place(task)
    writer = processes.Child(task, job="insert", address=place.address, seconds=common.FOR_EVER)
    writer.hear()
    writer.go()

    def counts() -> tuple[int, int]:
        limiter = place.client.server_info()[TABLE].rate_limiter_info
        return limiter.insert_stats.completed, limiter.sample_stats.completed

    reading = sampling(replace(task, variant="dataset"), place)
    return common.balanced_rate(reading, task.seconds, task.ratio, counts)


def updates_of(task: Task, place: Place, n: int) -> list[dict[int, float]]:
    """Give `n` updates of `batch` keys each."""
    items = place.client.sample(TABLE, n * task.batch, emit_timesteps=False)
    keys = [item.info.key for item in items]
    fresh = common.priorities(task.batch).tolist()
    return [dict(zip(keys[i : i + task.batch], fresh, strict=True)) for i in range(0, len(keys), task.batch)]


def update(task: Task) -> float:
    """Calls per second that each give new priorities to `batch` keys; the dicts are made beforehand."""
    place = Place(task)
    place.fill(task)
    updates = itertools.cycle(updates_of(task, place, 64))

    def block() -> int:
        place.client.mutate_priorities(TABLE, updates=next(updates))
        return 1

    if task.variant == "threads":
        return common.rate_in_threads(CALLS_UNDER_WAY, block, task.seconds)
    return common.rate(block, task.seconds)


def latency(task: Task) -> float:
    """Microseconds of a call that inserts or samples one item or updates a batch, all by itself."""
    place = Place(task)
    place.fill(task)
    client, step = place.client, common.steps(task.step)[0]
    update = updates_of(task, place, 1)[0]
    writer = client.trajectory_writer(num_keep_alive_refs=1)

    def write() -> None:
        writer.append(step)
        writer.create_item(TABLE, 1.0, {name: column[-1:] for name, column in writer.history.items()})
        writer.flush()

    def dataset() -> Callable[[], object]:
        data = reverb.TrajectoryDataset.from_table_signature(
            place.address, TABLE, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1
        )
        return iter(data).__next__

    calls: dict[str, Callable[[], Callable[[], object]]] = {
        "insert": lambda: lambda: client.insert(step, {TABLE: 1.0}),
        "writer": lambda: write,
        "sample": lambda: lambda: list(client.sample(TABLE, 1, emit_timesteps=False)),
        "generator": lambda: client.sample(TABLE, 2**31 - 1, emit_timesteps=False).__next__,
        "dataset": dataset,
        "update": lambda: lambda: client.mutate_priorities(TABLE, updates=update),
    }
    return common.latency(calls[task.variant](), task.seconds, task.percentile)


def memory(task: Task) -> float:
    """Resident bytes that one stored item costs, all in."""
    place = Place(task)
    common.steps(task.step)
    before = common.rss_bytes(place.pid)
    place.fill(task)
    return (common.rss_bytes(place.pid) - before) / task.items


def save(task: Task) -> Answer:
    """MB per second of a checkpoint."""
    place = Place(task)
    place.fill(task)
    return saving.save(task, place.client.checkpoint)


def save_again(task: Task) -> Answer:
    """MB that a checkpoint writes after one of a hundred items was replaced and of another hundredth the priority."""
    place = Place(task)
    place.fill(task)
    part = replace(task, items=task.items // 100)

    def change() -> None:
        place.fill(part)
        update = updates_of(replace(part, batch=part.items), place, 1)[0]
        place.client.mutate_priorities(TABLE, updates=update)

    return saving.save_again(task, place.client.checkpoint, change)


def prepare(task: Task) -> float:
    """Leave a checkpoint to be restored."""
    place = Place(task)
    place.fill(task)
    place.client.checkpoint()
    return 0.0


def restore(task: Task) -> Answer:
    """MB per second of opening what was saved."""
    opened: list[Place] = []

    def items() -> int:
        opened.append(Place(task))
        return int(opened[0].client.server_info()[TABLE].current_size)

    return saving.restore(task, items)


if __name__ == "__main__":
    jobs = [insert, sample, balance, update, latency, memory, server, save, save_again, prepare, restore]
    common.serve(["dm-reverb", "tensorflow", "numpy"], {job.__name__: job for job in jobs})
