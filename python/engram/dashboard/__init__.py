"""A live page of servers, tables and training runs: `engram dashboard`.

It reads through the public API only, and needs the extra `dashboard` (NiceGUI).
"""

from engram.dashboard.options import DashboardOptions
from engram.dashboard.web_server import DashboardServer

__all__ = ["DashboardOptions", "DashboardServer"]
