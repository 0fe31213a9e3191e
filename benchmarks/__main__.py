"""`python -m benchmarks`: peers and ours in turn; ratios to stdout, with `--write` to the page."""

import argparse
import sys

from benchmarks import network, peers, report, workloads
from benchmarks.measure import Row, measure
from benchmarks.workloads import Workload

# By their section of the page.
SECTIONS: dict[str, tuple[Workload, ...]] = {"bench": workloads.WORKLOADS, "network": network.WORKLOADS}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = {workload.name for section in SECTIONS.values() for workload in section} | SECTIONS.keys()
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"or a section; default: all of {', '.join(sorted(known))}"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs per engine (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small tables, short runs: a smoke test")
    parser.add_argument("--engine", action="append", default=[], help="only this engine (repeatable)")
    parser.add_argument("--install", action="store_true", help="only make the peers' environments")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.workloads if name not in known]
    if unknown:
        parser.error(f"no workload `{unknown[0]}`; known: {', '.join(sorted(known))}")
    if arguments.quick and arguments.write:
        parser.error("`--quick` figures do not belong on the page: leave out `--write`")
    return arguments


def main() -> int:
    """Measure what was asked; 1 if any run failed."""
    arguments = parse()
    if arguments.install:
        for peer in peers.PEERS:
            peers.environment(peer)
        return 0
    failed, named = False, set(arguments.workloads)
    for section, offered in SECTIONS.items():
        chosen = [each for each in offered if not named or named & {section, each.name}]
        rows: list[Row] = []
        for workload in chosen:
            rows += measure(workload, runs=arguments.runs, quick=arguments.quick, engines=set(arguments.engine))
        if not chosen:
            continue
        text = f"{report.table(rows)}\n{report.circumstances(rows, arguments.runs)}"
        print(text)
        if arguments.write:
            report.write(section, text)
        failed |= any(row.errors for row in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
