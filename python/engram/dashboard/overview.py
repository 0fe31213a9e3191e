"""The view Overview: a card for each table of each server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nicegui import ui

from engram._text import bytes_text, counted
from engram.dashboard.frame import chart_options, frame, line, refresh_with, table_url
from engram.dashboard.texts import count_text, duration_text, rate_text, ratio_text, waiting_text

if TYPE_CHECKING:
    from engram import TableInfo
    from engram.dashboard.server_poller import ServerPoller
    from engram.dashboard.state import DashboardState
    from engram.dashboard.table_history import RateCurves, TableHistory

__all__ = ["overview"]

MAX_CARDS = 24
"""Number of tables of a server that are shown at once; the search finds the others."""

STALE_S = 5.0
"""Age of a server's state from which its cards are gray."""


def overview(state: DashboardState) -> None:
    """Builds the page."""
    with frame(state, "Overview"):
        search = ui.input("Find a table").props("dense clearable").classes("w-64")
        sections = [ServerSection(index, server) for index, server in enumerate(state.servers)]

        def refresh() -> None:
            for section in sections:
                section.update(search.value or "")

        search.on_value_change(refresh)
        refresh_with(state.servers, refresh)


class ServerSection:
    """The cards of one server."""

    def __init__(self, index: int, server: ServerPoller) -> None:
        self._index = index
        self._server = server
        self._cards: dict[str, TableCard] = {}
        with ui.row().classes("items-baseline gap-2"):
            ui.label(server.name).classes("text-lg font-medium")
            self._status = ui.label().classes("text-sm engram-text").mark(f"status-{index}")
        self._row = ui.row().classes("gap-4 w-full")

    def update(self, search: str) -> None:
        """Shows the server's state as of now."""
        known = self._server.state
        found = [name for name in known.infos if search.lower() in name.lower()]
        shown = sorted(found, key=lambda name: (not _waits(known.infos[name]), name))[:MAX_CARDS]
        self._status.set_text(_status_text(self._server, len(found), len(shown)))
        is_stale = known.error is not None or known.read_at is None or time.time() - known.read_at > STALE_S
        self._row.classes(add="engram-gray" if is_stale else "", remove="" if is_stale else "engram-gray")
        for name in self._cards.keys() - set(shown):
            self._cards.pop(name).delete()
        for name in shown:
            if name not in self._cards:
                with self._row:
                    self._cards[name] = TableCard(self._index, name)
            self._cards[name].update(known.infos[name], self._server.history(name))


def _waits(info: TableInfo) -> bool:
    return info.waiting_inserts + info.waiting_samples > 0


def _status_text(server: ServerPoller, found: int, shown: int) -> str:
    known = server.state
    if known.error is not None:
        since = "" if known.read_at is None else f" (last reply {duration_text(time.time() - known.read_at)} ago)"
        return f"no reply{since}: {known.error}"
    if known.read_at is None:
        return "connecting"
    if not known.infos:
        return "no tables"
    more = f", {shown} shown; type a part of a name to find the others" if shown < found else ""
    return f"{counted(found, 'table')}{more}"


class TableCard:
    """The card of one table."""

    def __init__(self, server: int, name: str) -> None:
        with ui.card().classes("engram-card gap-1").mark(f"card-{name}") as self._card:
            ui.link(name, table_url("/table", server, name)).classes("text-base font-medium engram-text")
            self._fill = ui.label().classes("text-sm")
            self._bar = ui.linear_progress(value=0, show_value=False, size="6px").props("instant-feedback")
            self._rates = ui.label().classes("text-sm")
            self._chart = ui.echart(chart_options([], time=True)).classes("h-36 w-full")
            self._ratio = ui.label().classes("text-sm")
            self._waiting = ui.label().classes("text-sm engram-waits engram-text").mark(f"waiting-{name}")
        self._drawn: RateCurves | None = None

    def delete(self) -> None:
        """Removes the card from the page."""
        self._card.delete()

    def update(self, info: TableInfo, history: TableHistory) -> None:
        """Shows a state of the table."""
        limit = "" if info.max_bytes is None else f" of {bytes_text(info.max_bytes)}"
        self._fill.set_text(
            f"{count_text(info.size)} of {count_text(info.max_size)} items, {bytes_text(info.bytes)}{limit}"
        )
        fill = info.size / info.max_size
        self._bar.set_value(max(fill, info.bytes / info.max_bytes) if info.max_bytes else fill)
        self._rates.set_text(f"{rate_text(info.inserts_per_s)} inserted, {rate_text(info.samples_per_s)} sampled")
        self._ratio.set_text(ratio_text(info))
        self._waiting.set_text(waiting_text(info, history, time.time()) or "")
        self._waiting.set_visibility(bool(self._waiting.text))
        curves = history.curves()
        if curves is not self._drawn:
            self._drawn = curves
            lines = [line(0, curves.inserts, "inserts/s"), line(1, curves.samples, "samples/s")]
            self._chart.options.update(chart_options(lines, time=True))
            self._chart.update()
