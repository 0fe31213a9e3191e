"""`python -m benchmarks.buffers`: compares `engram.buffers.ReplayBuffer` with cpprb and with `numpy.take`.

The engines run one after the other, each in a process of its own. Figures are medians over the runs of the processor
time per call, which depends less on what else the machine does; ratios are medians over the runs of the ratio within a
run.
"""

import argparse
import json
import os
import statistics
import subprocess

from benchmarks import peers

ENGINES = ("engram", "cpprb", "numpy")
TARGETS = {
    "add one": 3.0,
    "add 64": 2.0,
    "uniform 32": 2.0,
    "uniform 256": 2.0,
    "sample and update 256": 5.0,
    "update 256 after a sample": 1.0,
    "update 256 without samples": 1.0,
    "uniform 4096 into `out`": 0.5,
}
"""How many times as fast as cpprb, or as `numpy.take` for the last one, the buffer should be."""


def run(engine: str, steps: int, calls: int) -> dict[str, float]:
    """Runs an engine once; returns the microseconds per call of each workload."""
    python = peers.python_of("cpprb" if engine == "cpprb" else "engram")
    command = [python, "-m", "benchmarks.workers.buffer_worker", engine, str(steps), str(calls)]
    environment = os.environ | {"PYTHONPATH": str(peers.ROOT / "python")}
    done = subprocess.run(command, cwd=peers.ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Prints a table of microseconds per call and of ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buffers", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each engine (default: 5)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps in the buffer (default: 1,000,000)")
    parser.add_argument("--calls", type=int, default=5_000, help="calls per workload and run (default: 5,000)")
    arguments = parser.parse_args()
    runs = []
    for number in range(arguments.runs):
        peers.log(f"run {number + 1} of {arguments.runs}")
        runs.append({engine: run(engine, arguments.steps, arguments.calls) for engine in ENGINES})
    print("| workload | Engram | cpprb 11 | `numpy.take` | times as fast as the peer | target |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in runs[0]["engram"]:
        cells = [name]
        for engine in ENGINES:
            values = [each[engine][name] for each in runs if name in each[engine]]
            cells.append(f"{statistics.median(values):.2f} us" if values else "")
        peer = next((engine for engine in ENGINES[1:] if name in runs[0][engine]), "")
        ratios = [each[peer][name] / each["engram"][name] for each in runs]
        target = TARGETS.get(name)
        cells += [f"{statistics.median(ratios):.2f}", f"{target:g}" if target else ""]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
