"""The view Training: curves of training runs, from their log directories."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nicegui import run, ui

from engram._text import counted
from engram.dashboard.frame import GRAY, chart_options, frame, line
from engram.dashboard.run_logs import METRICS, RunLog, read_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from engram.dashboard.state import DashboardState

__all__ = ["short_names", "training_view"]

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
                    charts[metric] = ui.echart(chart_options([])).classes("h-56 w-full").props(f"data-metric={metric}")
        logs: dict[str, RunLog] = {}

        def draw() -> None:
            shown = [logs[name] for name in sorted(chosen.value or ()) if name in logs]
            labels = short_names([log.name for log in shown])
            for metric, chart in charts.items():
                lines = [line(index, log.curve(metric), labels[log.name]) for index, log in enumerate(shown)]
                chart.options.update(_curves_options(lines))
                chart.update()
            note.set_text(_note(state.options.runs, len(logs)))

        async def refresh() -> None:
            found = await run.io_bound(read_runs, state.options.runs) or []
            new = [log.name for log in found if log.name not in logs]
            logs.clear()
            logs.update((log.name, log) for log in found)
            if sorted(logs) != chosen.options:
                kept = [name for name in chosen.value or () if name in logs]
                chosen.set_options(sorted(logs), value=kept + new[: max(0, MAX_RUNS - len(kept))])
            draw()

        chosen.on_value_change(draw)
        ui.timer(REFRESH_S, refresh)


def _note(runs: Path, count: int) -> str:
    """Returns where the runs are from."""
    if count:
        newest = f"; the newest {MAX_RUNS} are chosen at first" if count > MAX_RUNS else ""
        return f"{counted(count, 'run')} in {runs}{newest}"
    return f"No runs with a progress.jsonl in {runs}; start one: engram demo"


def _curves_options(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if any(each["data"] for each in lines):
        return {**chart_options(lines, x="environment steps"), "title": {"text": ""}}
    style = {"fontSize": 12, "fontWeight": "normal", "color": GRAY}
    title = {"text": "no values yet", "left": "center", "top": "middle", "textStyle": style}
    hidden = {"show": False}
    return {**chart_options(lines, legend=False), "title": title, "xAxis": hidden, "yAxis": hidden}


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Returns names without the directories that all of them have in common; `.` is the directory of all runs."""
    parents = [PurePath(name).parent.parts for name in names]
    common = 0
    while parents and all(len(each) > common and each[common] == parents[0][common] for each in parents):
        common += 1
    return {name: "/".join(PurePath(name).parts[common:]) or name for name in names}
