"""Where the episodes of stored steps begin and end."""

import numpy as np
import numpy.typing as npt
import torch

from engram.compat.alf._host import HostModule, Ints

__all__ = ["EpisodeIndex"]


class EpisodeIndex(HostModule):
    """Begin and end of the episode of each stored step.

    An episode extends from a FIRST step to the one before the next FIRST step, or to the newest step.
    """

    def __init__(self, num_envs: int, length: int, *, shared: bool) -> None:
        super().__init__(shared=shared)
        self._length = length
        # [E, L]. For the FIRST step of an episode, the position of its newest step, which is at or after it; for any
        # other step, the position of its FIRST step, which is before it and may have been overwritten.
        self._add("bounds", (num_envs, length), torch.int64)
        # [E]. Position of the newest step of the episode whose FIRST step was overwritten last.
        self._add("headless_end", (num_envs,), torch.int64)

    def add(self, envs: Ints, positions: Ints, is_first: npt.NDArray[np.bool_]) -> None:
        """Adds a step of each environment, at the position after its newest one."""
        bounds, headless_end = self._array("bounds"), self._array("headless_end")
        slots = positions % self._length
        # That of the step before. If it is FIRST, no step of its episode follows yet, so its bound is its position.
        bound = bounds[envs, (positions - 1) % self._length]
        begin = np.where(is_first, positions, bound)
        overwritten = positions - self._length
        overwrites_first = bounds[envs, slots] >= overwritten  # or nothing, while the ring is not full
        headless_end[envs[overwrites_first]] = bounds[envs, slots][overwrites_first]
        bounds[envs, slots] = begin
        begin_is_stored = begin > overwritten
        stored, headless = envs[begin_is_stored], envs[~begin_is_stored]
        bounds[stored, begin[begin_is_stored] % self._length] = positions[begin_is_stored]
        headless_end[headless] = positions[~begin_is_stored]

    def begin(self, envs: Ints, positions: Ints) -> Ints:
        """Positions of the FIRST steps of the episodes of stored steps."""
        begin: Ints = np.minimum(self._array("bounds")[envs, positions % self._length], positions)
        return begin

    def end(self, envs: Ints, positions: Ints, newest: Ints) -> Ints:
        """Positions of the newest steps of the episodes of stored steps. `newest`: of each environment."""
        begin = self.begin(envs, positions)
        ends = np.where(
            begin > newest[envs] - self._length,
            self._array("bounds")[envs, begin % self._length],
            self._array("headless_end")[envs],
        )
        return ends.astype(np.int64, copy=False)
