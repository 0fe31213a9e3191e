"""What all views share: header, navigation, colours and charts."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from nicegui import ui

if TYPE_CHECKING:
    from engram.dashboard.server_poller import ServerPoller, ServerState
    from engram.dashboard.state import DashboardState

__all__ = ["COLORS", "GRAY", "chart_options", "frame", "line", "refresh_with", "table_url"]

COLORS = ("#2f7ed8", "#e07b00", "#2ca25f", "#c23b75", "#8a63d2", "#17a2a2", "#a0703c", "#7f8c99")

GRAY = "#8b929c"
"""Colour of text in charts, legible on light and dark ground."""

AXIS = {
    "axisLabel": {"color": GRAY},
    "nameTextStyle": {"color": GRAY},
    "axisTick": {"show": False},
    "axisLine": {"lineStyle": {"color": "#8b929c80"}},
    "splitLine": {"lineStyle": {"color": "#8b929c40"}},
}
"""Look of both axes."""

CHECK_S = 0.25
"""Pause between two checks for a new state. With the pause between reads, it bounds the delay of a page."""

REFRESH_S = 1.0
"""Maximum time between two refreshes, which also show how old a state is."""

STYLE = """
.engram-page { max-width: 1280px; margin: 0 auto; width: 100%; }
.engram-card { width: 390px; max-width: 100%; }
.engram-gray { opacity: .5; filter: grayscale(1); }
.engram-waits { color: #b45309; font-weight: 500; }
.body--dark .engram-waits { color: #fbbf24; }
.engram-strip { display: flex; gap: 4px; overflow-x: auto; max-width: 100%; }
.engram-strip img { height: 84px; image-rendering: pixelated; flex: none; }
.engram-film { image-rendering: pixelated; height: 192px; width: auto !important;
  max-width: 100%; align-self: flex-start !important; object-fit: contain; }
.engram-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.engram-settings td { overflow-wrap: anywhere; }
.engram-page .q-table__bottom-nodata-icon { display: none; }
"""


@contextmanager
def frame(state: DashboardState, title: str) -> Iterator[None]:
    """The frame of a page; the body of the `with` statement fills it."""
    ui.page_title(f"{title} - Engram")
    ui.colors(primary="#2b74c4")
    ui.add_css(STYLE)
    with ui.header().classes("items-center gap-4 py-2 px-4"):
        ui.label("Engram").classes("text-lg font-bold")
        links = [("Overview", "/"), ("Training", "/training")]
        if state.options.allow_changes:
            links.append(("Change", "/change"))
        for text, target in links:
            ui.link(text, target).classes("text-white" + (" underline" if text == title else " no-underline"))
    with ui.column().classes("engram-page gap-4 p-2"):
        yield


def refresh_with(servers: Sequence[ServerPoller], refresh: Callable[[], None]) -> None:
    """Calls `refresh` now, after each read of one of the servers, and at least once a second while the page is open.

    The servers are read while a page asks for it.
    """
    drawn: list[ServerState] = []
    drawn_at = 0.0

    def check() -> None:
        nonlocal drawn, drawn_at
        for server in servers:
            server.watch()
        states, now = [server.state for server in servers], clock.monotonic()
        is_same = len(states) == len(drawn) and all(new is old for new, old in zip(states, drawn, strict=True))
        if not is_same or now - drawn_at >= REFRESH_S:
            drawn, drawn_at = states, now
            refresh()

    check()
    ui.timer(CHECK_S, check)


def table_url(path: str, server: int, table: str) -> str:
    """Returns the address of a view of a table, with the table's name quoted."""
    return f"{path}?{urlencode({'server': server, 'table': table})}"


def line(index: int, points: Sequence[Sequence[float | None]], name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns a line of a chart."""
    color = COLORS[index % len(COLORS)]
    series = {"type": "line", "name": name, "data": points, "animation": False, "color": color}
    return {**series, "showSymbol": len(points) == 1, **more}  # a single point has no line


def chart_options(
    series: Sequence[Mapping[str, Any]], *, x: str = "", y: str = "", time: bool = False, legend: bool = True
) -> dict[str, Any]:
    """Returns the options of a chart with two axes."""
    return {
        "animation": False,
        "grid": {
            "left": 24 if y else 8,
            "right": 28,
            "top": 30 if legend else 12,
            "bottom": 24 if x else 8,
            "containLabel": True,
        },
        "legend": {"show": legend, "type": "scroll", "top": 0, "textStyle": {"color": GRAY}},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "time" if time else "value",
            "name": x,
            "nameLocation": "middle",
            "nameGap": 26,
            "splitNumber": 4,
            "scale": True,
            **AXIS,
            "axisLabel": {"hideOverlap": True, "color": GRAY, "margin": 10},
        },
        "yAxis": {
            "type": "value",
            "name": y,
            "scale": True,
            "nameLocation": "middle",
            "nameGap": 48,
            "splitNumber": 3,
            **AXIS,
        },
        "series": list(series),
    }
