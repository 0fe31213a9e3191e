"""The Engram worker: a `Store` in this process, or a `Client` of a `Server` in another."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import engram
from benchmarks.workers import common, disk, processes, saving
from benchmarks.workers.common import CONCURRENT_UPDATES, ERROR_BUFFER, MIN_SIZE, Block, Result, Task
from engram import rate_limiters
from engram.patterns import TdError, step_index, td_error
from engram.table_store import TableStore

TABLE = "replay"


def make_table(task: Task) -> engram.Table:
    """Returns the configuration of the table of `task`."""
    selectors = engram.selectors
    limiter: rate_limiters.AnyRateLimiter = rate_limiters.MinSize(1)
    if task.ratio:
        limiter = rate_limiters.SampleToInsertRatio(task.ratio, MIN_SIZE, ERROR_BUFFER)
    return engram.Table(
        TABLE,
        max_size=task.items,
        sampler=selectors.Prioritized(exponent=0.6) if task.prioritized else selectors.Uniform(),
        remover=selectors.Fifo(),
        rate_limiter=limiter,
    )


def open_store(task: Task) -> engram.Store:
    """Opens the store of `task`, in its directory or in memory."""
    if task.durability:
        return engram.Store.open(task.directory, [make_table(task)], durability=task.durability, seed=0)
    return engram.Store([make_table(task)], seed=0)


class Endpoint:
    """Access to the table, in this process or on a server."""

    def __init__(self, task: Task) -> None:
        """Opens an empty table, or connects to `task.address`."""
        self.pid: int | None = None  # of the server; None in process
        self.address = task.address
        if task.remote and not self.address:
            self.server = processes.Child(task, job="server")
            self.pid = self.server.pid
            self.address = self.server.receive()["address"]
        self.store: TableStore = engram.Client(self.address) if task.remote else open_store(task)


def server(task: Task) -> float:
    """Serves the table until the parent is gone."""
    with open_store(task) as store, engram.Server(store) as server:
        processes.serve_address(server.address)
    return 0.0


def fill(task: Task, store: TableStore) -> None:
    """Inserts `task.items` items with unequal priorities, of the same steps as those of Reverb's worker."""
    stream = itertools.cycle(common.steps(task.step))
    with store.writer(history=task.length) as writer:
        for _ in range(task.length - task.every):
            writer.append(next(stream))
        for priority in common.priorities(task.items).tolist():
            for _ in range(task.every):
                writer.append(next(stream))
            writer.create_item(TABLE, priority, num_steps=task.length)


def trajectory(task: Task, store: TableStore) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: append a step, slice the history of every column, create an item."""
    stream = itertools.cycle(common.steps(task.step))
    length, writer = task.length, store.writer(history=task.length)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(100):
            writer.append(next(stream))
            last = {name: column[-length:] for name, column in writer.history.items()}
            writer.create_item(TABLE, 1.0, last)
        return 100

    return block, writer.flush


def num_steps(task: Task, store: TableStore) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer with `num_steps`: the last steps, all columns."""
    stream = itertools.cycle(common.steps(task.step))
    length, writer = task.length, store.writer(history=task.length)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(100):
            writer.append(next(stream))
            writer.create_item(TABLE, 1.0, num_steps=length)
        return 100

    return block, writer.flush


def pattern(task: Task, store: TableStore, priority: float | TdError = 1.0) -> tuple[Block, Callable[[], object]]:
    """The pattern writer: the items of `trajectory`, declared once."""
    stream = itertools.cycle(common.steps(task.step))
    every_step = engram.Pattern(
        TABLE, lambda step: {name: column[-task.length :] for name, column in step.items()}, priority=priority
    )
    writer = store.pattern_writer([every_step])
    writer.append(next(stream))

    def block() -> int:
        for _ in range(100):
            writer.append(next(stream))
        return 100

    return block, writer.flush


def td_errors(task: Task, store: TableStore) -> tuple[Block, Callable[[], object]]:
    """The pattern writer that also computes priorities from the items; rewards serve as TD errors."""
    return pattern(task, store, td_error(lambda step: step["reward"]))


def batched(task: Task, store: TableStore) -> tuple[Block, Callable[[], object]]:
    """The batched writer: one step of all environments at once, one item for each."""
    stream = itertools.cycle(common.step_batches(task.step, task.envs))
    writer = store.batched_writer(task.envs, [engram.Pattern(TABLE, num_steps=task.length)])
    writer.append_batch(next(stream))

    def block() -> int:
        for _ in range(16):
            writer.append_batch(next(stream))
        return 16 * task.envs

    return block, writer.flush


def sequences(task: Task, store: TableStore) -> tuple[Block, Callable[[], object]]:
    """The pattern writer: an item of the last `length` steps, every `every` steps."""
    stream = itertools.cycle(common.steps(task.step))
    when = [step_index() % task.every == (task.length - 1) % task.every]
    writer = store.pattern_writer([engram.Pattern(TABLE, num_steps=task.length, when=when)])

    def block() -> int:
        for _ in range(task.length):
            writer.append(next(stream))
        return task.length

    return block, writer.flush


WRITERS = {
    "trajectory": trajectory,
    "num_steps": num_steps,
    "pattern": pattern,
    "td_errors": td_errors,
    "batched": batched,
    "sequences": sequences,
}


def insert(task: Task) -> float | Result:
    """Steps per second, all writers together."""
    endpoint = Endpoint(task)
    if task.writers > 1:
        return processes.run_writers(task, endpoint.address)
    block, finish = WRITERS[task.variant](task, endpoint.store)
    begin = processes.wait_for_start if task.child else None
    rate = common.rate(block, task.seconds, finish, begin, common.warmup_steps(task))
    if task.durability not in ("process", "disk"):
        return rate
    # The log also has the steps of the warm-up.
    logged = disk.total(disk.sizes(task.directory)) / endpoint.store.info()[TABLE].inserts
    return Result(rate, {"{} MB/s to the log": rate * logged, "{} bytes per step": logged * disk.MB})


def sampling(task: Task, store: TableStore) -> Block:
    """Returns a block that samples a batch, through `sample` or a `Dataset`."""
    if task.variant == "dataset":
        batches = iter(engram.Dataset(store, TABLE, batch_size=task.batch))
        return lambda: len(next(batches))
    return lambda: len(store.sample(TABLE, task.batch))


def sample(task: Task) -> float:
    """Items per second."""
    store = Endpoint(task).store
    fill(task, store)
    return common.rate(sampling(task, store), task.seconds)


def scan(task: Task) -> float:
    """Items per second of scans of the whole table, from the call to the last batch."""
    store = Endpoint(task).store
    envs = 1_000
    step = {name: np.stack([np.asarray(value)] * envs) for name, value in common.steps(task.step)[0].items()}
    with store.batched_writer(envs, [engram.Pattern(TABLE, num_steps=1)]) as writer:
        for _ in range(task.items // envs):
            writer.append_batch(step)
    return common.rate(lambda: sum(map(len, store.scan(TABLE, batch_size=task.batch))), task.seconds)


def balance(task: Task) -> float:
    """Samples per second while a writer inserts as fast as the rate limiter allows."""
    endpoint = Endpoint(task)
    writer = processes.Child(task, job="insert", address=endpoint.address, seconds=common.UNLIMITED)
    writer.receive()
    writer.start()

    def counts() -> tuple[int, int]:
        info = endpoint.store.info()[TABLE]
        return info.inserts, info.samples

    reading = sampling(replace(task, variant="dataset"), endpoint.store)
    return common.balanced_rate(reading, task.seconds, task.ratio, counts)


def update(task: Task) -> float:
    """Calls per second, each updating the priorities of `batch` keys."""
    store = Endpoint(task).store
    fill(task, store)
    keys = itertools.cycle([store.sample(TABLE, task.batch).info.key for _ in range(64)])
    fresh = common.priorities(task.batch)
    wait = task.variant != "unwaited"

    def block() -> int:
        store.update_priorities(TABLE, next(keys), fresh, wait=wait)
        return 1

    if task.variant == "threads":
        return common.rate_in_threads(CONCURRENT_UPDATES, block, task.seconds)
    # Changes are applied in order: when this empty one is answered, all before it are done.
    return common.rate(block, task.seconds, finish=lambda: store.update_priorities(TABLE, [], []))


def latency(task: Task) -> float:
    """Microseconds of a call that inserts or samples one item or updates a batch, on an idle store."""
    store = Endpoint(task).store
    fill(task, store)
    step = common.steps(task.step)[0]
    key = store.sample(TABLE, task.batch).info.key
    fresh = common.priorities(len(key))
    single = engram.Dataset(store, TABLE, prefetch=1)
    # Each creates the call to measure, so that no other variant opens an iterator.
    calls: dict[str, Callable[[], Callable[[], object]]] = {
        "insert": lambda: lambda: store.insert(step, {TABLE: 1.0}),
        "sample": lambda: lambda: store.sample(TABLE, 1),
        "dataset": lambda: iter(single).__next__,
        "update": lambda: lambda: store.update_priorities(TABLE, key, fresh),
    }
    return common.latency(calls[task.variant](), task.seconds, task.percentile)


def memory(task: Task) -> float:
    """Resident bytes per stored item, everything included, of a table that has just become full."""
    endpoint = Endpoint(task)
    block, finish = WRITERS[task.variant](task, endpoint.store)
    before = common.rss_bytes(endpoint.pid)
    done = 0
    while done < task.items:
        done += block()
    finish()
    return (common.rss_bytes(endpoint.pid) - before) / endpoint.store.info()[TABLE].size


def save(task: Task) -> Result:
    """MB per second of a checkpoint."""
    store = Endpoint(task).store
    fill(task, store)
    return saving.save(task, store.checkpoint)


def save_again(task: Task) -> Result:
    """MB that these write: replacing 1 % of the items, updating the priorities of 1 %, and a second checkpoint."""
    store = Endpoint(task).store
    fill(task, store)
    part = replace(task, items=task.items // 100)

    def change() -> None:
        fill(part, store)
        store.update_priorities(TABLE, store.sample(TABLE, part.items).info.key, common.priorities(part.items))

    return saving.save_again(task, store.checkpoint, change)


def prepare(task: Task) -> float:
    """Leaves a checkpoint to restore, or only a log to replay."""
    store = Endpoint(task).store
    fill(task, store)
    if task.variant == "checkpoint":
        store.checkpoint()
    store.close()
    return 0.0


def restore(task: Task) -> Result:
    """MB per second of opening a saved store."""
    opened: list[engram.Store] = []

    def items() -> int:
        opened.append(open_store(task))
        return opened[0].info()[TABLE].size

    return saving.restore(task, items)


def draw(task: Task) -> float:
    """Nanoseconds per sampled item of a table of `items` tiny items (one step of one float)."""
    store = Endpoint(task).store
    envs = 1_000
    step = {"x": np.arange(envs, dtype=np.float32)}
    with store.batched_writer(envs, [engram.Pattern(TABLE, num_steps=1)]) as writer:
        for _ in range(task.items // envs):
            writer.append_batch(step)
    if task.prioritized:
        fresh = common.priorities(task.batch)
        for _ in range(200):
            store.update_priorities(TABLE, store.sample(TABLE, task.batch).info.key, fresh)
    return 1e9 / common.rate(lambda: len(store.sample(TABLE, task.batch)), task.seconds)


if __name__ == "__main__":
    jobs = [insert, sample, scan, balance, update, latency, memory, draw, server, save, save_again, prepare, restore]
    common.run_task(["engram-replay", "numpy"], {job.__name__: job for job in jobs})
