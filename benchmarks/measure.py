"""Runs workers: a fresh process per run, contenders in turn, medians."""

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    against: list[float] = field(default_factory=list)  # what the machine could do in each of these runs
    besides: dict[str, list[float]] = field(default_factory=dict)  # further figures, by their text

    def take(self, answer: dict[str, Any]) -> str:
        """Note what a run came to, and say it."""
        self.versions |= answer.get("versions", {})
        if "value" not in answer:
            self.errors.append(str(answer["error"]))
            return f"FAILED: {self.errors[-1]}"
        self.values.append(float(answer["value"]))
        if answer.get("against") is not None:
            self.against.append(float(answer["against"]))
        besides = dict(answer.get("besides", {}))
        for text, value in besides.items():
            self.besides.setdefault(text, []).append(value)
        said = [f"{self.values[-1]:,.4g} {self.workload.unit}", *(t.format(f"{v:,.4g}") for t, v in besides.items())]
        return ", ".join(said)

    @property
    def median(self) -> float | None:
        """The middle figure of the runs that gave one."""
        return statistics.median(self.values) if self.values else None


def run_once(contender: Contender, task: dict[str, object]) -> dict[str, Any]:
    """One run in a fresh process: the worker's answer, or why there is none."""
    module = f"benchmarks.workers.{contender.engine}_worker"
    try:
        command = [peers.python_of(contender.engine), "-m", module, json.dumps(task)]
        # Environments of their own have no Engram installed.
        known = os.environ | {"PYTHONPATH": str(peers.ROOT / "python")}
        done = subprocess.run(
            command, cwd=peers.ROOT, env=known, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
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


@contextmanager
def place(workload: Workload) -> Iterator[dict[str, object]]:
    """A fresh directory for a run that wants one, on the disk of this checkout; it is gone afterwards."""
    if not workload.on_disk:
        yield {}
        return
    peers.HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=peers.HOME, ignore_cleanup_errors=True) as directory:
        os.sync()  # what others have written is not this run's business
        yield {"directory": directory}


def measure(workload: Workload, *, runs: int, quick: bool, engines: set[str]) -> Iterator[Row]:
    """Run every contender `runs` times, in turn (A B A B ...), and give a row for each."""
    if workload.step == "pong" and not common.PONG.exists():
        record()
    rows = [Row(workload, c) for c in workload.contenders if not engines or c.engine in engines]
    for turn in range(runs):
        for row in rows:
            with place(workload) as where:
                outcome = row.take(run_once(row.contender, workload.task(row.contender, quick=quick) | where))
            peers.talk(f"{workload.name} [{turn + 1}/{runs}] {row.contender.label}: {outcome}")
    yield from rows


def ratio(row: Row, baseline: Row) -> float | None:
    """How many times better `baseline` is (for figures where less is better: how much this grew)."""
    if row is baseline or not row.median or not baseline.median:
        return None
    if row.workload.lower_is_better:
        return row.median / baseline.median
    return baseline.median / row.median
