"""Does a long operation on a big table stall anyone else? `python -m benchmarks.stall --help`.

Three threads make a call a millisecond after the last and record how much later it was over: an inserter and a
sampler of one big table, and a reference that calls nothing of ours: NumPy reads as many random places of an array of
its own. The time counts from when the call was due: waking up late is part of a stall. Meanwhile the
main thread does one operation per phase. What the reference suffers, the interpreter lock and the machine did;
the control phase shows the same without any operation. Watchers of another process note when a core stood still:
a virtual machine whose host takes time away stalls everybody. The process keeps the memory it has freed, and an
unmeasured run makes it have enough: what the system does with memory that comes and goes is not measured here.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import engram
from benchmarks import callers
from benchmarks.callers import Phases
from benchmarks.stall_report import Size, main

ENVS = 1_000


def table(name: str, items: int) -> engram.Table:
    """One big table of the usual kind."""
    return engram.Table(
        name,
        max_size=items,
        sampler=engram.selectors.Prioritized(exponent=0.6),
        remover=engram.selectors.Fifo(),
        rate_limiter=engram.rate_limiters.MinSize(1),
    )


def steps(*lead: int) -> dict[str, np.ndarray]:
    """One small step, or `lead[0]` environments' small steps."""
    return {
        "obs": np.ones((*lead, 4), np.float32),
        "action": np.ones(lead, np.int32),
        "reward": np.ones(lead, np.float32),
        "discount": np.ones(lead, np.float32),
    }


def fill(store: engram.Store, name: str, items: int) -> None:
    """Insert `items` two-step items."""
    batch = steps(ENVS)
    with store.batched_writer(ENVS, [engram.Pattern(name, num_steps=2)]) as writer:
        for _ in range(items // ENVS + 1):
            writer.append_batch(batch)


@contextmanager
def watched(store: engram.Store, phases: Phases, phase: str, numpy: Callable[[], object]) -> Iterator[None]:
    """Record what callers of `store` go through while the body runs."""
    # Chunks of one step: after a reset, a sample waits for the next step, not for the rest of a chunk.
    writer = store.pattern_writer([engram.Pattern("live", num_steps=2)], chunk_length=1)
    step = steps()
    calls: dict[str, Callable[[], object]] = {
        "insert": lambda: writer.append(step),
        "sample": lambda: store.sample("live", 256, timeout=60),
        callers.REFERENCE: numpy,
    }
    with callers.watched(phases, phase, calls):
        yield
    writer.close()


def measure(items: int) -> Phases:
    """All phases, in an order in which each finds full tables."""
    phases: Phases = {}
    numpy = callers.reference(items)
    with engram.Store([table("live", items), table("doomed", items)], seed=0) as store:
        fill(store, "live", items)
        with watched(store, phases, "control: no operation", numpy):
            time.sleep(5.0)
        with watched(store, phases, f"{items:,} inserts into another table", numpy):
            fill(store, "doomed", items)
        with watched(store, phases, "snapshot, then dropping it", numpy):
            held = store._native.snapshot("live")  # noqa: SLF001, checkpoints will be the public way to it
            time.sleep(1.0)  # steady inserts now copy the pages they touch
            del held
        with watched(store, phases, "drop of another table", numpy):
            store.drop_table("doomed")
        with watched(store, phases, "reset of the table in use", numpy):
            store.reset("live")
    return phases


if __name__ == "__main__":
    sizes = [Size("items", 5_000_000, "items per table")]
    sys.exit(main("benchmarks.stall", __doc__, "stall", sizes, measure))
