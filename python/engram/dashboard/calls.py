"""Calls of pages to servers, which never block the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from engram.dashboard.texts import error_text
from engram.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from engram import TableStore
    from engram.dashboard.server_poller import ServerPoller

__all__ = ["fetch"]

TIMEOUT_S = 10.0

T = TypeVar("T")


async def fetch(
    server: ServerPoller, call: Callable[[TableStore], T], *, shared: Hashable = None, max_age: float = 0.0
) -> tuple[T | None, str | None]:
    """Makes a call to a server in another thread; returns its result, or the text of its error.

    With `shared`, all pages share the result of calls with this key for `max_age` seconds.
    """
    if server.state.error is not None:
        return None, f"{server.name} does not reply: {server.state.error}"
    try:
        future = server.submit(call) if shared is None else server.submit_shared(shared, max_age, call)
        # Shielded, because other pages may wait for the same call.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), TIMEOUT_S), None
    except TimeoutError:
        return None, f"{server.name} did not reply within {TIMEOUT_S:g} s"
    except (EngramError, OSError) as error:
        return None, error_text(error)
