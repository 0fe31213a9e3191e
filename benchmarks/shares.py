"""Tables that compare each figure with a reference: one measured in the same run, or the workload's first row."""

import statistics

from benchmarks import report
from benchmarks.measure import Row

HEAD = (
    "| workload | configuration | median | min - max | relative to | target | met | details |\n"
    "|---|---|---:|---:|---:|---|---|---|\n"
)


def share(row: Row, first: Row | None) -> float | None:
    """The row's figure divided by the reference of the same runs; without one, by the figure of the first row.

    `None` for the first row itself, and if either has no figure.
    """
    if row.reference:
        return statistics.median(value / reference for value, reference in zip(row.values, row.reference, strict=True))
    if first is None or first is row or not row.median or not first.median:
        return None
    return row.median / first.median


def table(rows: list[Row]) -> str:
    """Renders all rows, each with its share of the reference, which is also what targets of kind "ratio" bound."""
    first: dict[str, Row] = {}
    lines = []
    for row in rows:
        name = row.workload.name
        relative = share(row, first.get(name))
        details = (text.format(report.number(statistics.median(values))) for text, values in row.extra.items())
        lines.append(
            report.cells(
                [
                    "" if name in first else f"`{name}`",
                    *report.figures(row),
                    "" if relative is None else f"{report.number(relative, 3)}x {row.workload.reference_name}",
                    *report.target_cells(row, relative),
                    "; ".join(details),
                ]
            )
        )
        first.setdefault(name, row)
    return HEAD + "".join(lines)
