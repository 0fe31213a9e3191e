"""The display of a training run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, Self

from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from engram.cli.output import text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console

    from engram.agents.dqn import DQNConfig, Progress

SPARKS = "▁▂▃▄▅▆▇█"


class Reporter(Protocol):
    """Shows the progress of one run, as a context manager around it."""

    period: float
    """Seconds between two reports."""

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""

    def __enter__(self) -> Self:
        """Opens the display."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the display."""


def make_reporter(console: Console, config: DQNConfig, *, headless: bool) -> Reporter:
    """Returns a live panel if `console` is a terminal and `headless` is False, else plain lines."""
    if console.is_terminal and not headless:
        return LiveReporter(console, config)
    return LineReporter(console, config)


class LineReporter:
    """Prints one plain line per report, which is made every second."""

    period = 1.0

    def __init__(self, console: Console, config: DQNConfig) -> None:
        """Prints to `console`."""
        self._console, self._config = console, config

    def __call__(self, progress: Progress) -> None:
        """Prints a line."""
        figures = " | ".join(f"{name} {value}" for name, value in describe(progress, self._config).items())
        self._console.print(text(f"{progress.seconds:5.1f} s | {figures}"), soft_wrap=True)

    def __enter__(self) -> Self:
        """Does nothing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing."""


class LiveReporter:
    """A panel that the training loop itself redraws four times a second: a thread would compete for its core."""

    period = 0.25

    def __init__(self, console: Console, config: DQNConfig) -> None:
        """Draws on `console`."""
        self._config = config
        self._unicode = console.encoding.lower().startswith("utf")
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __call__(self, progress: Progress) -> None:
        """Redraws the panel."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right")
        grid.add_column()
        if self._unicode:
            grid.add_row("", sparkline(progress.returns[-60:]))
        for name, value in describe(progress, self._config).items():
            grid.add_row(name, value)
        grid.add_row("budget", ProgressBar(total=self._config.max_steps, completed=progress.step, width=40))
        title = f"{self._config.env_id}, seed {self._config.seed}, {progress.seconds:.0f} s"
        self._live.update(Panel(grid, title=title, title_align="left", expand=False), refresh=True)

    def __enter__(self) -> Self:
        """Starts the live display."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the live display."""
        self._live.stop()


def describe(progress: Progress, config: DQNConfig) -> dict[str, str]:
    """Returns the figures of a run by name, formatted."""
    table = progress.table
    mean = "-" if math.isnan(progress.mean_return) else f"{progress.mean_return:.1f}"
    target = "" if config.solved_return is None else f" of {config.solved_return:g}"
    return {
        "step": f"{progress.step:,}",
        "episodes": f"{len(progress.returns):,}",
        "mean return": f"{mean}{target}",
        "epsilon": f"{progress.epsilon:.2f}",
        "inserts/s": f"{table.inserts_per_s:,.0f}",
        "samples/s": f"{table.samples_per_s:,.0f}",
        "samples per insert": f"{table.samples_per_insert:.1f}",
        "items": f"{table.size:,}",
        "stored": f"{table.bytes / 1e6:.1f} MB",
        "blocked": table.blocked or "no",
    }


def sparkline(values: Sequence[float]) -> str:
    """Returns the values as a row of small bars, scaled from the lowest to the highest finite value.

    Infinite values have the lowest or the highest bar, NaN is a space.
    """
    halves = [value / 2 for value in values]  # the difference of two finite halves is finite
    finite = [half for half in halves if math.isfinite(half)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(" " if math.isnan(half) else _bar(half, low, high) for half in halves)


def _bar(value: float, low: float, high: float) -> str:
    if value <= low:
        return SPARKS[0]
    if value >= high:
        return SPARKS[-1]
    return SPARKS[round((value - low) / (high - low) * (len(SPARKS) - 1))]
