"""What the callers of a stall benchmark went through: histogram, verdict, and the page."""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import report
from benchmarks.callers import REFERENCE, Phases
from benchmarks.pauses import Pauses

BOUND_MS = 10.0
EDGES_US = (10, 30, 100, 300, 1_000, 3_000, 10_000)
SWITCH = 50e-6  # seconds a thread may keep the interpreter lock (Python's default of 5 ms is itself a stall)
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}


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
        length = sum(end - begin for begin, end in spans)
        share = sum(pauses.within(*span) for span in spans) / length
        shares.append(f"{phase}: {share:.2%} of {length:.1f} s")
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


class Size(NamedTuple):
    """An option that says how much to measure with."""

    name: str
    default: int
    what: str


def parse(module: str, about: str | None, sizes: Sequence[Size]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    for size in (*sizes, Size("runs", 5, "how often to measure")):
        parser.add_argument(
            f"--{size.name}", type=int, default=size.default, help=f"{size.what} (default: {size.default:,})"
        )
    parser.add_argument("--write", action="store_true", help="write the histogram to docs/performance.md")
    return parser.parse_args()


def main(module: str, about: str | None, section: str, sizes: Sequence[Size], measure: Callable[..., Phases]) -> int:
    """Measure, print, maybe write; 1 if a call took longer than the bound, standing still left out."""
    arguments = parse(module, about, sizes)
    if not KEEP_MEMORY.items() <= os.environ.items():  # read when the process begins
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | KEEP_MEMORY)  # noqa: S606
    sys.setswitchinterval(SWITCH)
    gc.disable()  # Python's collector stops all threads: not what is asked here
    given = {size.name: getattr(arguments, size.name) for size in sizes}
    runs: list[Phases] = []
    with Pauses() as pauses:
        for number in range(arguments.runs + 1):  # the first makes the process have enough memory, and does not count
            print(f"run {number} of {arguments.runs}", file=sys.stderr, flush=True)
            runs.append(measure(**given))
    del runs[0]
    kept, sentences = verdict(runs, pauses)
    options = " ".join(f"--{name} {value}" for name, value in {**given, "runs": arguments.runs}.items())
    text = (
        f"{histogram(runs)}\n{sentences}\n\n* machine: {report.machine()}\n"
        f"* load average at the end: {report.load()}\n* command: `python -m {module} {options}`\n"
        f"* commit: `{report.commit()}`\n"
    )
    print(text)
    if arguments.write:
        report.write(section, text)
    return int(not kept)
