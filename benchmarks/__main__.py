"""`python -m benchmarks`: measures Engram and its peers (Reverb, cpprb and TF-Agents) in alternating runs.

Prints a table of figures and ratios; `--write` also writes it to benchmarks/results, and main figures to README.md and
docs/performance.md.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import build, data, durable, network, peers, report, shares, summary, tf_agents, workloads
from benchmarks.measure import Row, measure
from benchmarks.workloads import Workload


class Section(NamedTuple):
    """A table of benchmarks/results."""

    title: str
    workloads: tuple[Workload, ...]
    table: Callable[[list[Row]], str]
    group: str = ""  # another name that selects this section, together with others of the same group


SECTIONS: dict[str, Section] = {
    "bench": Section("Workloads in one process", workloads.WORKLOADS, report.table),
    "network": Section("Workloads over the network, all processes on one machine", network.WORKLOADS, report.table),
    "data": Section("Datasets of `engram.data`, from a server in another process", data.WORKLOADS, report.table),
    "tf_agents": Section("TF-Agents' uniform replay buffer", tf_agents.WORKLOADS, report.table),
    "durable_rates": Section("Insert rates of durable stores", durable.RATES, shares.table, "durable"),
    "durable_saves": Section("Checkpoints and restores of 500 MB of noise", durable.SAVES, shares.table, "durable"),
}
STALL = "durable_stall"  # runs only if it or `durable` is named, in a process of its own: benchmarks.stall_checkpoint


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known_workloads = {workload.name for section in SECTIONS.values() for workload in section.workloads}
    known = known_workloads | SECTIONS.keys()
    known |= {STALL} | {section.group for section in SECTIONS.values() if section.group}
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"workload or section: {', '.join(sorted(known))}; default: all except {STALL}",
    )
    parser.add_argument("--runs", type=int, default=3, help="runs per row of a table (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small tables and short runs, as a smoke test")
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        help=f"run only this engine, such as `engram` or `reverb`; repeatable; {STALL} always runs Engram only",
    )
    parser.add_argument("--install", action="store_true", help="only create the virtual environments of the peers")
    parser.add_argument("--write", action="store_true", help="also write tables to benchmarks/results")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.workloads if name not in known]
    if unknown:
        parser.error(f"unknown workload `{unknown[0]}`; expected one of {', '.join(sorted(known))}")
    if arguments.quick and arguments.write:
        parser.error("`--write` cannot be used with `--quick`: results are those of full runs only")
    if arguments.write and (arguments.engine or known_workloads & set(arguments.workloads)):
        parser.error("`--write` replaces whole tables: name sections instead of workloads, and no `--engine`")
    return arguments


def stall(arguments: argparse.Namespace) -> int:
    """Measures how checkpoints delay other calls; returns the exit status."""
    runs = 1 if arguments.quick else arguments.runs
    command = [sys.executable, "-m", "benchmarks.stall_checkpoint", "--runs", str(runs)]
    if arguments.quick:
        command += ["--quick", "--items", "200000", "--frames", "2000"]
    if arguments.write:
        command.append("--write")
    return subprocess.run(command, cwd=peers.ROOT, check=False).returncode


def main() -> int:
    """Measures the chosen workloads; returns 1 if any run failed, or if a checkpoint delayed another call too long."""
    arguments = parse()
    if arguments.install:
        for peer in peers.PEERS:
            peers.environment(peer)
        return 0
    if not arguments.quick:
        build.require_release()
    failed, named = False, set(arguments.workloads)
    for name, section in SECTIONS.items():
        chosen = [each for each in section.workloads if not named or named & {name, section.group, each.name}]
        rows: list[Row] = []
        for workload in chosen:
            rows += measure(workload, runs=arguments.runs, quick=arguments.quick, engines=set(arguments.engine))
        if not chosen:
            continue
        text = f"{section.table(rows)}\n{report.circumstances(rows, arguments.runs)}"
        print(text)
        errors = any(row.errors for row in rows)
        if arguments.write and not errors:
            report.write(name, section.title, text)
            summary.write()
        failed |= errors
    if named & {STALL, "durable"}:
        failed |= stall(arguments) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
