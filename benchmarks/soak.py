"""Runs a server and several clients with mixed load; reports memory, errors and latencies.

    python -m benchmarks.soak --minutes 60

Each client writes with trajectory, pattern and batched writers, inserts, samples uniformly, by priority and from
queues, updates priorities, deletes, reads infos and metrics, and creates, resets and drops tables; the first one writes
checkpoints. Once per second, each client process also makes a connection that writes and
samples once, and ends. All tables but the queues must be full
after half of the time, so that memory can level off.

Memory is what each process has in use: anonymous pages, without those that it has offered back to the system. For each
of the longest calls the report states what happened meanwhile: a checkpoint, or gaps in which a process could not run
because the machine was busy or, in the client, another thread held the interpreter lock.
"""

import argparse
import collections
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers, report
from benchmarks.soak_load import BOUNDS, Ticker

MAX_LISTED = 12
"""Number of longest calls, and of errors, that the report lists."""

MAX_GROWTH = 0.02
"""Share by which the mean memory in the last quarter may exceed that in the quarter before."""

Gap = tuple[float, float]  # begin and end, in seconds of `time.monotonic`


class Process:
    """A server's or a client's process of the soak test; a thread reads the lines that the process prints."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.soak_load", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=peers.ROOT
        )
        self.lines: list[dict[str, Any]] = []
        self.memory: list[tuple[float, float]] = []  # seconds since the start, MiB
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            self.lines.append(json.loads(line))
            self._first.set()
        self._first.set()

    def first(self) -> dict[str, Any]:
        """Waits for the first line."""
        self._first.wait(60)
        if not self.lines:
            raise RuntimeError("a process ended, or sent nothing for 60 s; its own error is above")
        return self.lines[0]

    def measure_memory(self, seconds: float) -> None:
        """Records the memory in use, `seconds` after the start."""
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text(encoding="ascii")
            kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", rollup, re.MULTILINE)}
            self.memory.append((seconds, (kilobytes["Anonymous"] - kilobytes["LazyFree"]) / 1024))

    def is_running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def stop(self) -> int:
        """Closes the process's stdin, waits until it has ended and all lines are read; returns its exit status."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        status = self._process.wait(120)
        self._reader.join(60)
        return status

    def gaps(self) -> list[Gap]:
        """When the process could not run."""
        return [(begin, end) for line in self.lines for begin, end in line.get("gaps", ())]

    def mean_memory(self, begin: float, end: float) -> float:
        """Mean memory in use from `begin` to `end`, in seconds since the start, in MiB; NaN without a measurement."""
        values = [value for seconds, value in self.memory if begin <= seconds < end]
        return float(np.mean(values)) if values else float("nan")


def overlap(gaps: list[Gap], begin: float, end: float) -> float:
    """Returns how many seconds of the gaps lie between two times."""
    return sum(max(0.0, min(end, gap_end) - max(begin, gap_begin)) for gap_begin, gap_end in gaps)


def quantile(counts: np.ndarray, share: float) -> float:
    """Returns a quantile in milliseconds: the upper bound of its bucket, or the largest bound if it is above that."""
    bucket = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    return float(BOUNDS[min(bucket, len(BOUNDS) - 1)]) * 1e3


def memory_table(processes: dict[str, Process], seconds: float) -> str:
    """Renders the memory per minute (per quarter of a run below two minutes), and compares the last two quarters."""
    step = 60.0 if seconds >= 120.0 else max(1.0, seconds / 4)
    text = "| minute | " + " | ".join(f"{name}, MiB" for name in processes) + " |\n|---:|" + "---:|" * len(processes)
    for begin in np.arange(0.0, seconds, step):
        cells = " | ".join(f"{each.mean_memory(begin, begin + step):.1f}" for each in processes.values())
        text += f"\n| {begin / 60:.1f} | {cells} |"
    half, last = seconds / 2, seconds * 3 / 4
    for name, each in processes.items():
        before, after = each.mean_memory(half, last), each.mean_memory(last, seconds + 1)
        text += f"\n\n* {name}: {before:.1f} MiB, then {after:.1f} MiB in the last quarter ({after / before - 1:+.1%})"
    return text


def latency_table(clients: list[Process]) -> str:
    """Renders the latencies per kind of call.

    The longest is exact if it was above `soak_load.LONG`, otherwise the upper bound of its bucket.
    """
    sums: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(len(BOUNDS) + 1, np.int64))
    longest: dict[str, float] = collections.defaultdict(float)
    for line in (line for each in clients for line in each.lines):
        for name, counts in line["counts"].items():
            for bucket, count in counts.items():
                sums[name][int(bucket)] += count
        for name, begin, end in line["long"]:
            longest[name] = max(longest[name], end - begin)
    text = "| call | number | p50, ms | p99, ms | longest, ms |\n|---|---:|---:|---:|---:|"
    for name, counts in sorted(sums.items()):
        most = longest[name] * 1e3 or quantile(counts, 1.0)
        text += (
            f"\n| {name} | {counts.sum():,} | {quantile(counts, 0.5):.2f} | {quantile(counts, 0.99):.2f} | {most:.1f} |"
        )
    return text


def long_calls(clients: list[Process], server: Process, machine: list[Gap]) -> str:
    """Lists the longest calls, each with what happened meanwhile; `machine` has those of this idle process."""
    calls = [
        (end - begin, name, begin, end, number)
        for number, each in enumerate(clients)
        for line in each.lines
        for name, begin, end in line["long"]
    ]
    checkpoints = [(begin, end) for _, name, begin, end, _ in calls if name == "checkpoint"]
    causes = {"server could not run": server.gaps(), "machine busy": machine, "checkpoint": checkpoints}
    client_gaps = [each.gaps() for each in clients]
    lines = []
    for seconds, name, begin, end, number in sorted(calls, reverse=True)[:MAX_LISTED]:
        reasons = [
            f"{cause} for {shared * 1e3:.0f} ms"
            for cause, gaps in {"client could not run": client_gaps[number], **causes}.items()
            if (shared := overlap(gaps, begin, end))
        ]
        lines.append(f"* {seconds * 1e3:.0f} ms, {name}: {', '.join(reasons) or 'no known cause'}")
    return "\n".join(lines)


def run(minutes: float, pause: float, number_of_clients: int) -> int:
    """Runs the load and prints the report. `pause` is in seconds, between two calls of a thread.

    Returns 1 if a call failed, a thread of a client ended early, a process failed, its memory grew, or the tables
    filled too slowly.
    """
    seconds = minutes * 60
    ticker = Ticker()
    peers.HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-", dir=peers.HOME) as directory:
        server = Process("server", directory)
        addresses = server.first()
        arguments = (addresses["address"], addresses["metrics"], str(seconds), str(pause))
        clients = [Process("client", *arguments, str(int(number == 0))) for number in range(number_of_clients)]
        processes = {"server": server} | {f"client {number}": each for number, each in enumerate(clients, 1)}
        begin = time.monotonic()
        while any(each.is_running() for each in clients):
            time.sleep(1.0)
            for each in processes.values():
                each.measure_memory(time.monotonic() - begin)
        failed = [name for name, each in reversed(processes.items()) if each.stop() != 0]
    failed += [
        name
        for name, each in processes.items()
        if each is not server and name not in failed and not (each.lines and each.lines[-1].get("last"))
    ]
    lines = [line for each in clients for line in each.lines]
    errors = [error for line in lines for error in line["errors"]]
    incomplete = [line for line in lines if line["threads"] < line["expected"]]
    half = seconds / 2
    full = next((line["full"] - begin for line in server.lines if "full" in line), None)
    grown = [
        name
        for name, each in processes.items()
        if each.mean_memory(seconds * 3 / 4, seconds + 1) > (1 + MAX_GROWTH) * each.mean_memory(half, seconds * 3 / 4)
    ]
    print(f"{memory_table(processes, seconds)}\n\n{latency_table(clients)}\n")
    print(f"Longest calls:\n\n{long_calls(clients, server, ticker.take())}\n")
    print(f"* {len(errors)} errors{''.join(chr(10) + '  * ' + error for error in errors[:MAX_LISTED])}")
    if incomplete:
        print(f"* threads ended early: only {incomplete[0]['threads']} of {incomplete[0]['expected']} still ran")
    if failed:
        print(f"* processes that failed: {', '.join(failed)}")
    when = "never all full" if full is None else f"full after {full / 60:.1f} minutes"
    print(f"* tables except queues: {when}; expected at most {half / 60:.1f} minutes")
    print(f"* grew by more than {MAX_GROWTH:.0%} in the last quarter: {', '.join(grown) or 'none'}")
    print(f"* machine: {report.machine()}; load average at the end: {report.load()}")
    print(
        f"* command: `python -m benchmarks.soak --minutes {minutes:g} --pause {pause:g} --clients {len(clients)}`; "
        f"commit: {report.commit()}"
    )
    return int(bool(errors or incomplete or failed or grown or full is None or full > half))


def main() -> int:
    """Runs the soak test with the options of the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="duration of the load (default: 60)")
    parser.add_argument(
        "--pause", type=float, default=0.005, help="seconds between two calls of a thread (default: 0.005)"
    )
    parser.add_argument("--clients", type=int, default=3, help="number of client processes (default: 3)")
    arguments = parser.parse_args()
    return run(arguments.minutes, arguments.pause, arguments.clients)


if __name__ == "__main__":
    sys.exit(main())
