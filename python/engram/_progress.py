"""Progress bars of functions that read or write many items."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engram._text import printable

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(text: str, total: int, *, show: bool) -> Iterator[Callable[[int], object]]:
    """Shows a bar on stderr, or in a notebook; the yielded function advances it by a number of items.

    Shows nothing if stderr is neither a terminal nor a notebook.

    Args:
        text: What is done, for example the name of a file.
        total: Number of items.
        show: If False, nothing is shown, and Rich is not imported.
    """
    if not show:
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415, only for a bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (console.is_terminal or console.is_jupyter)) as bar:
        task = bar.add_task(printable(text), total=total)
        yield lambda count: bar.advance(task, count)
