"""Does a long operation on a big table stall anyone else? `python -m benchmarks.stall --help`.

Three threads make a call a millisecond after the last and record how much later it was over: an inserter and a
sampler of one big table, and a reference that calls nothing of ours: NumPy reads as many random places of an array of
its own. The time counts from when the call was due: waking up late is part of a stall. Meanwhile the
main thread does one operation per phase. What the reference suffers, the interpreter lock and the machine did;
the control phase shows the same without any operation. Watchers of another process note when a core stood still:
a virtual machine whose host takes time away stalls everybody. The process keeps the memory it has freed, and an
unmeasured run makes it have enough: what the system does with memory that comes and goes is not measured here.
"""

import argparse
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

import engram
from benchmarks import report
from benchmarks.pauses import Pauses

BOUND_MS = 10.0
EDGES_US = (10, 30, 100, 300, 1_000, 3_000, 10_000)
PAUSE = 1e-3  # seconds from a call to when the next is due: two cores are busy, and not saturated
SWITCH = 50e-6  # seconds a thread may keep the interpreter lock (Python's default of 5 ms is itself a stall)
SETTLE = 2.0  # seconds recorded after the operation returned: what it left to be freed is freed then
REFERENCE = "NumPy alone"
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}
ENVS = 1_000
READS = 1_024  # random places per call of the reference; a sample of 256 reads about as many
ROW_BYTES = 64  # one item's bookkeeping

Phases = dict[str, dict[str, np.ndarray]]  # phase -> caller -> [calls, 2]: when it was due, seconds until it was over


class Caller(threading.Thread):
    """Calls `action` again and again and notes how long each call took."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        """Prepare; `start` starts."""
        super().__init__(name=name, daemon=True)
        self.action = action
        self.calls = np.zeros((200_000, 2))  # made beforehand: no growth while we measure
        self.count = 0
        self.first = 0  # calls before it belong to the start of the threads, not to the phase
        self.failure: Exception | None = None
        self.halt = threading.Event()

    def run(self) -> None:
        """Call until told to halt."""
        clock, log, action = time.perf_counter, self.calls, self.action
        log[:] = -1  # touch every page now
        try:
            while not self.halt.is_set() and self.count < len(log):
                due = clock() + PAUSE
                time.sleep(PAUSE)
                action()
                log[self.count] = due, clock() - due
                self.count += 1
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            self.failure = error

    def finish(self) -> np.ndarray:
        """Halt; all calls."""
        self.halt.set()
        self.join(timeout=60)
        if self.failure is not None:
            raise self.failure
        if self.is_alive() or self.count == len(self.calls):
            msg = f"the {self.name} hangs, or has no room left, after {self.count} calls"
            raise TimeoutError(msg)
        return self.calls[self.first : self.count].copy()


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


def reference(items: int) -> Callable[[], object]:
    """Read random places of as much memory as the items' bookkeeping takes, with NumPy alone."""
    rows = np.ones((items, ROW_BYTES), np.uint8)
    generator = np.random.default_rng(0)

    def read() -> None:
        rows[generator.integers(0, items, READS), 0].sum()

    return read


@contextmanager
def watched(store: engram.Store, phases: Phases, phase: str, numpy: Callable[[], object]) -> Iterator[None]:
    """Record the latencies of all callers while the body runs, and a while longer."""
    # Chunks of one step: after a reset, a sample waits for the next step, not for the rest of a chunk.
    writer = store.pattern_writer([engram.Pattern("live", num_steps=2)], chunk_length=1)
    step = steps()
    callers = [
        Caller("insert", lambda: writer.append(step)),
        Caller("sample", lambda: store.sample("live", 256, timeout=60)),
        Caller(REFERENCE, numpy),
    ]
    for caller in callers:
        caller.start()
    time.sleep(0.5)
    for caller in callers:
        caller.first = caller.count
    yield
    time.sleep(SETTLE)
    phases[phase] = {caller.name: caller.finish() for caller in callers}
    writer.close()


def measure(items: int) -> Phases:
    """All phases, in an order in which each finds full tables."""
    phases: Phases = {}
    numpy = reference(items)
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


def histogram(runs: list[Phases]) -> str:
    """Render calls per bucket of latency over all runs, and the longest of each run."""
    heads = [f"< {edge:,} us" for edge in EDGES_US] + [f">= {EDGES_US[-1]:,} us"]
    text = "| phase | caller | " + " | ".join(heads) + " | longest of each run, ms |\n"
    text += "|---|---|" + "---:|" * len(heads) + "---|\n"
    for phase, callers in runs[0].items():
        for caller in callers:
            taken = [run[phase][caller][:, 1] for run in runs]
            counts = np.histogram(np.concatenate(taken) * 1e6, bins=(0, *EDGES_US, np.inf))[0]
            cells = " | ".join(f"{count:,}" for count in counts)
            longest = ", ".join(f"{each.max() * 1e3:.2f}" for each in taken)
            text += f"| {phase} | {caller} | {cells} | {longest} |\n"
    return text


class Call(NamedTuple):
    """One call, and what the machine did meanwhile; all in milliseconds."""

    took: float
    paused: float  # of it, a core stood still
    caller: str
    phase: str

    def __str__(self) -> str:
        """Say it in a line."""
        paused = f", in {self.paused:.2f} ms of which a core stood still" if self.paused else ""
        return f"{self.took:.2f} ms ({self.caller}, {self.phase}{paused})"


def calls(run: Phases, pauses: Pauses, *, ours: bool) -> list[Call]:
    """List those that took longer than the bound, and the longest in any case; longest first."""
    found: list[Call] = []
    for phase, callers in run.items():
        for caller, log in callers.items():
            if (caller != REFERENCE) == ours:
                long = log[(log[:, 1] > BOUND_MS / 1e3) | (log[:, 1] == log[:, 1].max())]
                found += [
                    Call(took * 1e3, pauses.within(begin, begin + took) * 1e3, caller, phase) for begin, took in long
                ]
    found.sort(reverse=True)
    return [call for number, call in enumerate(found) if number == 0 or call.took > BOUND_MS]


def stood_still(runs: list[Phases], pauses: Pauses) -> str:
    """Tell how much of each phase some core stood still."""
    shares = []
    for phase in runs[0]:
        logs = [run[phase][REFERENCE] for run in runs]
        spans = [(log[0, 0], log[-1].sum()) for log in logs]
        share = sum(pauses.within(*span) for span in spans) / sum(end - begin for begin, end in spans)
        shares.append(f"{phase}: {share:.2%}")
    return "; ".join(shares)


def verdict(runs: list[Phases], pauses: Pauses) -> tuple[bool, str]:
    """Whether no call of ours took longer than the bound, standing still left out; and each that took longer."""
    ours = [calls(run, pauses, ours=True) for run in runs]
    numpy = [calls(run, pauses, ours=False) for run in runs]
    kept = [all(call.took <= BOUND_MS for call in run) for run in ours]
    kept_running = [all(call.took - call.paused <= BOUND_MS for call in run) for run in ours]
    lines = [f"In {sum(kept)} of {len(runs)} runs no call of ours took longer than {BOUND_MS:g} ms;"]
    if pauses.known:
        lines += [
            f"in {sum(kept_running)} of {len(runs)}, when the time is left out in which a core, any core, stood still.",
            f"Some core stood still for so much of each phase: {stood_still(runs, pauses)}.",
        ]
    else:
        lines += ["whether the cores stood still meanwhile is not known (the watchers need real-time priority)."]
    lines += [
        f"NumPy alone kept to it in {sum(run[0].took <= BOUND_MS for run in numpy)}.\n",
        f"Longest of each run: {'; '.join(str(run[0]) for run in ours)}.",
    ]
    for number, run in enumerate(ours, 1):
        lines += [f"\n**Longer in run {number}**: {call}." for call in run if call.took > BOUND_MS]
    return all(kept_running), "\n".join(lines)


def main() -> int:
    """Measure, print, maybe write; 1 if a call took longer than the bound, standing still left out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stall", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=5_000_000, help="items per table (default: 5,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="how often to measure (default: 5)")
    parser.add_argument("--write", action="store_true", help="write the histogram to docs/performance.md")
    arguments = parser.parse_args()
    if not KEEP_MEMORY.items() <= os.environ.items():  # read when the process begins
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.stall", *sys.argv[1:]], os.environ | KEEP_MEMORY)  # noqa: S606
    sys.setswitchinterval(SWITCH)
    gc.disable()  # Python's collector stops all threads: not what is asked here
    with Pauses() as pauses:
        measure(arguments.items)
        runs = [measure(arguments.items) for _ in range(arguments.runs)]
    kept, sentences = verdict(runs, pauses)
    command = f"python -m benchmarks.stall --items {arguments.items} --runs {arguments.runs}"
    text = (
        f"{histogram(runs)}\n{sentences}\n\n* machine: {report.machine()}\n"
        f"* load average at the end: {report.load()}\n* command: `{command}`\n* commit: `{report.commit()}`\n"
    )
    print(text)
    if arguments.write:
        report.write("stall", text)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
