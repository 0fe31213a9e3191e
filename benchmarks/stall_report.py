"""Command line and report of the stall benchmarks: histogram, verdict, longest calls."""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import build, report
from benchmarks.callers import REFERENCE, Phases
from benchmarks.pauses import Pauses

MAX_LATENCY_MS = 10.0  # the bound that no call of Engram may exceed
BUCKET_EDGES_US = (10, 30, 100, 300, 1_000, 3_000, 10_000)
SWITCH_INTERVAL = 50e-6  # seconds until a thread must release the GIL; Python's default, 5 ms, would be a stall
# With these, glibc (NumPy's and Python's allocator; Engram has its own) returns no freed memory to the system.
KEEP_MEMORY_ENV = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}


def histogram(runs: list[Phases]) -> str:
    """Renders the number of calls per latency bucket over all runs, and the longest call of each run."""
    heads = [f"< {edge:,} us" for edge in BUCKET_EDGES_US] + [f">= {BUCKET_EDGES_US[-1]:,} us"]
    text = "| phase | caller | " + " | ".join(heads) + " | longest of each run, ms |\n"
    text += "|---|---|" + "---:|" * len(heads) + "---|\n"
    for phase, callers in runs[0].items():
        for caller in callers:
            latencies = [run[phase][caller][:, 1] for run in runs]
            counts = np.histogram(np.concatenate(latencies) * 1e6, bins=(0, *BUCKET_EDGES_US, np.inf))[0]
            cells = " | ".join(f"{count:,}" for count in counts)
            longest = ", ".join(f"{each.max() * 1e3:.2f}" for each in latencies)
            text += f"| {phase} | {caller} | {cells} | {longest} |\n"
    return text


class Call(NamedTuple):
    """One call; times in milliseconds."""

    latency: float
    paused: float  # part of the latency in which a core was paused
    caller: str
    phase: str

    def __str__(self) -> str:
        """One line of the report."""
        paused = f", a core paused for {self.paused:.2f} ms of it" if self.paused else ""
        return f"{self.latency:.2f} ms ({self.caller}, {self.phase}{paused})"


def long_calls(run: Phases, pauses: Pauses, *, reference: bool) -> list[Call]:
    """Returns the calls above the bound, or only the longest call if there are none; longest first.

    `reference` selects the reference's calls; otherwise those of all other callers.
    """
    calls: list[Call] = []
    for phase, callers in run.items():
        for caller, log in callers.items():
            if (caller == REFERENCE) == reference:
                long = log[(log[:, 1] > MAX_LATENCY_MS / 1e3) | (log[:, 1] == log[:, 1].max())]
                calls += [
                    Call(latency * 1e3, pauses.within(begin, begin + latency) * 1e3, caller, phase)
                    for begin, latency in long
                ]
    calls.sort(reverse=True)
    return [call for number, call in enumerate(calls) if number == 0 or call.latency > MAX_LATENCY_MS]


def paused_shares(runs: list[Phases], pauses: Pauses) -> str:
    """Renders the share of each phase in which some core was paused."""
    shares = []
    for phase in runs[0]:
        logs = [run[phase][REFERENCE] for run in runs]
        spans = [(log[0, 0], log[-1].sum()) for log in logs]
        length = sum(end - begin for begin, end in spans)
        share = sum(pauses.within(*span) for span in spans) / length
        shares.append(f"{phase}: {share:.2%} of {length:.1f} s")
    return "; ".join(shares)


def verdict(runs: list[Phases], pauses: Pauses) -> tuple[bool, str]:
    """Returns whether no Engram call exceeded the bound, pauses of cores subtracted; and the report's sentences."""
    engram_calls = [long_calls(run, pauses, reference=False) for run in runs]
    numpy_calls = [long_calls(run, pauses, reference=True) for run in runs]
    met = [all(call.latency <= MAX_LATENCY_MS for call in calls) for calls in engram_calls]
    met_without_pauses = [all(call.latency - call.paused <= MAX_LATENCY_MS for call in calls) for calls in engram_calls]
    numpy_met = sum(calls[0].latency <= MAX_LATENCY_MS for calls in numpy_calls)
    no_long_call, of_all = f"no call took longer than {MAX_LATENCY_MS:g} ms in", f"of {len(runs)}"
    unpaused = f"; without the time in which a core was paused, in {sum(met_without_pauses)} {of_all}"
    lines = [
        f"* Engram: {no_long_call} {sum(met)} {of_all} runs{unpaused if pauses.measured else ''}.",
        f"* NumPy alone: {no_long_call} {numpy_met} {of_all} runs.",
        f"* Longest Engram call of each run: {'; '.join(str(calls[0]) for calls in engram_calls)}.",
        f"* Share of each phase in which a core was paused: {paused_shares(runs, pauses)}."
        if pauses.measured
        else "* Whether a core was paused is unknown: the watchers need real-time priority.",
    ]
    for number, calls in enumerate(engram_calls, 1):
        lines += [
            f"* **Above {MAX_LATENCY_MS:g} ms in run {number}**: {call}."
            for call in calls
            if call.latency > MAX_LATENCY_MS
        ]
    return all(met_without_pauses), "\n".join(lines)


class Size(NamedTuple):
    """A command line option that is a number, such as the size of a table."""

    name: str
    default: int
    help: str


class Result(NamedTuple):
    """The file of results that `--write` writes."""

    name: str
    title: str


def parse(module: str, about: str | None, sizes: Sequence[Size]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    for size in (*sizes, Size("runs", 5, "number of runs")):
        parser.add_argument(
            f"--{size.name}", type=int, default=size.default, help=f"{size.help} (default: {size.default:,})"
        )
    parser.add_argument("--write", action="store_true", help="write the report to benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="a smoke test: with any build of the engine")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("`--write` cannot be used with `--quick`: results are those of full runs only")
    return arguments


def main(module: str, about: str | None, result: Result, sizes: Sequence[Size], measure: Callable[..., Phases]) -> int:
    """Measures and prints the report; returns 1 if an Engram call exceeded the bound, pauses of cores subtracted."""
    arguments = parse(module, about, sizes)
    if not arguments.quick:
        build.require_release()
    if not KEEP_MEMORY_ENV.items() <= os.environ.items():  # glibc reads them when a process starts: start again
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | KEEP_MEMORY_ENV)  # noqa: S606
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.disable()  # Python's garbage collector stops all threads, which is not measured here
    values = {size.name: getattr(arguments, size.name) for size in sizes}
    runs: list[Phases] = []
    with Pauses() as pauses:
        for number in range(arguments.runs + 1):  # the first run only allocates memory
            print(f"run {number} of {arguments.runs}", file=sys.stderr, flush=True)
            runs.append(measure(**values))
    del runs[0]
    met, sentences = verdict(runs, pauses)
    options = " ".join(f"--{name} {value}" for name, value in {**values, "runs": arguments.runs}.items())
    text = f"{histogram(runs)}\n{sentences}\n\n{report.facts(f'python -m {module} {options}')}"
    print(text)
    if arguments.write:
        report.write(*result, text)
    return int(not met)
