"""What all pages of a dashboard share."""

from collections.abc import Sequence
from dataclasses import dataclass

from engram.dashboard.options import DashboardOptions
from engram.dashboard.server_poller import ServerPoller

__all__ = ["DashboardState"]


@dataclass(frozen=True)
class DashboardState:
    """What all pages of a dashboard share.

    Attributes:
        options: The options of the dashboard.
        servers: The servers that it shows; pages name them by their index.
    """

    options: DashboardOptions
    servers: Sequence[ServerPoller]

    def server(self, index: int) -> ServerPoller | None:
        """Returns a server; `None` if there is none with this index."""
        return self.servers[index] if 0 <= index < len(self.servers) else None
