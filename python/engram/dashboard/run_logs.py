"""Reads the logs of training runs."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["METRICS", "RunLog", "read_runs"]

FILE_NAME = "progress.jsonl"

METRICS = {
    "mean_return": "Mean return of recent episodes",
    "loss": "Loss, mean of recent learner steps",
    "steps_per_s": "Environment steps per second",
    "inserts_per_s": "Items inserted per second",
    "samples_per_s": "Items sampled per second",
}
"""Metrics of a log, and their titles."""

MAX_BYTES = 32 << 20
MAX_POINTS = 1_000
MAX_FILES = 200


@dataclass(frozen=True)
class RunLog:
    """The log of a run.

    Attributes:
        name: Path of its directory, relative to the directory of all runs.
        rows: Its rows, oldest first: JSON objects with `steps` and metrics.
    """

    name: str
    rows: tuple[dict[str, Any], ...]

    def curve(self, metric: str) -> list[list[float | None]]:
        """Returns steps and values of a metric, as far as they are numbers."""
        points = [(_number(row.get("steps")), _number(row.get(metric))) for row in self.rows]
        numbers: list[list[float | None]] = [[step, value] for step, value in points if None not in {step, value}]
        return numbers[:: max(1, len(numbers) // MAX_POINTS)]


def read_runs(directory: Path) -> list[RunLog]:
    """Returns the logs in a directory and those below it, the one written last first."""
    files = sorted(directory.glob(f"**/{FILE_NAME}"), key=_modified, reverse=True)[:MAX_FILES]
    return [RunLog(str(file.parent.relative_to(directory)), tuple(_rows(file))) for file in files]


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line may be incomplete
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _number(value: object) -> float | None:
    """Returns a finite number; `None` for everything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
