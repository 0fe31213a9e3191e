"""`python -m benchmarks.buffers`: compares `engram.buffers.ReplayBuffer` with the buffers of other libraries.

They are cpprb, TorchRL and flashbax; `numpy.take` shows the cost of copying alone. The engines run one after the other,
each in a process of its own. Figures are medians over the runs; ratios are medians over the runs of the ratio within a
run. On one core, the processor time per call is measured, which depends less on what else the machine does; on two,
the elapsed time.
"""

import argparse
import json
import os
import statistics
import subprocess

from benchmarks import build, peers, report, summary

LIBRARIES = ("cpprb", "torchrl", "flashbax")
ENGINES = ("engram", *LIBRARIES, "numpy")
TARGETS = {
    "add one": ("best", 3.0),
    "add 64": ("best", 2.0),
    "uniform 32": ("cpprb", 2.0),
    "uniform 256": ("cpprb", 2.0),
    "uniform 4096": ("flashbax", 2.0),
    "uniform 4096 into `out`": ("numpy", 0.5),
    "sample and update 256": ("best", 5.0),
    "update 256 after a sample": ("cpprb", 1.0),
    "update 256 without samples": ("cpprb", 1.0),
    "Atari 256 into `out`": ("numpy", 0.95),
    "Atari 256 into `out`, 2 cores": ("numpy", 1.0),
}
"""The engine to compare with, or the fastest library, and how many times as fast the buffer should be."""


def run(engine: str, steps: int, calls: int) -> dict[str, float]:
    """Runs an engine once; returns the microseconds per call of each workload."""
    figures: dict[str, float] = {}
    python = peers.python_of(engine)
    environment = os.environ | {"PYTHONPATH": str(peers.ROOT / "python")}
    for cores in (1, 2):
        arguments = [engine, str(steps if cores == 1 else 10_000), str(calls), str(cores)]
        command = [python, "-m", "benchmarks.workers.buffer_worker", *arguments]
        done = subprocess.run(command, cwd=peers.ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{engine} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            raise RuntimeError(msg)
        figures |= json.loads(done.stdout.splitlines()[-1])
    return figures


def print_table(runs: list[dict[str, dict[str, float]]]) -> None:
    """Prints medians and ratios of the runs."""
    print("| workload | Engram | cpprb 11 | TorchRL 0.14 | flashbax 0.1.3 | `numpy.take` | times as fast as | target |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in runs[0]["engram"]:
        cells = [name]
        for engine in ENGINES:
            values = [each[engine][name] for each in runs if name in each[engine]]
            cells.append(f"{statistics.median(values):.2f} us" if values else "")
        peer, target = TARGETS.get(name, ("best", None))
        rivals = [library for library in LIBRARIES if name in runs[0][library]] or ["numpy"]
        rivals = rivals if peer == "best" else [peer]
        ratios = [min(each[rival][name] for rival in rivals) / each["engram"][name] for each in runs]
        known = all(rival in runs[0] and name in runs[0][rival] for rival in rivals)
        shown = "the best library" if peer == "best" and rivals != ["numpy"] else rivals[0]
        cells += [f"{statistics.median(ratios):.2f} {shown}" if known else "", f"{target:g}" if target else ""]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Prints a table of microseconds per call and of ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buffers", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each engine (default: 5)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps in the buffer (default: 1,000,000)")
    parser.add_argument("--calls", type=int, default=5_000, help="calls per workload and run (default: 5,000)")
    parser.add_argument("--write", action="store_true", help="also write the table to benchmarks/results")
    arguments = parser.parse_args()
    if arguments.write and (arguments.runs, arguments.steps, arguments.calls) != (5, 1_000_000, 5_000):
        parser.error("`--write` replaces the published table: it takes the default settings only")
    build.require_release()
    runs = []
    for number in range(arguments.runs):
        peers.log(f"run {number + 1} of {arguments.runs}")
        runs.append({engine: run(engine, arguments.steps, arguments.calls) for engine in ENGINES})
    title = "Replay buffers in one process, times per call"
    with report.printed("buffers", title, "benchmarks.buffers", to_file=arguments.write):
        print_table(runs)
    if arguments.write:
        summary.write()


if __name__ == "__main__":
    main()
