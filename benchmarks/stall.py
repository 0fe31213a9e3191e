"""Does a long operation on a big table stall anyone else? `python -m benchmarks.stall --help`.

Three threads record how long each of their calls takes: an inserter and a sampler of one big table, and a
probe that calls nothing of ours (`time.sleep(0)`). Meanwhile the main thread does one operation per phase.
What the probe suffers, the interpreter lock and the machine did; the control phase shows the same without
any operation.
"""

import argparse
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import engram
from benchmarks import report

BOUND_MS = 10.0
EDGES_US = (10, 30, 100, 300, 1_000, 3_000, 10_000)
PAUSE = 200e-6  # seconds between calls: steady work, not a fight for two cores
SWITCH = 50e-6  # seconds a thread may keep the interpreter lock (Python's default of 5 ms is itself a stall)
SETTLE = 2.0  # seconds recorded after the operation returned: what it left to be freed is freed then
ENVS = 1_000

Phases = dict[str, dict[str, np.ndarray]]  # phase -> caller -> microseconds per call


class Caller(threading.Thread):
    """Calls `action` again and again and notes how long each call took."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        """Prepare; `start` starts."""
        super().__init__(name=name, daemon=True)
        self.action = action
        self.nanoseconds = np.zeros(2_000_000, np.int64)  # made beforehand: no growth while we measure
        self.count = 0
        self.first = 0  # calls before it belong to the start of the threads, not to the phase
        self.failure: Exception | None = None
        self.halt = threading.Event()

    def run(self) -> None:
        """Call until told to halt."""
        clock, log, action = time.perf_counter_ns, self.nanoseconds, self.action
        log[:] = -1  # touch every page now
        try:
            while not self.halt.is_set() and self.count < len(log):
                start = clock()
                action()
                log[self.count] = clock() - start
                self.count += 1
                time.sleep(PAUSE)
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            self.failure = error

    def finish(self) -> np.ndarray:
        """Halt; microseconds of all calls."""
        self.halt.set()
        self.join(timeout=60)
        if self.failure is not None:
            raise self.failure
        if self.is_alive():
            msg = f"the {self.name} hangs in a call after {self.count} calls"
            raise TimeoutError(msg)
        return self.nanoseconds[self.first : self.count] / 1e3


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
def watched(store: engram.Store, phases: Phases, phase: str) -> Iterator[None]:
    """Record the latencies of all callers while the body runs, and a while longer."""
    writer = store.pattern_writer([engram.Pattern("live", num_steps=2)])
    step = steps()
    callers = [
        Caller("insert", lambda: writer.append(step)),
        Caller("sample", lambda: store.sample("live", 256, timeout=60)),
        Caller("probe", lambda: time.sleep(0)),
    ]
    for caller in callers:
        caller.start()
    time.sleep(0.5)
    for caller in callers:
        caller.first = caller.count
    start = time.perf_counter()
    yield
    took = time.perf_counter() - start
    time.sleep(SETTLE)
    phases[f"{phase} ({took * 1e3:,.1f} ms)"] = {c.name: c.finish() for c in callers}
    writer.close()


def measure(items: int) -> Phases:
    """All phases, in an order in which each finds full tables."""
    phases: Phases = {}
    with engram.Store([table("live", items), table("doomed", items)], seed=0) as store:
        fill(store, "live", items)
        with watched(store, phases, "control: no operation"):
            time.sleep(5.0)
        with watched(store, phases, f"{items:,} inserts into another table"):
            fill(store, "doomed", items)
        with watched(store, phases, "snapshot, then dropping it"):
            held = store._native.snapshot("live")  # noqa: SLF001, checkpoints will be the public way to it
            time.sleep(1.0)  # steady inserts now copy the pages they touch
            del held
        with watched(store, phases, "drop of another table"):
            store.drop_table("doomed")
        with watched(store, phases, "reset of the table in use"):
            store.reset("live")
    return phases


def histogram(phases: Phases) -> str:
    """Render calls per bucket of latency, and the longest."""
    heads = [f"< {edge:,} us" for edge in EDGES_US] + [f">= {EDGES_US[-1]:,} us"]
    text = "| phase (time of the operation) | caller | " + " | ".join(heads) + " | longest |\n"
    text += "|---|---|" + "---:|" * (len(heads) + 1) + "\n"
    for phase, callers in phases.items():
        for caller, taken in callers.items():
            counts = np.histogram(taken, bins=(0, *EDGES_US, np.inf))[0]
            cells = " | ".join(f"{count:,}" for count in counts)
            text += f"| {phase} | {caller} | {cells} | {taken.max() / 1e3:.2f} ms |\n"
    return text


def verdict(phases: Phases) -> tuple[bool, str]:
    """Whether a call of ours took longer than the bound, and the sentence that says so."""
    ours = {(p, c): taken.max() / 1e3 for p, calls in phases.items() for c, taken in calls.items() if c != "probe"}
    (phase, caller), longest = max(ours.items(), key=lambda entry: entry[1])
    kept = longest <= BOUND_MS
    words = "No call took" if kept else "**Not kept**: a call took"
    return kept, f"{words} longer than {BOUND_MS:g} ms; the longest: {longest:.2f} ms ({caller}, {phase})."


def main() -> int:
    """Measure, print, maybe write; 1 if the bound was not kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stall", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=5_000_000, help="items per table (default: 5,000,000)")
    parser.add_argument("--write", action="store_true", help="write the histogram to docs/performance.md")
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH)
    gc.disable()  # Python's collector stops all threads: not what is asked here
    phases = measure(arguments.items)
    kept, sentence = verdict(phases)
    if not any(phase.startswith("snapshot") for phase in phases):
        kept, sentence = False, f"{sentence} **The snapshot was not measured**: the store offers none."
    command = f"python -m benchmarks.stall --items {arguments.items}"
    text = (
        f"{histogram(phases)}\n{sentence}\n\n* machine: {report.machine()}\n"
        f"* load average at the end: {report.load()}\n* command: `{command}`\n* commit: `{report.commit()}`\n"
    )
    print(text)
    if arguments.write:
        report.write("stall", text)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
