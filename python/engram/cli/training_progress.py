"""The display of a training run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from engram.cli.output import text

if TYPE_CHECKING:
    from rich.console import Console

SPARKS = "▁▂▃▄▅▆▇█"


class Snapshot(NamedTuple):
    """What is shown of a run at one moment.

    Attributes:
        title: Of the run.
        seconds: Seconds since its start.
        returns: Returns of the newest episodes, in order.
        figures: Formatted figures by name.
        completed: Part of the budget that is used.
        budget: The budget, for example in steps.
    """

    title: str
    seconds: float
    returns: Sequence[float]
    figures: dict[str, str]
    completed: int
    budget: int


class LineReporter:
    """Prints one plain line per report, which is made every second."""

    period = 1.0

    def __init__(self, console: Console) -> None:
        """Prints to `console`."""
        self._console = console

    def __call__(self, snapshot: Snapshot) -> None:
        """Prints a line."""
        figures = " | ".join(f"{name} {value}" for name, value in snapshot.figures.items())
        self._console.print(text(f"{snapshot.seconds:5.1f} s | {figures}"), soft_wrap=True)

    def __enter__(self) -> Self:
        """Does nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""


class LiveReporter:
    """A panel that the training loop itself redraws four times a second: a thread would compete for its core."""

    period = 0.25

    def __init__(self, console: Console) -> None:
        """Draws on `console`."""
        self._unicode = console.encoding.lower().startswith("utf")
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __call__(self, snapshot: Snapshot) -> None:
        """Redraws the panel."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right")
        grid.add_column()
        if self._unicode:
            grid.add_row("", sparkline(snapshot.returns[-60:]))
        for name, value in snapshot.figures.items():
            grid.add_row(name, value)
        grid.add_row("budget", ProgressBar(total=snapshot.budget, completed=snapshot.completed, width=40))
        title = f"{snapshot.title}, {snapshot.seconds:.0f} s"
        self._live.update(Panel(grid, title=title, title_align="left", expand=False), refresh=True)

    def __enter__(self) -> Self:
        """Starts the live display."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the live display."""
        self._live.stop()


Reporter: TypeAlias = LineReporter | LiveReporter
"""Shows the progress of one run, as a context manager around it. `period` is the number of seconds between reports."""


def make_reporter(console: Console, *, headless: bool) -> Reporter:
    """Returns a live panel if `console` is a terminal and `headless` is False, else plain lines."""
    if console.is_terminal and not headless:
        return LiveReporter(console)
    return LineReporter(console)


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
