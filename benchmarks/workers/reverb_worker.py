"""The Reverb worker: a server and its client, in one process or in two."""

import itertools
import operator
import os
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb
import tensorflow as tf

from benchmarks.workers import common, processes, saving
from benchmarks.workers.common import CONCURRENT_UPDATES, ERROR_BUFFER, MIN_SIZE, Block, Result, Task

TABLE = "replay"

# Tuned on two cores, one run each; best or within noise of the best. Tried: flush every 50 to 1,000 steps, with 0 to
# 1,000 items unconfirmed.
FLUSH_EVERY = 100
UNCONFIRMED = 100
# Tuned in the same way, with some other load on the machine. Tried: 64 to 4,096 in flight, 1 to 8 workers, prefetch 0,
# 2, 8 and AUTOTUNE, parallel batching, two interleaved datasets (batched inside or outside).
IN_FLIGHT = 256
WORKERS = 4
PREFETCH = 2
# For a server in another process (two runs each, no other load). Tried: 24 to 1,024 in flight, 1 to 8 workers.
IN_FLIGHT_REMOTE = 64
WORKERS_REMOTE = 3
# For sequences. Tried: chunks of 5 to 20 steps, 1 to 50 items unconfirmed, 16 to 1,024 in flight, 1 to 8 workers.
SEQUENCE_CHUNKS = 10
SEQUENCES_UNCONFIRMED = 2
IN_FLIGHT_SEQUENCES = 256
WORKERS_SEQUENCES = 2


def make_table(task: Task) -> reverb.Table:
    """Returns the table of `task`."""
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
    """Opens a writer with chunks tuned for `task`."""
    writer = client.trajectory_writer(num_keep_alive_refs=task.length)
    if task.every > 1:
        for name in ("obs", "action", "reward", "discount"):
            writer.configure((name,), num_keep_alive_refs=task.length, max_chunk_length=SEQUENCE_CHUNKS)
    return writer


class Endpoint:
    """Access to the table, in this process or on a server."""

    def __init__(self, task: Task) -> None:
        """Opens an empty table, or connects to `task.address`."""
        self.pid: int | None = None  # of the server; None in process
        self.address = task.address
        if not task.remote:
            checkpointer = reverb.checkpointers.DefaultCheckpointer(task.directory) if task.directory else None
            self.server = reverb.Server([make_table(task)], port=None, checkpointer=checkpointer)
            self.client = self.server.localhost_client()
            self.address = self.client.server_address
            return
        if not self.address:
            self.child = processes.Child(task, job="server")
            self.pid = self.child.pid
            self.address = self.child.receive()["address"]
        self.client = reverb.Client(self.address)

    def fill(self, task: Task) -> None:
        """Inserts `task.items` items with unequal priorities."""
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
    """Serves the table until the parent is gone."""
    server = reverb.Server([make_table(task)], port=None)
    processes.serve_address(f"127.0.0.1:{server.port}")
    return 0.0


def trajectory(task: Task, endpoint: Endpoint) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: append a step, slice the history of every column, create an item."""
    stream = itertools.cycle(common.steps(task.step))
    length, writer = task.length, endpoint.client.trajectory_writer(num_keep_alive_refs=task.length)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(next(stream))
            last = {name: column[-length:] for name, column in writer.history.items()}
            writer.create_item(TABLE, 1.0, last)
        writer.flush(block_until_num_items=UNCONFIRMED)  # otherwise its queue grows without bound
        return FLUSH_EVERY

    return block, writer.flush


def structured(
    task: Task, endpoint: Endpoint, *, compute_priorities: bool = False
) -> tuple[Block, Callable[[], object]]:
    """The structured writer: the items of `trajectory`, declared once."""
    stream = itertools.cycle(common.steps(task.step))
    reference = reverb.structured.create_reference_step(next(stream))
    pattern = reverb.structured.pattern_from_transform(
        reference, lambda step: {name: node[-task.length :] for name, node in step.items()}
    )
    priority = reverb.structured.td_error(0.9, next(stream), operator.itemgetter("reward"))
    config = reverb.structured.create_config(
        pattern=pattern, table=TABLE, priority=priority if compute_priorities else None
    )
    writer = endpoint.client.structured_writer([config])
    writer.append(next(stream))

    def block() -> int:
        for _ in range(FLUSH_EVERY):
            writer.append(next(stream))
        writer.flush(block_until_num_items=UNCONFIRMED, timeout_ms=600_000)
        return FLUSH_EVERY

    return block, lambda: writer.flush(timeout_ms=600_000)


def td_errors(task: Task, endpoint: Endpoint) -> tuple[Block, Callable[[], object]]:
    """The structured writer that also computes priorities from the items; rewards serve as TD errors."""
    return structured(task, endpoint, compute_priorities=True)


def sequences(task: Task, endpoint: Endpoint) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: an item of the last `length` steps, every `every` steps."""
    stream = itertools.cycle(common.steps(task.step))
    writer = open_writer(task, endpoint.client)
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
    endpoint = Endpoint(task)
    if task.writers > 1:
        return processes.run_writers(task, endpoint.address)
    block, finish = WRITERS[task.variant](task, endpoint)
    begin = processes.wait_for_start if task.child else None
    return common.rate(block, task.seconds, finish, begin, common.warmup_steps(task))


def sampling(task: Task, endpoint: Endpoint) -> Block:
    """Returns a block that samples a batch, through the client's generator (items not stacked) or a dataset."""
    if task.variant == "client":
        return lambda: sum(1 for _ in endpoint.client.sample(TABLE, num_samples=task.batch, emit_timesteps=False))
    if task.in_flight:
        return common.dataset_reader(task, tf, reverb.TrajectoryDataset, endpoint.address, TABLE)
    in_flight, workers = (IN_FLIGHT_REMOTE, WORKERS_REMOTE) if task.remote else (IN_FLIGHT, WORKERS)
    if task.every > 1:
        in_flight, workers = IN_FLIGHT_SEQUENCES, WORKERS_SEQUENCES
    dataset = reverb.TrajectoryDataset.from_table_signature(
        endpoint.address, TABLE, max_in_flight_samples_per_worker=in_flight, num_workers_per_iterator=workers
    )
    batches = iter(dataset.batch(task.batch, drop_remainder=True).prefetch(PREFETCH))
    return lambda: int(next(batches).data["obs"].shape[0])


def sample(task: Task) -> float:
    """Items per second."""
    endpoint = Endpoint(task)
    endpoint.fill(task)
    return common.rate(sampling(task, endpoint), task.seconds)


def balance(task: Task) -> float:
    """Samples per second while a writer inserts as fast as the rate limiter allows."""
    endpoint = Endpoint(task)
    writer = processes.Child(task, job="insert", address=endpoint.address, seconds=common.UNLIMITED)
    writer.receive()
    writer.start()

    def counts() -> tuple[int, int]:
        limiter = endpoint.client.server_info()[TABLE].rate_limiter_info
        return limiter.insert_stats.completed, limiter.sample_stats.completed

    reading = sampling(replace(task, variant="dataset"), endpoint)
    return common.balanced_rate(reading, task.seconds, task.ratio, counts)


def updates_of(task: Task, endpoint: Endpoint, n: int) -> list[dict[int, float]]:
    """`n` updates of `batch` keys each."""
    items = endpoint.client.sample(TABLE, n * task.batch, emit_timesteps=False)
    keys = [item.info.key for item in items]
    fresh = common.priorities(task.batch).tolist()
    return [dict(zip(keys[i : i + task.batch], fresh, strict=True)) for i in range(0, len(keys), task.batch)]


def update(task: Task) -> float:
    """Calls per second, each updating the priorities of `batch` keys; the dicts are created in advance."""
    endpoint = Endpoint(task)
    endpoint.fill(task)
    updates = itertools.cycle(updates_of(task, endpoint, 64))

    def block() -> int:
        endpoint.client.mutate_priorities(TABLE, updates=next(updates))
        return 1

    if task.variant == "threads":
        return common.rate_in_threads(CONCURRENT_UPDATES, block, task.seconds)
    return common.rate(block, task.seconds)


def latency(task: Task) -> float:
    """Microseconds of a call that inserts or samples one item or updates a batch, on an idle server."""
    endpoint = Endpoint(task)
    endpoint.fill(task)
    client, step = endpoint.client, common.steps(task.step)[0]
    update = updates_of(task, endpoint, 1)[0]
    writer = client.trajectory_writer(num_keep_alive_refs=1)

    def write() -> None:
        writer.append(step)
        writer.create_item(TABLE, 1.0, {name: column[-1:] for name, column in writer.history.items()})
        writer.flush()

    def dataset() -> Callable[[], object]:
        data = reverb.TrajectoryDataset.from_table_signature(
            endpoint.address, TABLE, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1
        )
        return iter(data).__next__

    # Each creates the call to measure, so that no other variant opens an iterator.
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
    """Resident bytes per stored item, everything included, of a table that has just become full."""
    endpoint = Endpoint(task)
    common.steps(task.step)  # `fill` creates the same steps: their memory is allocated before the measurement
    before = common.rss_bytes(endpoint.pid)
    endpoint.fill(task)
    return (common.rss_bytes(endpoint.pid) - before) / task.items


def save(task: Task) -> Result:
    """MB per second of a checkpoint."""
    endpoint = Endpoint(task)
    endpoint.fill(task)
    return saving.save(task, endpoint.client.checkpoint)


def save_again(task: Task) -> Result:
    """MB that a checkpoint writes after 1 % of the items were replaced and the priorities of 1 % updated."""
    endpoint = Endpoint(task)
    endpoint.fill(task)
    part = replace(task, items=task.items // 100)

    def change() -> None:
        endpoint.fill(part)
        update = updates_of(replace(part, batch=part.items), endpoint, 1)[0]
        endpoint.client.mutate_priorities(TABLE, updates=update)

    return saving.save_again(task, endpoint.client.checkpoint, change)


def prepare(task: Task) -> float:
    """Leaves a checkpoint to restore."""
    endpoint = Endpoint(task)
    endpoint.fill(task)
    endpoint.client.checkpoint()
    return 0.0


def restore(task: Task) -> Result:
    """MB per second of restoring a checkpoint."""
    opened: list[Endpoint] = []

    def items() -> int:
        opened.append(Endpoint(task))
        return int(opened[0].client.server_info()[TABLE].current_size)

    return saving.restore(task, items)


if __name__ == "__main__":
    jobs = [insert, sample, balance, update, latency, memory, server, save, save_again, prepare, restore]
    common.run_task(["dm-reverb", "tensorflow", "numpy"], {job.__name__: job for job in jobs})
