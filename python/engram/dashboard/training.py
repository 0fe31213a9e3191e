"""The view Training: curves of training runs, from their log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import run, ui

from engram.dashboard.frame import chart_options, frame, line
from engram.dashboard.run_logs import METRICS, RunLog, read_runs

if TYPE_CHECKING:
    from engram.dashboard.state import DashboardState

__all__ = ["training_view"]

REFRESH_S = 2.0
MAX_RUNS = 8


def training_view(state: DashboardState) -> None:
    """Builds the page."""
    with frame(state, "Training"):
        note = ui.label().classes("engram-text").mark("runs-note")
        chosen = ui.select([], multiple=True, label="Runs").classes("w-full").mark("runs")
        with ui.row().classes("gap-4 w-full"):
            charts = {}
            for metric, title in METRICS.items():
                with ui.card().classes("engram-card gap-1"):
                    ui.label(title).classes("text-sm font-medium")
                    charts[metric] = ui.echart(chart_options([])).classes("h-56 w-full").mark(f"metric-{metric}")
        logs: dict[str, RunLog] = {}

        def draw() -> None:
            shown = [logs[name] for name in chosen.value or () if name in logs]
            for metric, chart in charts.items():
                lines = [line(index, log.curve(metric), f"run {index + 1}") for index, log in enumerate(shown)]
                chart.options.update(chart_options(lines, x="environment steps"))
                chart.update()
            names = "; ".join(f"run {index + 1}: {log.name}" for index, log in enumerate(shown))
            note.set_text(names or f"No runs with a progress.jsonl in {state.options.runs}; start one: engram demo")

        async def refresh() -> None:
            found = await run.io_bound(read_runs, state.options.runs) or []
            is_first = not logs
            logs.clear()
            logs.update((log.name, log) for log in found)
            if list(logs) != chosen.options:
                kept = [name for name in chosen.value or () if name in logs]
                chosen.set_options(list(logs), value=list(logs)[:MAX_RUNS] if is_first else kept)
            draw()

        chosen.on_value_change(draw)
        ui.timer(REFRESH_S, refresh)
