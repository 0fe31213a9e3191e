"""How far the reading of a directory is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def load_progress(path: Path) -> Iterator[Callable[[int, int], object]]:
    """Shows a bar on standard error while it is called with bytes read and bytes in all; nothing without a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(str(path))
        yield lambda done, total: bar.update(task, completed=done, total=total)
