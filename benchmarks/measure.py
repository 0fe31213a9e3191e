"""Runs workers: a fresh process per run, contenders in turn, medians."""

import json
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import peers
from benchmarks.workers import common
from benchmarks.workloads import Contender, Workload

TIMEOUT = 900.0  # seconds per run


@dataclass
class Row:
    """What one contender did in one workload."""

    workload: Workload
    contender: Contender
    values: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """The middle figure of the runs that gave one."""
        return statistics.median(self.values) if self.values else None


def run_once(contender: Contender, task: dict[str, object]) -> dict[str, Any]:
    """One run in a fresh process: the worker's answer, or why there is none."""
    module = f"benchmarks.workers.{contender.engine}_worker"
    try:
        command = [peers.python_of(contender.engine), "-m", module, json.dumps(task)]
        done = subprocess.run(command, cwd=peers.ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no figure within {TIMEOUT:g} s"}
    except (OSError, RuntimeError) as error:  # the environment could not be made
        return {"error": str(error)}
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines() or ["nothing"]
        return {"error": f"exit status {done.returncode}, last words: {said[-1]}"}


def record() -> None:
    """Play Pong once, for all engines; where that fails, so do the runs that want to read it."""
    answer = run_once(Contender("ale", "recorder"), {"job": "record", "variant": ""})
    peers.talk(f"recorded Pong: {answer}")


def measure(workload: Workload, *, runs: int, quick: bool, engines: set[str]) -> Iterator[Row]:
    """Run every contender `runs` times, in turn (A B A B ...), and give a row for each."""
    if workload.step == "pong" and not common.PONG.exists():
        record()
    rows = [Row(workload, c) for c in workload.contenders if not engines or c.engine in engines]
    for turn in range(runs):
        for row in rows:
            answer = run_once(row.contender, workload.task(row.contender, quick=quick))
            row.versions |= answer.get("versions", {})
            if "value" in answer:
                row.values.append(float(answer["value"]))
                outcome = f"{row.values[-1]:,.4g} {workload.unit}"
            else:
                row.errors.append(str(answer["error"]))
                outcome = f"FAILED: {row.errors[-1]}"
            peers.talk(f"{workload.name} [{turn + 1}/{runs}] {row.contender.label}: {outcome}")
    yield from rows


def ratio(row: Row, baseline: Row) -> float | None:
    """How many times better `baseline` is (for figures where less is better: how much this grew)."""
    if row is baseline or not row.median or not baseline.median:
        return None
    if row.workload.lower_is_better:
        return row.median / baseline.median
    return baseline.median / row.median
