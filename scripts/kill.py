"""Kills a store at random moments, many times, and compares it with a model of what it had acknowledged.

    .venv/bin/python scripts/kill.py --rounds 1000

Exits with 1 if the store lost something that was acknowledged, or differs from the model otherwise. It then keeps the
store and prints its path.

With `--readers`, kills a durable server and cuts connections while producers and consumers use its queue. Exits with 1
if a consumer's program missed an item, or two programs received it, or one received it twice.
"""

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.consumer_checker import ConsumerChecker
from helpers.crash_checker import FAULTS, CrashChecker


def progress(checker: CrashChecker, began: float) -> str:
    """Returns a line with the results so far."""
    report = checker.report
    faults = ", ".join(f"{name} {report.faults[name]}" for name in FAULTS if report.faults[name]) or "no faults"
    return (
        f"{report.rounds:6} rounds  {time.monotonic() - began:7.1f} s  {report.calls} calls and {report.items} items "
        f"acknowledged, {faults}"
    )


def check_readers(path: Path, seed: int, rounds: int) -> bool:
    """Makes the faults; returns True if each item was received once."""
    checker = ConsumerChecker(path, seed)
    began = time.monotonic()
    try:
        for number in range(1, rounds + 1):
            checker.round()
            if number % 50 == 0:
                print(f"{number:6} rounds  {time.monotonic() - began:7.1f} s  {checker.num_received} items", flush=True)
        lost, repeated = checker.finish()
    finally:
        checker.close()
    print(f"faults: {dict(checker.faults)}")
    print(f"received: {checker.num_received}, lost: {lost}, more than once: {repeated}")
    print(f"time: {time.monotonic() - began:.1f} s")
    return not lost and not repeated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000, help="number of kills; default: 1000")
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the calls and of the moments of the kills; random by default"
    )
    parser.add_argument("--durability", choices=["process", "disk"], default="process")
    parser.add_argument(
        "--readers", action="store_true", help="check readers whose server is killed, instead of a store"
    )
    arguments = parser.parse_args()
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    root = Path(tempfile.mkdtemp(prefix="engram-kill-"))
    if arguments.readers:
        print(f"seed {seed}, {root}", flush=True)
        if not check_readers(root / "store", seed, arguments.rounds):
            return 1
        shutil.rmtree(root)
        return 0
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
