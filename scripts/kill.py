"""Kills a store at random moments, many times, and compares it with a model of what it had acknowledged.

    .venv/bin/python scripts/kill.py --rounds 1000

Exits with 1 if the store lost something that was acknowledged, or differs from the model otherwise. It then keeps the
store and prints its path.
"""

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.crash_checker import FAULTS, CrashChecker


def progress(checker: CrashChecker, began: float) -> str:
    """Returns a line with the results so far."""
    report = checker.report
    faults = ", ".join(f"{name} {report.faults[name]}" for name in FAULTS if report.faults[name]) or "no faults"
    return (
        f"{report.rounds:6} rounds  {time.monotonic() - began:7.1f} s  {report.calls} calls and {report.items} items "
        f"acknowledged, {faults}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000, help="number of kills; default: 1000")
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the calls and of the moments of the kills; random by default"
    )
    parser.add_argument("--durability", choices=["process", "disk"], default="process")
    arguments = parser.parse_args()
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    root = Path(tempfile.mkdtemp(prefix="engram-kill-"))
    checker = CrashChecker(root / "stores", seed, arguments.durability)
    print(f"seed {seed}, durability {arguments.durability}, {root}", flush=True)
    began = time.monotonic()
    for number in range(1, arguments.rounds + 1):
        printed = len(checker.report.descriptions)
        checker.round()
        for text in checker.report.descriptions[printed:]:
            print(text, flush=True)
        if number % 50 == 0:
            print(progress(checker, began), flush=True)
    report = checker.report
    print(f"rounds: {report.rounds}")
    print(f"acknowledged: {report.calls} calls, {report.items} items")
    print(f"killed between a call and its acknowledgement: {report.unreported}; within a call: {report.partial}")
    for name in FAULTS:
        print(f"{name}: {report.faults[name]}")
    print(f"time: {time.monotonic() - began:.1f} s")
    if report.faults:
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
