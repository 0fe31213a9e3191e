"""The view of a table: how it is filled and read, its distributions, its settings, and who uses it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from nicegui import ui

from engram._text import bytes_text
from engram.dashboard.calls import fetch
from engram.dashboard.frame import COLORS, GRAY, chart_options, frame, line, refresh_with, table_url
from engram.dashboard.texts import count_text, duration_text, number_text, rate_text, waiting_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engram import Histogram, TableInfo, TableStore
    from engram.dashboard.state import DashboardState
    from engram.dashboard.table_history import TableHistory
    from engram.peek import HistogramOf

__all__ = ["table_view"]

HISTOGRAM_S = 10.0

UNLIMITED = 1e300
"""A bound of a rate limiter from which it is never reached."""

HISTOGRAMS: tuple[tuple[HistogramOf, str], ...] = (
    ("priority", "Items by priority"),
    ("age", "Items by age: number of later inserts"),
    ("times_sampled", "Items by times sampled"),
)


def table_view(state: DashboardState, server: int, table: str) -> None:
    """Builds the page."""
    poller = state.server(server)
    with frame(state, table):
        if poller is None:
            ui.label(f"This dashboard has no server with the number {server}.")
            return
        with ui.row().classes("items-baseline gap-4"):
            ui.label(table).classes("text-lg font-medium engram-text")
            ui.label(f"on {poller.name}").classes("text-sm")
            ui.link("Items", table_url("/items", server, table))
        missing = ui.label().classes("engram-waits engram-text").mark("missing")
        waiting = ui.label().classes("engram-waits engram-text").mark("waiting")
        numbers = ui.label().classes("engram-text")
        with ui.row().classes("gap-4 w-full"):
            corridor = _chart_card("How far writers are ahead of readers, in samples")
            charts = {of: _chart_card(title) for of, title in HISTOGRAMS}
        with ui.row().classes("gap-4 w-full items-start"):
            settings = _rows_card("Settings", ("setting", "value")).classes("engram-settings")
            users = _rows_card("Connected writers and readers", USER_COLUMNS)
            rejected = _rows_card("Rejected calls", ("error", "calls"))

        def refresh() -> None:
            known = poller.state
            info = known.infos.get(table)
            problem = known.error and f"{poller.name} does not reply: {known.error}"
            if known.read_at is None and problem is None:
                problem = f"Connecting to {poller.name}."
            elif info is None and problem is None:
                problem = f"There is no table {table} on {poller.name} now; it may have been dropped."
            missing.set_text(problem or "")
            missing.set_visibility(bool(problem))
            waiting.set_visibility(False)
            if info is None:
                return
            history = poller.history(table)
            waiting.set_text(waiting_text(info, history, time.time()) or "")
            waiting.set_visibility(bool(waiting.text))
            numbers.set_text(_numbers_text(info))
            corridor.options.update(corridor_options(info, history))
            corridor.update()
            settings.rows = _as_rows(settings_rows(info), ("setting", "value"))
            users.rows = _as_rows(user_rows(info), USER_COLUMNS)
            rejected.rows = _as_rows(sorted(info.rejected_calls.items()), ("error", "calls"))

        async def refresh_histograms() -> None:
            for of, chart in charts.items():
                histogram, error = await fetch(
                    poller,
                    partial(read_histogram, table, of),
                    shared=("histogram", table, of),
                    max_age=0.8 * HISTOGRAM_S,
                )
                if histogram is not None:
                    chart.options.update(histogram_options(of, histogram))
                    chart.update()
                elif error:
                    break

        refresh_with([poller], refresh)
        ui.timer(HISTOGRAM_S, refresh_histograms)


USER_COLUMNS = ("kind", "session", "address", "items/s", "items", "in flight", "last seen")


def read_histogram(table: str, of: HistogramOf, store: TableStore) -> Histogram:
    """Reads a histogram."""
    return store.histogram(table, of)


def _chart_card(title: str) -> ui.echart:
    with ui.card().classes("engram-card gap-1"):
        ui.label(title).classes("text-sm font-medium")
        return ui.echart(chart_options([])).classes("h-48 w-full")


def _rows_card(title: str, columns: Sequence[str]) -> ui.table:
    with ui.card().classes("gap-1 max-w-full max-h-96 overflow-auto"):
        ui.label(title).classes("text-sm font-medium")
        shown = [{"name": name, "label": name, "field": name, "align": "left"} for name in columns]
        return ui.table(columns=shown, rows=[], row_key=columns[0], pagination=0).props(
            'dense flat wrap-cells hide-pagination no-data-label="none"'
        )


def _as_rows(rows: Sequence[Sequence[object]], columns: Sequence[str]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in zip(columns, row, strict=True)} for row in rows]


def _numbers_text(info: TableInfo) -> str:
    return (
        f"{count_text(info.size)} of {count_text(info.max_size)} items, {bytes_text(info.bytes)}; "
        f"{rate_text(info.inserts_per_s)} inserted, {rate_text(info.samples_per_s)} sampled; in total "
        f"{count_text(info.inserts)} inserted, {count_text(info.samples)} sampled, {count_text(info.deletes)} removed"
    )


def settings_rows(info: TableInfo) -> list[tuple[str, str]]:
    """Returns names and values of a table's settings."""
    names = ("max_size", "max_bytes", "max_times_sampled", "ttl", "sampler", "remover", "rate_limiter", "signature")
    rows = [(name, _setting_text(getattr(info, name))) for name in names]
    return [*rows, *((("note", info.note),) if info.note else ())]


def _setting_text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def user_rows(info: TableInfo) -> list[tuple[str, ...]]:
    """Returns the rows of connected writers and readers."""
    return [
        (
            user.kind,
            "" if user.session is None else f"{user.session:016x}",
            user.address,
            rate_text(user.items_per_s),
            count_text(user.items),
            count_text(user.in_flight),
            f"{duration_text(user.idle_s)} ago",
        )
        for user in info.users
    ]


def corridor_options(info: TableInfo, history: TableHistory) -> dict[str, Any]:
    """Returns the chart of how far writers are ahead of readers, and of the rate limiter's bounds."""
    limiter = info.rate_limiter
    points = [[each.inserts, limiter.samples_per_insert * each.inserts - each.samples] for each in history.points]
    is_dot = len({point[0] for point in points}) == 1
    series = [line(0, points, "ahead", showSymbol=is_dot, symbolSize=4)]
    bounds = (("inserts wait above", limiter.max_diff), ("samples wait below", limiter.min_diff))
    for index, (name, bound) in enumerate(bounds, start=1):
        if abs(bound) < UNLIMITED:
            ends = [[point[0], bound] for point in points[:1] + points[-1:]]
            series.append(line(index, ends, name, lineStyle={"type": "dashed"}, showSymbol=is_dot, symbolSize=4))
    return chart_options(series, x="inserts in total")


def histogram_options(of: HistogramOf, histogram: Histogram) -> dict[str, Any]:
    """Returns the chart of a histogram."""
    edges, counts = histogram.edges, histogram.counts
    labels = [number_text(float(edge)) for edge in edges[:-1]]
    if of == "priority" and len(counts) == 1:
        labels = [number_text(float(edges.mean()))]  # all are equal
    bars = {"type": "bar", "name": "items", "data": counts.tolist(), "barCategoryGap": "5%", "color": COLORS[0]}
    options = chart_options([bars], x="lower bound of each bar" if len(counts) > 1 else "all items")
    notes = []
    if histogram.is_approximate:
        notes.append(f"{histogram.num_items:,} of {histogram.table_size:,} items, chosen at random")
    if histogram.below or histogram.above:
        notes.append(f"{histogram.below + histogram.above:,} infinite")
    options["legend"] = {"show": False}
    options["yAxis"]["scale"] = False
    options["title"] = {
        "text": "; ".join(notes),
        "textStyle": {"fontSize": 11, "fontWeight": "normal", "color": GRAY},
    }
    options["xAxis"] = {**options["xAxis"], "type": "category", "data": labels}
    return options
