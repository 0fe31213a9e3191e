"""Runs the workers, each run in a fresh process, contenders alternating; collects medians."""

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
    """The results of all runs of one contender in one workload."""

    workload: Workload
    contender: Contender
    values: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    reference: list[float] = field(default_factory=list)  # `common.Result.reference` of each run, if workers measure it
    extra: dict[str, list[float]] = field(default_factory=dict)  # with the keys of `common.Result.extra`

    def add(self, result: dict[str, Any]) -> str:
        """Adds the result of a run; returns it as text."""
        self.versions |= result.get("versions", {})
        if "value" not in result:
            self.errors.append(str(result["error"]))
            return f"FAILED: {self.errors[-1]}"
        self.values.append(float(result["value"]))
        if result.get("reference") is not None:
            self.reference.append(float(result["reference"]))
        extra = dict(result.get("extra", {}))
        for text, value in extra.items():
            self.extra.setdefault(text, []).append(value)
        figures = [f"{self.values[-1]:,.4g} {self.workload.unit}", *(t.format(f"{v:,.4g}") for t, v in extra.items())]
        return ", ".join(figures)

    @property
    def median(self) -> float | None:
        """The median of the runs that succeeded."""
        return statistics.median(self.values) if self.values else None


def run_once(contender: Contender, task: dict[str, object]) -> dict[str, Any]:
    """Runs a worker in a fresh process; returns its result, or an error."""
    module = f"benchmarks.workers.{contender.engine}_worker"
    try:
        command = [peers.python_of(contender.engine), "-m", module, json.dumps(task)]
        # Engram is not installed in the peers' environments.
        environment = os.environ | {"PYTHONPATH": str(peers.ROOT / "python")}
        done = subprocess.run(
            command, cwd=peers.ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {TIMEOUT:g} s"}
    except (OSError, RuntimeError) as error:  # the environment could not be created
        return {"error": str(error)}
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        errors = done.stderr.strip().splitlines() or ["(nothing on stderr)"]
        return {"error": f"exit status {done.returncode}: {errors[-1]}"}


def record_pong() -> None:
    """Records frames of Pong for all engines; if that fails, the runs that read them fail."""
    result = run_once(Contender("ale", "recorder"), {"job": "record", "variant": ""})
    peers.log(f"recorded Pong: {result}")


@contextmanager
def run_directory(workload: Workload) -> Iterator[dict[str, object]]:
    """Yields the field `directory` of a task on disk: a fresh one, removed afterwards. Yields {} for other tasks."""
    if not workload.on_disk:
        yield {}
        return
    peers.HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=peers.HOME, ignore_cleanup_errors=True) as directory:
        os.sync()  # what was written before must not slow this run down
        yield {"directory": directory}


def measure(workload: Workload, *, runs: int, quick: bool, engines: set[str]) -> Iterator[Row]:
    """Runs every contender `runs` times, alternating (A B A B ...); yields a row for each.

    `engines` selects the contenders of these engines; empty: all.
    """
    if workload.step == "pong" and not common.PONG.exists():
        record_pong()
    rows = [Row(workload, c) for c in workload.contenders if not engines or c.engine in engines]
    for turn in range(runs):
        for row in rows:
            with run_directory(workload) as fields:
                outcome = row.add(run_once(row.contender, workload.task(row.contender, quick=quick) | fields))
            peers.log(f"{workload.name} [{turn + 1}/{runs}] {row.contender.label}: {outcome}")
    yield from rows


def ratio(row: Row, baseline: Row) -> float | None:
    """How many times better `baseline` is than `row`; `None` for the baseline itself, and if either has no figure."""
    if row is baseline or not row.median or not baseline.median:
        return None
    if row.workload.lower_is_better:
        return row.median / baseline.median
    return baseline.median / row.median
