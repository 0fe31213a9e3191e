"""Measures what open tabs of the dashboard cost a server: its CPU time, and the rates of inserts and samples.

A server, a dashboard, a load and the tabs (headless Chromium) are processes of their own. The tabs run at the lowest
priority, because they usually run on another machine than the server. Without and with tabs alternates; the figures are
medians of all rounds, and of the ratios of each round.

* CPU: seconds of CPU that the server uses per second without a load; the tabs are all that it works for.
* Rates: inserts and samples per second of a load that never waits, and both per second of the server's CPU, which
  depends less on what else the machine does.

    python -m benchmarks.dashboard --tabs 20 --rounds 5
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import engram
from benchmarks import build

SETTLE_S = 10.0
"""Pause after tabs are opened or closed: the dashboard stops reading some seconds after the last tab was closed."""

CLI = [sys.executable, "-m", "engram.cli"]
SELF = [sys.executable, "-m", "benchmarks.dashboard"]


def run_load(address: str) -> None:
    """Inserts and samples until stdin is closed."""
    client = engram.Client(address)
    step = {"obs": np.ones(64, np.float32), "action": np.int32(1), "reward": np.float32(1)}

    def insert() -> None:
        with client.pattern_writer([engram.Pattern("replay", num_steps=2)]) as writer:
            while True:
                writer.append(step)

    def sample() -> None:
        while True:
            client.sample("replay", 256, timeout=60)

    for work in (insert, sample):
        threading.Thread(target=work, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def run_tabs(url: str) -> None:
    """Opens as many tabs as each line of stdin states, and answers when their pages are connected."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415, only this process needs it

    os.nice(19)
    executable = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        for line in sys.stdin:
            while len(context.pages) > int(line):
                context.pages[-1].close()
            while len(context.pages) < int(line):
                tab = context.new_page()
                tab.set_default_timeout(120_000)
                tab.goto(url)
                tab.wait_for_function("window.did_handshake")
            print("done", flush=True)
        browser.close()


class Tabs:
    """The browser in its process."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [*SELF, "--run-tabs", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def show(self, count: int) -> None:
        """Opens or closes tabs until there are `count`, and waits until the server's work is steady."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", "the browser ended"
        time.sleep(SETTLE_S)

    def close(self) -> None:
        """Ends the browser."""
        self._process.communicate(timeout=60)


@contextmanager
def command(*arguments: str, pattern: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a command of `engram`; yields its process, and what the pattern matches in its first line."""
    with subprocess.Popen([*CLI, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.search(pattern, line)
            assert match, line
            yield process, match[1]
        finally:
            process.terminate()


@contextmanager
def load(address: str) -> Iterator[None]:
    """Inserts and samples in another process."""
    process = subprocess.Popen([*SELF, "--run-load", address], stdin=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.communicate(timeout=60)


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of the threads of a process."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


def cpu_share(pid: int, seconds: float) -> float:
    """Returns the seconds of CPU per second that a process uses."""
    before, started = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - started)


def rates(pid: int, client: engram.Client, seconds: float) -> tuple[float, float, float]:
    """Returns the inserts and samples per second of the table, and both together per second of the server's CPU."""
    before, used, started = client.info()["replay"], cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    after, elapsed = client.info()["replay"], time.monotonic() - started
    inserts, samples = after.inserts - before.inserts, after.samples - before.samples
    return inserts / elapsed, samples / elapsed, (inserts + samples) / (cpu_seconds(pid) - used)


def measure_cpu(pid: int, dashboard: int, tabs: Tabs, arguments: argparse.Namespace) -> None:
    """Prints the CPU time of an idle server without and with tabs."""
    counts = (0, 1, arguments.tabs)
    shares: dict[int, list[float]] = {count: [] for count in counts}
    pages: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(-(-arguments.rounds // 2)):
        for count in counts:
            tabs.show(count)
            before = cpu_seconds(dashboard)
            shares[count].append(cpu_share(pid, arguments.seconds))
            pages[count].append((cpu_seconds(dashboard) - before) / arguments.seconds)
    none = statistics.median(shares[0])
    for count in counts:
        share, page = statistics.median(shares[count]), statistics.median(pages[count])
        print(
            f"{count:3} tabs: the server uses {share:.3%} of a core, {share - none:+.3%} to none; the dashboard "
            f"{page:.1%}"
        )


def measure_rates(pid: int, client: engram.Client, tabs: Tabs, arguments: argparse.Namespace) -> None:
    """Prints the rates of a load without and with a tab."""
    found: dict[int, list[tuple[float, float, float]]] = {0: [], 1: []}
    for turn in range(arguments.rounds):
        for count in (0, 1) if turn % 2 == 0 else (1, 0):
            tabs.show(count)
            found[count].append(rates(pid, client, arguments.seconds))
    for index, name in enumerate(("inserts/s", "samples/s", "items per CPU second of the server")):
        none, one = ([each[index] for each in found[count]] for count in (0, 1))
        ratio = statistics.median(with_page / without for with_page, without in zip(one, none, strict=True))
        spread = (max(none) - min(none)) / statistics.median(none)
        print(
            f"{name}: {statistics.median(none):,.0f} without, {statistics.median(one):,.0f} with one tab; ratio "
            f"{ratio:.3f}, spread of the rounds without {spread:.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tabs", type=int, default=20, help="number of tabs (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (default: 5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds per measurement (default: 10)")
    parser.add_argument("--run-load", help=argparse.SUPPRESS)
    parser.add_argument("--run-tabs", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_load:
        run_load(arguments.run_load)
    elif arguments.run_tabs:
        run_tabs(arguments.run_tabs)
    else:
        build.require_release()
        with (
            command("serve", "--port", "0", pattern=r" at (\S+);") as (server, address),
            command("dashboard", address, "--port", "0", pattern=r"^(http\S+)$") as (dashboard, url),
            engram.Client(address) as client,
        ):
            tabs = Tabs(url)
            print(f"{os.cpu_count()} cores; the load at the start is {os.getloadavg()[0]:.1f}")
            with load(address):
                measure_rates(server.pid, client, tabs, arguments)
            measure_cpu(server.pid, dashboard.pid, tabs, arguments)
            tabs.close()


if __name__ == "__main__":
    main()
