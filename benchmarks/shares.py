"""Tables whose figures are held against what they could be: the share of it that was reached."""

import statistics

from benchmarks import report
from benchmarks.measure import Row

HEAD = (
    "| workload | what | median | min - max | share | must | kept | besides |\n|---|---|---:|---:|---:|---|---|---|\n"
)


def share(row: Row, first: Row | None) -> float | None:
    """Of what the machine could do in the same runs; where that was not measured, of the workload's first row."""
    if row.against:
        return statistics.median(value / most for value, most in zip(row.values, row.against, strict=True))
    if first is None or first is row or not row.median or not first.median:
        return None
    return row.median / first.median


def table(rows: list[Row]) -> str:
    """Render all rows."""
    first: dict[str, Row] = {}
    lines = []
    for row in rows:
        name = row.workload.name
        reached = share(row, first.get(name))
        besides = (text.format(report.number(statistics.median(values))) for text, values in row.besides.items())
        lines.append(
            report.cells(
                [
                    "" if name in first else f"`{name}`",
                    *report.figures(row),
                    "" if reached is None else f"{reached:.3g}x {row.workload.yardstick}",
                    *report.kept(row, reached),
                    "; ".join(besides),
                ]
            )
        )
        first.setdefault(name, row)
    return HEAD + "".join(lines)
