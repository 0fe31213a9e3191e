"""A progress bar for opening or resharding directories of stores."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from engram._text import printable


@contextmanager
def load_progress(path: Path, activity: str = "reading") -> Iterator[Callable[[int, int], object]]:
    """Shows a bar on stderr; the yielded function updates it, given the bytes processed so far and in total.

    Shows nothing if stderr is not a terminal.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn(f"{activity} {{task.description}}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(printable(str(path)))
        yield lambda done, total: bar.update(task, completed=done, total=total)
