"""Calls of pages to servers, which never block the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from engram.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engram import TableStore
    from engram.dashboard.server_poller import ServerPoller

__all__ = ["fetch"]

TIMEOUT_S = 10.0

T = TypeVar("T")


async def fetch(server: ServerPoller, call: Callable[[TableStore], T]) -> tuple[T | None, str | None]:
    """Makes a call to a server in another thread; returns its result, or the text of its error."""
    if server.state.error is not None:
        return None, f"{server.name} does not reply: {server.state.error}"
    try:
        return await asyncio.wait_for(asyncio.wrap_future(server.submit(call)), TIMEOUT_S), None
    except TimeoutError:
        return None, f"{server.name} did not reply within {TIMEOUT_S:g} s"
    except (EngramError, OSError) as error:
        return None, str(error)
