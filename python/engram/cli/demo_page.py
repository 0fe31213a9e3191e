"""The live page of `engram demo --dashboard`."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from engram.cli.dashboard import import_dashboard
from engram.cli.output import text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rich.console import Console

    from engram import Store
    from engram.dashboard import DashboardServer

__all__ = ["DEFAULT_PORT", "DemoPage", "demo_page"]

DEFAULT_PORT = 7078


class DemoPage:
    """A live page of a training in this process.

    Attributes:
        store: The store of the current run; `None` between two runs.
        server: What serves the page.
    """

    def __init__(self) -> None:
        self.store: Store | None = None
        self.server: DashboardServer | None = None

    def connect(self) -> Store:
        """Returns the store of the current run."""
        if self.store is None:
            raise ConnectionError("no run is training now; the view Training has the curves of all runs")
        return self.store

    def wait_for_ctrl_c(self, stderr: Console) -> None:
        """Keeps the page open until Ctrl-C."""
        if self.server is not None:
            stderr.print(
                text(f"the dashboard stays open at {self.server.url}/training; Ctrl-C ends it"), soft_wrap=True
            )
            with suppress(KeyboardInterrupt):
                self.server.wait()


def demo_page(port: int | None, runs: Path) -> AbstractContextManager[DemoPage | None]:
    """Opens a page on 127.0.0.1, and closes it at the end of the `with` block; `None` without a port.

    Args:
        port: Port of the page; 0 for any free port. `None`: no page.
        runs: Directory with the logs of the runs that the view Training shows.

    Raises:
        ModuleNotFoundError: NiceGUI is not installed.
        InvalidArgumentError: The port is in use.
    """
    return nullcontext() if port is None else _open_page(port, runs)


@contextmanager
def _open_page(port: int, runs: Path) -> Iterator[DemoPage]:
    dashboard = import_dashboard("`engram demo --dashboard`")
    page = DemoPage()
    options = dashboard.DashboardOptions(port=port, runs=runs)
    with dashboard.DashboardServer({"demo": page.connect}, options, port_name="--dashboard-port") as page.server:
        yield page
