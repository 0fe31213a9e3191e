"""Measures how much a checkpoint delays other calls, as `benchmarks.stall` does for other operations.

Two tables are measured one after the other, one of many small items and one of few large items of noise; each with a
log of all changes and without. A second inserter waits after every step until it is acknowledged.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import engram
from benchmarks import callers, durable, peers, stall
from benchmarks.callers import Phases
from benchmarks.stall_report import Result, Size, main
from benchmarks.workers import common

Durability = Literal["none", "process"]

SAMPLED_FRAME_ITEMS = 8  # items per sample of large ones, each of two steps of 28 kB: half a megabyte


class Load(NamedTuple):
    """The content of a table, and what its callers insert and sample."""

    name: str
    items: int  # maximum size of the table
    fill: Callable[[engram.Store], None]  # fills the table
    step: dict[str, Any]  # that the inserters write again and again
    batch: int  # items per sample


def make_loads(items: int, frames: int) -> tuple[Load, ...]:
    """Returns the two loads."""
    noise = common.steps("atari")
    megabytes = frames * common.step_bytes("atari") / 1e6

    def fill_with_noise(store: engram.Store) -> None:
        with store.pattern_writer([engram.Pattern("live", num_steps=2)]) as writer:
            for number in range(frames + 1):
                writer.append(noise[number % len(noise)])

    def fill(store: engram.Store) -> None:
        stall.fill(store, "live", items)

    return (
        Load(f"{items:,} small items", items, fill, stall.make_steps(), 256),
        Load(f"{megabytes:,.0f} MB of noise", frames, fill_with_noise, noise[0], SAMPLED_FRAME_ITEMS),
    )


@contextmanager
def record_latencies(
    store: engram.Store, phases: Phases, phase: str, load: Load, reference: Callable[[], object]
) -> Iterator[None]:
    """Records the latencies of calls to `store` while the body runs."""
    patterns = [engram.Pattern("live", num_steps=2)]
    writer = store.pattern_writer(patterns, chunk_length=1)
    flushed_writer = store.pattern_writer(patterns, chunk_length=1)

    def insert_and_wait() -> None:
        flushed_writer.append(load.step)
        flushed_writer.flush()

    calls: dict[str, Callable[[], object]] = {
        "insert": lambda: writer.append(load.step),
        "insert, acknowledged": insert_and_wait,
        "sample": lambda: store.sample("live", load.batch, timeout=60),
        callers.REFERENCE: reference,
    }
    with callers.record_latencies(phases, phase, calls):
        yield
    writer.close()
    flushed_writer.close()


def measure_one(phases: Phases, load: Load, durability: Durability, reference: Callable[[], object]) -> None:
    """Measures the phases of one load at one durability, and adds them to `phases`."""
    name = f"{load.name}, `{durability}`"
    peers.HOME.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=peers.HOME) as directory,
        engram.Store.open(directory, [stall.make_table("live", load.items)], durability=durability, seed=0) as store,
    ):
        load.fill(store)
        with record_latencies(store, phases, f"{name}: no checkpoint", load, reference):
            time.sleep(3.0)
        with record_latencies(store, phases, f"{name}: first checkpoint", load, reference):
            store.checkpoint()
        with record_latencies(store, phases, f"{name}: next checkpoint", load, reference):
            store.checkpoint()


def measure(items: int, frames: int) -> Phases:
    """Measures all phases."""
    phases: Phases = {}
    reference = callers.make_reference(items)
    durabilities: tuple[Durability, ...] = ("none", "process")
    for load in make_loads(items, frames):
        for durability in durabilities:
            measure_one(phases, load, durability, reference)
    return phases


if __name__ == "__main__":
    sizes = [Size("items", 5_000_000, "small items"), Size("frames", durable.NOISE_ITEMS, "large items")]
    result = Result("durable_stall", "Latency of calls during checkpoints")
    sys.exit(main("benchmarks.stall_checkpoint", __doc__, result, sizes, measure))
