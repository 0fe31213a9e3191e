"""The last ten minutes of a table, as read while pages are open."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engram import TableInfo

__all__ = ["RateCurves", "TableHistory", "TablePoint"]

HISTORY_S = 600.0
"""How far back the curves reach."""

MAX_POINTS = 120
"""Number of points up to which a curve has them all; longer curves have means of `BIN_S` seconds."""

BIN_S = 5.0


class TablePoint(NamedTuple):
    """Counters of a table at one time, as `time.time()` returns it; rates are NaN in a gap."""

    time: float
    inserts: int
    samples: int
    inserts_per_s: float
    samples_per_s: float


class RateCurves(NamedTuple):
    """Inserts and samples per second, as pairs of a time in milliseconds and a rate; `None` in a gap."""

    inserts: list[list[float | None]]
    samples: list[list[float | None]]


@dataclass
class TableHistory:
    """The last ten minutes of a table.

    Attributes:
        points: Counters, oldest first.
        waiting_since: Time since which calls wait and none of their kind proceeded; `None` if none waits.
        is_lower_bound: True if they may have waited for longer, because the table was not read before.
    """

    points: deque[TablePoint] = field(default_factory=deque)
    waiting_since: float | None = None
    is_lower_bound: bool = False
    _curves: RateCurves | None = None

    def add(self, now: float, info: TableInfo) -> None:
        """Adds the counters of a table."""
        last = self.points[-1] if self.points else None
        if last is not None and info.inserts < last.inserts:
            self.points.clear()  # the table was reset
        self._update_waiting(now, info, last)
        self.points.append(TablePoint(now, info.inserts, info.samples, info.inserts_per_s, info.samples_per_s))
        while self.points[0].time < now - HISTORY_S:
            self.points.popleft()
        self._curves = None

    def add_gap(self) -> None:
        """Marks that the table was not read for a while."""
        if self.points and math.isfinite(self.points[-1].inserts_per_s):
            self.points.append(self.points[-1]._replace(inserts_per_s=math.nan, samples_per_s=math.nan))
        self.waiting_since = None

    def curves(self) -> RateCurves:
        """Returns the rates; all pages share the result."""
        if self._curves is None:
            self._curves = _rate_curves(list(self.points))
        return self._curves

    def _update_waiting(self, now: float, info: TableInfo, last: TablePoint | None) -> None:
        is_first = last is None or math.isnan(last.inserts_per_s)
        stuck = [
            last is None or done == before
            for waiting, done, before in (
                (info.waiting_inserts, info.inserts, last and last.inserts),
                (info.waiting_samples, info.samples, last and last.samples),
            )
            if waiting
        ]
        if not stuck:
            self.waiting_since = None
        elif self.waiting_since is None or not any(stuck):
            self.waiting_since, self.is_lower_bound = now, is_first


def _rate_curves(points: list[TablePoint]) -> RateCurves:
    """Returns the points, or means of `BIN_S` seconds if there are many."""
    width = BIN_S if len(points) > MAX_POINTS else 0.0
    bins: list[list[TablePoint]] = []
    for point in points:
        is_gap = math.isnan(point.inserts_per_s)
        is_new = not bins or not width or is_gap or math.isnan(bins[-1][0].inserts_per_s)
        if is_new or point.time // width != bins[-1][0].time // width:
            bins.append([])
        bins[-1].append(point)
    return RateCurves(
        [_mean(each, [point.inserts_per_s for point in each]) for each in bins],
        [_mean(each, [point.samples_per_s for point in each]) for each in bins],
    )


def _mean(points: list[TablePoint], rates: list[float]) -> list[float | None]:
    mean = sum(rates) / len(rates)
    return [round(1000 * points[-1].time), None if math.isnan(mean) else round(mean, 2)]
