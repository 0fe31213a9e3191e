"""What a dashboard shows, and who may open it."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["DashboardOptions"]


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """What a dashboard shows, and who may open it.

    Attributes:
        host: IP address or host name to listen on.
        port: Port to listen on; 0 for any free port.
        page_token: Token that a browser must send before it sees anything. Needed for a `host` that other machines can
            reach.
        insecure: Open the page without a token to all programs that can reach `host`.
        allow_changes: Show the view that changes rate limiters, writes checkpoints, and resets and drops tables.
        runs: Directory with the log directories of training runs.
    """

    host: str = "127.0.0.1"
    port: int = 7078
    page_token: str | None = field(default=None, repr=False)
    insecure: bool = False
    allow_changes: bool = False
    runs: Path = Path("runs")

    def __post_init__(self) -> None:
        _checks.text("`host`", self.host)
        _checks.integer("`port`", self.port, low=0, high=65_535)
        if self.page_token is not None:
            _checks.secret("`page_token`", self.page_token)
            if not self.page_token:
                raise InvalidArgumentError("`page_token` must not be empty; omit it for a page without a token")
        if self.page_token is None and not self.insecure and not self.is_loopback:
            raise InvalidArgumentError(
                f"`host` is {self.host}, which other machines can reach; set `page_token`, listen on 127.0.0.1, or "
                "set `insecure`"
            )

    @property
    def is_loopback(self) -> bool:
        """True if only programs of this machine can open the page."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
