"""Fetch: find the flag in a room."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from engram.envs import tiles
from engram.envs.grid_environment import FRAME_SIZE, BatchedGridEnvironment, GridEnvironment
from engram.envs.renderer import STEPS, View, render

LEFT, RIGHT, FORWARD = range(3)
"""Actions: turn left, turn right, one step ahead."""

_SIZE: Final = 7
_VIEW: Final = View(ahead=6, behind=0, left=3, right=3)

_FLOOR, _FLAG, _NORTH, _EAST, _SOUTH, _WEST, _OUTSIDE = range(7)
_WALLS: Final = ((168, 72, 72), (72, 144, 72), (80, 96, 176), (160, 136, 56))
"""One color per wall, so that the heading can be seen."""


def _make_tiles(size: int) -> npt.NDArray[np.uint8]:
    walls = [tiles.bordered(color, size) for color in _WALLS]
    return np.stack([tiles.bordered(tiles.FLOOR, size), tiles.flag((255, 0, 255), size), *walls, 0 * walls[0]])


def _make_room() -> npt.NDArray[np.uint8]:
    room = np.full((_SIZE + 2, _SIZE + 2), _FLOOR, np.uint8)
    room[:, 0], room[:, -1], room[0], room[-1] = _WEST, _EAST, _NORTH, _SOUTH
    return room


class BatchedFetch(BatchedGridEnvironment):
    """N environments in each of which an agent looks for a flag in a room of 7 x 7 cells.

    The agent's start and heading and the flag's cell are uniform; the flag is not at the start. Stepping on the flag
    gives the reward 1 and terminates the episode; after 25 steps, the episode is truncated. A step against a wall does
    not move the agent. The agent sees 7 x 7 cells: its own, in the middle of the last row, and those ahead of it.
    """

    num_actions = 3
    max_steps = 25
    _tiles = _make_tiles(FRAME_SIZE // 7)
    _room = _make_room()

    def __init__(self, seeds: Sequence[int]) -> None:
        """Creates one environment per seed."""
        super().__init__(seeds)
        self._flag = np.zeros((self.num_envs, 2), np.int64)

    def _begin(self, index: int, rng: np.random.Generator) -> None:
        start, flag = rng.choice(_SIZE**2, 2, replace=False)
        self._position[index] = np.add(divmod(start, _SIZE), 1)  # the walls are around
        self._flag[index] = np.add(divmod(flag, _SIZE), 1)
        self._heading[index] = rng.integers(4)

    def _move(
        self, indices: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        turn = (actions == RIGHT).astype(np.int64) - (actions == LEFT)
        self._heading[indices] = (self._heading[indices] + turn) % 4
        step = STEPS[self._heading[indices]] * (actions == FORWARD)[:, None]
        self._position[indices] = np.clip(self._position[indices] + step, 1, _SIZE)
        found = (self._position[indices] == self._flag[indices]).all(1)
        return found.astype(np.float32), found

    def _render(self) -> npt.NDArray[np.uint8]:
        cells = np.repeat(self._room[None], self.num_envs, 0)
        cells[np.arange(self.num_envs), self._flag[:, 0], self._flag[:, 1]] = _FLAG
        return render(cells, self._position, self._heading, tiles=self._tiles, view=_VIEW, outside=_OUTSIDE)


class Fetch(GridEnvironment):
    """One environment of `BatchedFetch`, with the same episodes for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        """Creates the environment."""
        super().__init__(BatchedFetch([seed]))
