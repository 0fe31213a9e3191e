"""The logs of a run: two CSV files, and the same values for TensorBoard.

train.csv        one row per `log_period` learner steps: means of their losses and of the returns of the episodes
                 that ended since the last row
evaluation.csv   one row per evaluation
tensorboard/     events; the step of each is the number of frames
"""

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.learner import Metrics
from engram.agents.ftw.total_loss import Losses

with importing_extra("agents", "engram.agents"):
    from tensorboardX import SummaryWriter

TRAIN, EVALUATION = "train.csv", "evaluation.csv"
_METRICS = (*Losses._fields, "gradient_norm")
_COLUMNS = {
    TRAIN: ("frames", "learner_steps", "episodes", "mean_return", *_METRICS, "seconds"),
    EVALUATION: ("frames", "learner_steps", "episodes", "mean_return", "success", "seconds"),
}


class RunLogs:
    """Writes the logs; a context manager.

    Attributes:
        files: The CSV files.
    """

    def __init__(self, directory: Path, log_period: int) -> None:
        """Writes to a directory, with `log_period` learner steps per row."""
        self._directory, self._period = directory, log_period
        self._metrics: list[Metrics] = []
        self._returns: list[float] = []
        self._events: Any = None
        self.files = [directory / name for name in _COLUMNS]

    def start(self) -> None:
        """Begins new logs."""
        shutil.rmtree(self._directory / "tensorboard", ignore_errors=True)
        for name, columns in _COLUMNS.items():
            with (self._directory / name).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(columns)
        self._events = SummaryWriter(str(self._directory / "tensorboard"))

    def resume(self, checkpoint: Path, frames: int, state: dict[str, Any]) -> None:
        """Continues the logs of a checkpoint; what was logged after it is removed."""
        for file in self.files:
            shutil.copyfile(checkpoint / file.name, file)
        self._returns = np.asarray(state.get("returns", ())).tolist()
        rows = np.asarray(state.get("metrics", np.zeros((0, len(_METRICS)), np.float32)))
        self._metrics = [Metrics(Losses(*row[:-1]), row[-1]) for row in rows]
        self._events = SummaryWriter(str(self._directory / "tensorboard"), purge_step=frames + 1)

    def get_state(self) -> dict[str, Any]:
        """Returns what the next row will have so far, as arrays; without those that are empty."""
        state = {}
        if self._metrics:
            state["metrics"] = np.array([_values(each) for each in self._metrics], np.float32)
        if self._returns:
            state["returns"] = np.array(self._returns)
        return state

    def add(
        self, returns: Sequence[float], metrics: Sequence[Metrics], *, frames: int, steps: int, seconds: float
    ) -> None:
        """Adds the returns of episodes that ended, and learner steps.

        Args:
            returns: The returns.
            metrics: Of the learner steps.
            frames: Frames so far.
            steps: Learner steps so far, with these.
            seconds: Seconds so far.
        """
        self._returns += returns
        for number, each in enumerate(metrics, steps - len(metrics) + 1):
            self._metrics.append(each)
            if number % self._period == 0:
                means: list[float] = np.mean([_values(one) for one in self._metrics], axis=0).tolist()
                row = (frames, number, len(self._returns), _mean(self._returns), *means, seconds)
                self._write(TRAIN, row)
                self._metrics, self._returns = [], []

    def add_evaluation(self, returns: Sequence[float], *, frames: int, steps: int, seconds: float) -> None:
        """Adds an evaluation: its returns, and frames, learner steps and seconds so far."""
        success = float(np.mean(np.array(returns) > 0))
        self._write(EVALUATION, (frames, steps, len(returns), _mean(returns), success, seconds))
        self._events.flush()

    def _write(self, name: str, row: Sequence[float | None]) -> None:
        with (self._directory / name).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(["" if value is None else repr(value) for value in row])
        values = dict(zip(_COLUMNS[name], row, strict=True))
        for column, value in values.items():
            if column != "frames" and value is not None:
                tag = f"{name.removesuffix('.csv')}/{column}"
                self._events.add_scalar(tag, value, values["frames"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._events is not None:
            self._events.close()


def read_log(file: Path) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Returns the columns of a CSV file of a run, f64 `[rows]`; NaN where there is no value."""
    with file.open(encoding="utf-8", newline="") as lines:
        columns, *rows = csv.reader(lines)
    values = np.array([[float(value or "nan") for value in row] for row in rows], np.float64)
    return dict(zip(columns, values.reshape(-1, len(columns)).T, strict=True))


def _values(metrics: Metrics) -> list[float]:
    return [float(value) for value in [*metrics.losses, metrics.gradient_norm]]


def _mean(returns: Sequence[float]) -> float | None:
    return float(np.mean(returns)) if returns else None
