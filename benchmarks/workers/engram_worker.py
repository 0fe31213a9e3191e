"""Our side: a `Store` in this process."""

import itertools
from collections.abc import Callable

import numpy as np

import engram
from benchmarks.workers import common
from benchmarks.workers.common import Block, Task

TABLE = "replay"
LENGTH = 2  # steps per item


def open_store(task: Task) -> engram.Store:
    """Open a store with the table that `task` wants, empty."""
    selectors = engram.selectors
    table = engram.Table(
        TABLE,
        max_size=task.items,
        sampler=selectors.Prioritized(exponent=0.6) if task.prioritized else selectors.Uniform(),
        remover=selectors.Fifo(),
        rate_limiter=engram.rate_limiters.MinSize(1),
    )
    return engram.Store([table], seed=0)


def fill(task: Task, store: engram.Store) -> None:
    """Insert `task.items` items with uneven priorities, step by step as the peers do."""
    stream = itertools.cycle(common.steps(task.step))
    with store.writer(history=LENGTH) as writer:
        writer.append(next(stream))
        for priority in common.priorities(task.items).tolist():
            writer.append(next(stream))
            writer.create_item(TABLE, priority, num_steps=LENGTH)


def trajectory(task: Task, store: engram.Store) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer: append, slice every column's history, create the item."""
    stream = itertools.cycle(common.steps(task.step))
    writer = store.writer(history=LENGTH)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(100):
            writer.append(next(stream))
            last = {name: column[-LENGTH:] for name, column in writer.history.items()}
            writer.create_item(TABLE, 1.0, last)
        return 100

    return block, writer.flush


def num_steps(task: Task, store: engram.Store) -> tuple[Block, Callable[[], object]]:
    """The trajectory writer by its shortcut: the last two steps, all columns."""
    stream = itertools.cycle(common.steps(task.step))
    writer = store.writer(history=LENGTH)
    writer.append(next(stream))

    def block() -> int:
        for _ in range(100):
            writer.append(next(stream))
            writer.create_item(TABLE, 1.0, num_steps=LENGTH)
        return 100

    return block, writer.flush


def pattern(task: Task, store: engram.Store) -> tuple[Block, Callable[[], object]]:
    """The pattern writer: the same items, declared once."""
    stream = itertools.cycle(common.steps(task.step))
    every_step = engram.Pattern(TABLE, lambda step: {name: column[-LENGTH:] for name, column in step.items()})
    writer = store.pattern_writer([every_step])
    writer.append(next(stream))

    def block() -> int:
        for _ in range(100):
            writer.append(next(stream))
        return 100

    return block, writer.flush


def batched(task: Task, store: engram.Store) -> tuple[Block, Callable[[], object]]:
    """The batched writer: a step of all environments at once, an item for each."""
    stream = itertools.cycle(common.step_batches(task.step, task.envs))
    writer = store.batched_writer(task.envs, [engram.Pattern(TABLE, num_steps=LENGTH)])
    writer.append_batch(next(stream))

    def block() -> int:
        for _ in range(16):
            writer.append_batch(next(stream))
        return 16 * task.envs

    return block, writer.flush


WRITERS = {"trajectory": trajectory, "num_steps": num_steps, "pattern": pattern, "batched": batched}


def insert(task: Task) -> float:
    """Steps per second, one item per step."""
    block, finish = WRITERS[task.variant](task, open_store(task))
    return common.rate(block, task.seconds, finish)


def sample(task: Task) -> float:
    """Items per second, by `store.sample` or by a `Dataset`."""
    store = open_store(task)
    fill(task, store)
    if task.variant == "store":
        return common.rate(lambda: len(store.sample(TABLE, task.batch)), task.seconds)
    with engram.Dataset(store, TABLE, batch_size=task.batch) as dataset:
        batches = iter(dataset)
        return common.rate(lambda: len(next(batches)), task.seconds)


def update(task: Task) -> float:
    """Calls per second that each give new priorities to `batch` keys."""
    store = open_store(task)
    fill(task, store)
    keys = itertools.cycle([store.sample(TABLE, task.batch).info.key for _ in range(64)])
    fresh = common.priorities(task.batch)

    def block() -> int:
        store.update_priorities(TABLE, next(keys), fresh)
        return 1

    return common.rate(block, task.seconds)


def memory(task: Task) -> float:
    """Resident bytes that one stored item costs, all in, after exactly `items` inserts."""
    store = open_store(task)
    block, finish = WRITERS[task.variant](task, store)
    before = common.rss_bytes()
    done = 0
    while done < task.items:
        done += block()
    finish()
    return (common.rss_bytes() - before) / store.info()[TABLE].size


def draw(task: Task) -> float:
    """Nanoseconds per drawn item from a table of `items` tiny items (one step of one float)."""
    store = open_store(task)
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
    jobs = {"insert": insert, "sample": sample, "update": update, "memory": memory, "draw": draw}
    common.serve(["engram", "numpy"], jobs)
