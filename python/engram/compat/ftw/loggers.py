"""Loggers of metrics, in the form of Acme's."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Logger", "TerminalLogger"]


class Logger(Protocol):
    """What writes metrics. Acme's loggers work."""

    def write(self, data: Mapping[str, Any]) -> None:
        """Writes the values of `data`, by name."""


class TerminalLogger:
    """Prints metrics in one line."""

    def __init__(self, label: str = "", time_delta: float = 1.0) -> None:
        """Sets up the logger.

        Args:
            label: Start of each line.
            time_delta: Minimum time between two lines, in seconds; what is written meanwhile is dropped.
        """
        self._label, self._time_delta = label, time_delta
        self._next = 0.0

    def write(self, data: Mapping[str, Any]) -> None:
        """Prints the values of `data`, by name."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._time_delta
            values = (
                f"{name} = {value:.3g}" if isinstance(value, float) else f"{name} = {value}"
                for name, value in data.items()
            )
            print(f"[{self._label}] {' | '.join(values)}")  # noqa: T201, its purpose
