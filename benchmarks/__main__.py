"""`python -m benchmarks`: peers and ours in turn; ratios to stdout, with `--write` to the page."""

import argparse
import sys

from benchmarks import peers, report
from benchmarks.measure import Row, measure
from benchmarks.workloads import WORKLOADS


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"default: all of {', '.join(WORKLOADS)}")
    parser.add_argument("--runs", type=int, default=3, help="runs per engine (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small tables, short runs: a smoke test")
    parser.add_argument("--engine", action="append", default=[], help="only this engine (repeatable)")
    parser.add_argument("--install", action="store_true", help="only make the peers' environments")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload `{unknown[0]}`; known: {', '.join(WORKLOADS)}")
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
    rows: list[Row] = []
    for name in arguments.workloads or WORKLOADS:
        rows += measure(
            WORKLOADS[name],
            runs=arguments.runs,
            quick=arguments.quick,
            engines=set(arguments.engine),
        )
    text = f"{report.table(rows)}\n{report.circumstances(rows, arguments.runs)}"
    print(text)
    if arguments.write:
        report.write("bench", text)
    return int(any(row.errors for row in rows))


if __name__ == "__main__":
    sys.exit(main())
