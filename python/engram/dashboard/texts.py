"""Numbers and states in words."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from engram.errors import HandshakeError

if TYPE_CHECKING:
    from engram import TableInfo
    from engram.dashboard.table_history import TableHistory

__all__ = [
    "count_text",
    "duration_text",
    "error_text",
    "number_text",
    "rate_text",
    "ratio_text",
    "waiting_text",
]

WHO_WAITS = re.compile(r"^`.*?`: (inserting|sampling) waits: ", re.DOTALL)
"""The start of the reason why calls wait, which the page states itself."""

MINUTE = 60
HOUR = 3600


def count_text(count: float) -> str:
    """Returns a count, rounded to three digits if it is large."""
    for limit, divisor, unit in ((1e5, 1, ""), (1e6, 1e3, " k"), (1e9, 1e6, " M"), (math.inf, 1e9, " G")):
        if count < limit:
            return f"{count / divisor:,.3g}{unit}" if unit else f"{count:,.0f}"
    return f"{count:g}"


def rate_text(per_s: float) -> str:
    """Returns a rate."""
    return f"{per_s:.1f}/s" if 0 < per_s < 10 else f"{count_text(per_s)}/s"  # noqa: PLR2004


def number_text(value: float) -> str:
    """Returns a number with up to five digits."""
    return f"{value:.5g}"


def duration_text(seconds: float) -> str:
    """Returns a duration."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min {seconds % MINUTE:.0f} s"
    return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"


def error_text(error: Exception) -> str:
    """Returns the text of an error of a call, without arguments of Python."""
    text = str(error).replace(" (`reconnect_timeout`)", "")
    if isinstance(error, HandshakeError) and "token" in text:
        text = f"{text.partition('; pass ')[0]}; start the dashboard with the token of this server"
    return text


def waiting_text(info: TableInfo, history: TableHistory, now: float) -> str | None:
    """Returns which calls wait for a table, how long and why; `None` if no call waits."""
    seconds = max(0.0, now - (history.waiting_since or now))
    least = "at least " if history.is_lower_bound else ""
    duration = f"for {least}{duration_text(seconds)}" if seconds >= 1 else "for less than 1 s"
    parts = []
    for count, who, reason in (
        (info.waiting_inserts, "writer", info.inserting_blocked),
        (info.waiting_samples, "reader", info.sampling_blocked),
    ):
        if count:
            waits = f"{count:,} {who}{' waits' if count == 1 else 's wait'}"
            why = "" if reason is None else f": {WHO_WAITS.sub('', reason)}"
            parts.append(f"{waits} {duration}{why}")
    return "; ".join(parts) or None


def ratio_text(info: TableInfo) -> str:
    """Returns the samples per insert so far, and what the rate limiter allows."""
    limiter = info.rate_limiter
    so_far = f"{info.samples_per_insert:.3g} samples per insert"
    if math.isinf(limiter.min_diff) and math.isinf(limiter.max_diff):
        return f"{so_far}; the limiter sets no ratio"
    return f"{so_far}; the limiter keeps it near {number_text(limiter.samples_per_insert)}"
