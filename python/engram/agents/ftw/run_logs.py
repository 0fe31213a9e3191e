"""The logs of a run: two CSV files, and the same values for TensorBoard.

train.csv        one row per `log_period` learner steps: means of their losses and of the returns of the episodes
                 that ended since the last row
evaluation.csv   one row per evaluation
tensorboard/     events; the step of each is the number of frames. They are written again from the CSV files on a resume
"""

import csv
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.learner import Metrics
from engram.agents.ftw.total_loss import Losses

with importing_extra("agents", "engram.agents"):
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

TRAIN, EVALUATION, TENSORBOARD = "train.csv", "evaluation.csv", "tensorboard"
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
        self._began = time.time()
        self.files = [directory / name for name in _COLUMNS]

    def start(self) -> None:
        """Begins new logs."""
        for name, columns in _COLUMNS.items():
            with self._new(name).open("x", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(columns)
        self._start_events()

    def resume(self, checkpoint: Path, state: dict[str, Any], seconds: float) -> None:
        """Continues the logs of a checkpoint; what was logged after it is removed.

        Args:
            checkpoint: The checkpoint, which has the CSV files.
            state: What `get_state` returned.
            seconds: Seconds of the run until the checkpoint.
        """
        for file in self.files:
            shutil.copyfile(checkpoint / file.name, self._new(file.name))
        self._returns = np.asarray(state.get("returns", ())).tolist()
        rows = np.asarray(state.get("metrics", np.zeros((0, len(_METRICS)), np.float32)))
        self._metrics = [Metrics(Losses(*row[:-1]), row[-1]) for row in rows]
        self._began = time.time() - seconds
        self._start_events()
        for file in self.files:
            log = read_log(file)
            for row in np.stack(list(log.values()), axis=1).tolist():
                self._write_event(file.name, [None if np.isnan(value) else value for value in row])
        self._events.flush()

    def last_evaluation(self) -> tuple[int, int]:
        """Returns frames and learner steps of the last evaluation; zeros if there was none."""
        log = read_log(self._directory / EVALUATION)
        positions = zip(log["frames"].tolist(), log["learner_steps"].tolist(), strict=True)
        frames, steps = [(0, 0), *positions][-1]
        return int(frames), int(steps)

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

    def _new(self, name: str) -> Path:
        """Returns the path of a log, after removing an earlier one: it may be a link to a file of others."""
        path = self._directory / name
        path.unlink(missing_ok=True)
        return path

    def _write(self, name: str, row: Sequence[float | None]) -> None:
        with (self._directory / name).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(["" if value is None else repr(value) for value in row])
        self._write_event(name, row)

    def _start_events(self) -> None:
        directory = self._directory / TENSORBOARD
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir()
        # Not tensorboardX's SummaryWriter: after an error in its thread, for example of a full disk, it waits forever.
        self._events = EventsWriter(str(directory.absolute() / "events"))
        # A TensorBoard that runs forgets what it has read of this run.
        self._events.write_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))

    def _write_event(self, name: str, row: Sequence[float | None]) -> None:
        values = dict(zip(_COLUMNS[name], row, strict=True))
        scalars = [
            Summary.Value(tag=f"{name.removesuffix('.csv')}/{column}", simple_value=value)
            for column, value in values.items()
            if column != "frames" and value is not None
        ]
        frames, seconds = int(values["frames"] or 0), values["seconds"] or 0
        self._events.write_event(Event(wall_time=self._began + seconds, step=frames, summary=Summary(value=scalars)))

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
