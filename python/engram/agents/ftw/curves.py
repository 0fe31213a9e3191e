"""Learning curves of runs, side by side in one picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engram._complete_output import complete_output, make_directory
from engram._extras import importing_extra
from engram.agents.ftw.run_logs import EVALUATION, TRAIN, read_log
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    from matplotlib.figure import Figure

COLORS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#0891b2", "#dc2626", "#4d7c0f")
INK, FAINT = "#1f2937", "#9ca3af"
_PANELS = {
    "mean_return": "return of training episodes",
    "success": "success in evaluations (return above 0)",
    "loss": "loss",
    "entropy_loss": "entropy loss",
    "pixel_control_loss": "pixel control loss",
    "reward_prediction_loss": "reward prediction loss",
}
"""Title by column; the last two are only drawn if a run has one."""
_SMOOTHED = 0.05
"""Part of a curve whose mean is drawn at each point."""

Log: TypeAlias = Mapping[str, np.ndarray[tuple[int], np.dtype[np.float64]]]


def plot_curves(directories: Sequence[Path], path: Path) -> Path:
    """Writes the curves of runs, each with the name of its directory, to a picture; returns its path.

    The suffix of the path is the format, by default PNG. Missing directories are created.

    Raises:
        InvalidArgumentError: A directory has no logs of a run.
    """
    logs = {}
    for directory, name in zip(directories, _names(directories), strict=True):
        try:
            logs[name] = {**read_log(directory / TRAIN), "evaluation": read_log(directory / EVALUATION)}
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidArgumentError(f"no logs of a run in {directory}: {error.filename} does not exist") from error
    make_directory(path.parent)
    with complete_output(path, is_directory=False) as temporary:
        draw_curves(logs).savefig(temporary, format=path.suffix.removeprefix(".") or "png")
    return path


def draw_curves(logs: Mapping[str, Any]) -> Figure:
    """Returns the curves over the frames of training, with the legend below the axes.

    Lines of training are means over a twentieth of the run.

    Args:
        logs: By name of the run: the columns of its train.csv and, as "evaluation", those of its evaluation.csv.
    """
    columns = [
        column
        for column in _PANELS
        if column not in ("pixel_control_loss", "reward_prediction_loss")
        or any(np.nan_to_num(log[column]).any() for log in logs.values())
    ]
    rows = (len(columns) + 1) // 2
    figure = Figure(figsize=(10, 3 * rows + 0.5), dpi=160, layout="constrained", facecolor="white")
    for index, column in enumerate(columns):
        axes = figure.add_subplot(rows, 2, index + 1)
        axes.set_title(_PANELS[column], loc="left", color=INK, fontsize=11, weight="bold")
        axes.set_xlabel("frames", color=INK)
        axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        axes.tick_params(colors=INK, length=0)
        for (name, log), color in zip(logs.items(), np.resize(COLORS, len(logs)).tolist(), strict=True):
            label = name if index == 0 else None
            if column == "success":
                evaluation = log["evaluation"]
                axes.plot(evaluation["frames"], evaluation[column], "o-", color=color, linewidth=2.2, label=label)
                axes.set_ylim(-0.03, 1.03)
            else:
                axes.plot(log["frames"], smoothed(log[column]), color=color, linewidth=1.8, label=label)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=9)
    return figure


def smoothed(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the mean of the values around each one, without those that are NaN; NaN where all are."""
    if not len(values):
        return values
    half = int(len(values) * _SMOOTHED / 2)
    kernel = np.ones(2 * half + 1)
    known = ~np.isnan(values)
    number, total = (np.convolve(each, kernel)[half : half + len(values)] for each in (known, np.nan_to_num(values)))
    with np.errstate(invalid="ignore"):
        mean: np.ndarray[tuple[int], np.dtype[np.float64]] = total / number
    return mean


def _names(directories: Sequence[Path]) -> list[str]:
    """Returns the last part of each path, or the whole paths where these are not unique."""
    names = [directory.name for directory in directories]
    return names if len(set(names)) == len(names) else [str(directory) for directory in directories]
