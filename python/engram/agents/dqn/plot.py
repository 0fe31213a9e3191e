"""A plot of one or several runs: the return of every episode, the moving mean, and the target."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engram._complete_output import complete_output, make_directory
from engram._extras import importing_extra
from engram.agents.dqn.result import Result

with importing_extra("agents", "engram.agents"):
    from matplotlib.figure import Figure

COLORS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#0891b2", "#dc2626", "#4d7c0f")
INK, FAINT = "#1f2937", "#9ca3af"


def plot_returns(results: Sequence[Result], path: Path) -> Path:
    """Writes the plot of `draw_returns`, of 1600 x 800 pixels, and returns its path.

    The suffix of the path is the format, by default PNG. Missing directories are created.
    """
    make_directory(path.parent)
    with complete_output(path, is_directory=False) as temporary:
        draw_returns(results).savefig(temporary, format=path.suffix.removeprefix(".") or "png")
    return path


def draw_returns(results: Sequence[Result]) -> Figure:
    """Returns a plot of the runs of one environment.

    Dots are finished training episodes, lines their mean over the last `solved_episodes`, and the dashed line is
    `solved_return`. The legend is below the axes.
    """
    config = results[0].config
    figure = Figure(figsize=(10, 5), dpi=160, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for result, color in zip(results, np.resize(COLORS, len(results)).tolist(), strict=True):
        episodes = np.arange(1, len(result.returns) + 1)
        axes.scatter(episodes, result.returns, s=9, color=color, alpha=0.28, linewidths=0)
        mean = moving_mean(result.returns, config.solved_episodes)
        label = f"seed {result.config.seed}: {describe(result)}"
        axes.plot(episodes[len(episodes) - len(mean) :], mean, color=color, linewidth=2.2, label=label)
        if result.stopped == "solved":
            axes.scatter(episodes[-1], mean[-1], s=60, color=color, edgecolors="white", linewidths=1.5, zorder=5)
    if config.solved_return is not None:
        axes.axhline(config.solved_return, color=INK, linewidth=1.2, linestyle=(0, (6, 4)), zorder=1)
        axes.annotate(
            f"solved: mean of {config.solved_return:g}",
            (0, config.solved_return),
            xycoords=("axes fraction", "data"),
            xytext=(6, 5),
            textcoords="offset points",
            color=INK,
            fontsize=9,
        )
    axes.set_title(
        f"Double DQN on {config.env_id}, replay by Engram", loc="left", color=INK, fontsize=14, weight="bold"
    )
    axes.set_xlabel("finished training episodes", color=INK)
    axes.set_ylabel(f"return (line: mean of the last {config.solved_episodes})", color=INK)
    axes.margins(x=0.02)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=9)
    return figure


def moving_mean(returns: Sequence[float], count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the means of `count` consecutive returns, f64[len(returns) - count + 1]; empty if there are too few."""
    if len(returns) < count:
        return np.zeros(0)
    return np.convolve(returns, np.full(count, 1 / count), mode="valid")


def describe(result: Result) -> str:
    """Returns how a run ended and after how many steps, for the legend."""
    outcomes = {"solved": "solved in", "budget": "not solved in", "interrupted": "interrupted after"}
    if result.config.solved_return is None and result.stopped == "budget":
        outcomes["budget"] = "ran for"
    return f"{outcomes[result.stopped]} {result.steps:,} steps"
