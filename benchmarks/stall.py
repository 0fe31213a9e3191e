"""Measures how much a long operation on a big table delays other calls.

Three threads repeat a call, each due one millisecond after the previous one returned: an inserter and a sampler of one
big table, and a reference that reads random elements of a NumPy array, about as many as a sample reads. A latency
counts from the moment the call was due, so a late wake-up is part of it. Meanwhile the main thread runs one operation
per phase.

Delays of the reference are caused by the interpreter lock or the machine; the control phase shows them without any
operation. The host of a virtual machine can pause a core, so watchers in other processes record when a core was paused.
The cost of fresh memory from the system is not measured: a first run, which does not count, allocates what is needed,
and the process keeps freed memory. (Engram offers it to the system twice a minute, which takes it when it runs short.)
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import engram
from benchmarks import callers
from benchmarks.callers import Phases
from benchmarks.stall_report import Result, Size, main

ENVS = 1_000


def make_table(name: str, items: int) -> engram.Table:
    """Returns a big prioritized table."""
    return engram.Table(
        name,
        max_size=items,
        sampler=engram.selectors.Prioritized(exponent=0.6),
        remover=engram.selectors.Fifo(),
        rate_limiter=engram.rate_limiters.MinSize(1),
    )


def make_steps(*leading_shape: int) -> dict[str, np.ndarray]:
    """Returns a small step; with an argument, one small step of that many environments."""
    return {
        "obs": np.ones((*leading_shape, 4), np.float32),
        "action": np.ones(leading_shape, np.int32),
        "reward": np.ones(leading_shape, np.float32),
        "discount": np.ones(leading_shape, np.float32),
    }


def fill(store: engram.Store, name: str, items: int) -> None:
    """Inserts `items` two-step items, a multiple of `ENVS`."""
    batch = make_steps(ENVS)
    with store.batched_writer(ENVS, [engram.Pattern(name, num_steps=2)]) as writer:
        for _ in range(items // ENVS + 1):
            writer.append_batch(batch)


@contextmanager
def record_latencies(
    store: engram.Store, phases: Phases, phase: str, reference: Callable[[], object]
) -> Iterator[None]:
    """Records the latencies of calls to `store` while the body runs."""
    # Chunks of one step: after a reset, a sample waits only for the next step, not until a chunk is full.
    writer = store.pattern_writer([engram.Pattern("live", num_steps=2)], chunk_length=1)
    step = make_steps()
    calls: dict[str, Callable[[], object]] = {
        "insert": lambda: writer.append(step),
        "sample": lambda: store.sample("live", 256, timeout=60),
        callers.REFERENCE: reference,
    }
    with callers.record_latencies(phases, phase, calls):
        yield
    writer.close()


def scan(store: engram.Store) -> None:
    """Reads all items of the table in use."""
    for _ in store.scan("live", batch_size=1_000):
        pass


def look(store: engram.Store, seconds: float) -> None:
    """Looks at the table in use again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        store.peek("live", order="highest_priority")
        store.histogram("live")


def measure(items: int) -> Phases:
    """Measures all phases, in an order in which the tables that a phase reads, drops or resets are full."""
    phases: Phases = {}
    reference = callers.make_reference(items)
    with engram.Store([make_table("live", items), make_table("other", items)], seed=0) as store:
        fill(store, "live", items)
        with record_latencies(store, phases, "control: no operation", reference):
            time.sleep(5.0)
        with record_latencies(store, phases, f"{items:,} inserts into another table", reference):
            fill(store, "other", items)
        with record_latencies(store, phases, "snapshot, then dropping it", reference):
            snapshot = store._native.snapshot("live")  # noqa: SLF001, the public API has only checkpoints
            time.sleep(1.0)  # inserts now copy the pages that they write
            del snapshot
        with record_latencies(store, phases, "two scans at the same time", reference):
            other = threading.Thread(target=scan, args=(store,))
            other.start()
            scan(store)
            other.join()
        with record_latencies(store, phases, "peeks and histograms", reference):
            look(store, 5.0)
        with record_latencies(store, phases, "drop of another table", reference):
            store.drop_table("other")
        with record_latencies(store, phases, "reset of the table in use", reference):
            store.reset("live")
    return phases


if __name__ == "__main__":
    sizes = [Size("items", 5_000_000, "items per table")]
    result = Result("stall", "Latency of calls during operations on big tables")
    sys.exit(main("benchmarks.stall", __doc__, result, sizes, measure))
