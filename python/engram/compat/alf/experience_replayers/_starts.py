"""Ranges of steps that sequences can begin with."""

import numpy as np

from engram.compat.alf._host import Ints

__all__ = ["Starts"]


class Starts:
    """Positions that sequences can begin with: from `first` to below `end`, in each of different `envs`, all `[B]`."""

    def __init__(self, envs: Ints, first: Ints, end: Ints) -> None:
        self.envs = envs
        self.first = first
        self.end = np.maximum(first, end)

    def before(self, positions: Ints) -> "Starts":
        """Those before a position of each environment."""
        return Starts(self.envs, self.first, np.minimum(self.end, positions))

    def after(self, positions: Ints) -> "Starts":
        """Those at and after a position of each environment."""
        return Starts(self.envs, np.maximum(self.first, positions), self.end)

    def rows(self, length: int) -> Ints:
        """Their rows, in a buffer with `length` slots per environment."""
        counts = self.end - self.first
        total = int(counts.sum())
        if total == 0:
            return np.empty(0, np.int64)
        begin = np.repeat(self.first - (np.cumsum(counts) - counts), counts)
        return np.repeat(self.envs, counts) * length + (begin + np.arange(total)) % length
