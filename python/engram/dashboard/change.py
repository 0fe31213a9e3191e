"""The view Change, only with `allow_changes`: limiters, checkpoints, resets and drops, each confirmed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from engram import rate_limiters
from engram.dashboard.calls import fetch
from engram.dashboard.frame import frame, refresh_with
from engram.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engram import TableStore
    from engram.dashboard.server_poller import ServerPoller
    from engram.dashboard.state import DashboardState
    from engram.rate_limiters import AnyRateLimiter

__all__ = ["change_view"]

REFUSED = "Changes are off. Start the dashboard with --allow-changes to change tables from this page."


def change_view(state: DashboardState) -> None:
    """Builds the page."""
    with frame(state, "Change"):
        if state.options.allow_changes:
            ChangeForm(state)
        else:
            ui.label(REFUSED).mark("refused")


class ChangeForm:
    """What can be changed, and the result of the last change."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        names = {index: server.name for index, server in enumerate(state.servers)}
        self._server = ui.select(names, value=0, label="Server").classes("w-64").mark("server")
        self._table = ui.select([], label="Table", with_input=True).classes("w-64").mark("table")
        self._outcome = ui.label().classes("engram-text").mark("outcome")
        with ui.card():
            ui.label("Rate limiter").classes("font-medium")
            self._ratio = ui.number("Samples per insert; empty: not limited", min=0).classes("w-72").mark("ratio")
            self._min_size = ui.number("Items before sampling starts", value=1, min=1).classes("w-72").mark("min-size")
            self._buffer = ui.number("Allowed deviation in samples", min=0).classes("w-72").mark("buffer")
            ui.button("Set limiter", on_click=self._set_limiter).mark("set-limiter")
        with ui.row():
            ui.button("Write checkpoint", on_click=self._checkpoint).mark("checkpoint")
            ui.button("Reset table", on_click=self._reset).mark("reset")
            ui.button("Drop table", on_click=self._drop).mark("drop")
        self._server.on_value_change(self._refresh)
        refresh_with(state.servers, self._refresh)

    @property
    def _poller(self) -> ServerPoller:
        return self._state.servers[int(self._server.value or 0)]

    def _refresh(self) -> None:
        tables = sorted(self._poller.state.infos)
        if tables != self._table.options:
            self._table.set_options(tables, value=self._table.value if self._table.value in tables else None)

    async def _set_limiter(self) -> None:
        try:
            limiter = new_limiter(self._ratio.value, self._min_size.value, self._buffer.value)
        except InvalidArgumentError as error:
            self._outcome.set_text(str(error))
            return
        await self._change_table(f"set {limiter} for", lambda store, name: store.set_rate_limiter(name, limiter))

    async def _checkpoint(self) -> None:
        server = self._poller.name
        await self._change(f"write a checkpoint of {server}", server, lambda store: store.checkpoint())

    async def _reset(self) -> None:
        await self._change_table("reset", lambda store, name: store.reset(name))

    async def _drop(self) -> None:
        await self._change_table("drop", lambda store, name: store.drop_table(name))

    async def _change_table(self, what: str, call: Callable[[TableStore, str], object]) -> None:
        name = self._table.value
        if name is None:
            self._outcome.set_text("Choose a table first.")
            return
        await self._change(f"{what} {name} on {self._poller.name}", name, lambda store: call(store, name))

    async def _change(self, what: str, name: str, call: Callable[[TableStore], object]) -> None:
        if not await confirm(what, name):
            self._outcome.set_text("Nothing was changed.")
            return
        _, error = await fetch(self._poller, call)
        self._outcome.set_text(error or f"Done: {what}.")


def new_limiter(ratio: float | None, min_size: float | None, buffer: float | None) -> AnyRateLimiter:
    """Returns the limiter that the form describes.

    Raises:
        InvalidArgumentError: The values do not form a limiter.
    """
    size = int(min_size or 1)
    if ratio is None:
        return rate_limiters.MinSize(size)
    return rate_limiters.SampleToInsertRatio(ratio, size, 2 * max(1.0, ratio) if buffer is None else buffer)


async def confirm(what: str, name: str) -> bool:
    """Asks twice: whether to make a change, then for the name of what it changes."""
    with ui.dialog() as dialog, ui.card():
        ui.label(f"Really {what}?").classes("engram-text")
        with ui.row():
            ui.button("Yes", on_click=lambda: dialog.submit("yes")).mark("yes")
            ui.button("No", on_click=lambda: dialog.submit(None)).props("flat")
    if await dialog != "yes":
        return False
    with ui.dialog() as second, ui.card():
        ui.label(f"Type {name} to {what}.").classes("engram-text")
        typed = ui.input("Name").mark("typed-name")
        with ui.row():
            ui.button("Confirm", on_click=lambda: second.submit(typed.value)).mark("confirm")
            ui.button("Cancel", on_click=lambda: second.submit(None)).props("flat")
    return bool(await second == name)
