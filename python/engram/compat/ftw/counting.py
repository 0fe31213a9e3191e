"""Counters of steps and times, in the form of Acme's."""

import threading

__all__ = ["Counter"]


class Counter:
    """Adds up numbers by name. Threads may share it. Acme's `Counter` works in its place."""

    def __init__(self) -> None:
        """Starts without counts."""
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}

    def increment(self, **counts: float) -> dict[str, float]:
        """Returns all counts, after adding `counts` by name."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count
            return dict(self._counts)

    def get_counts(self) -> dict[str, float]:
        """Returns all counts."""
        return self.increment()
