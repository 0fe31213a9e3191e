"""Cue: remember a color until the end of a corridor."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from engram.envs import tiles
from engram.envs.grid_environment import FRAME_SIZE, BatchedGridEnvironment, GridEnvironment
from engram.envs.renderer import NORTH, View, render

LEFT, RIGHT = range(2)
"""Actions; only the last one of an episode has an effect."""

_LENGTH: Final = 12
_VIEW: Final = View(ahead=6, behind=0, left=3, right=3)

_FLOOR, _WALL, _LEFT_CUE, _RIGHT_CUE, _LEFT_DOOR, _RIGHT_DOOR, _OUTSIDE = range(7)
_LEFT_COLOR: Final = (208, 48, 48)
_RIGHT_COLOR: Final = (48, 96, 224)
_COLORS: Final = (tiles.FLOOR, (136, 136, 136), _LEFT_COLOR, _RIGHT_COLOR, _LEFT_COLOR, _RIGHT_COLOR, (0, 0, 0))

_COLUMN: Final = 2  # of the corridor, whose rows are _LENGTH ... 1; the doors are next to row 1


def _make_corridor() -> npt.NDArray[np.uint8]:
    cells = np.full((_LENGTH + 2, 2 * _COLUMN + 1), _WALL, np.uint8)
    cells[1:-1, _COLUMN] = _FLOOR
    cells[1, _COLUMN - 1], cells[1, _COLUMN + 1] = _LEFT_DOOR, _RIGHT_DOOR
    return cells


class BatchedCue(BatchedGridEnvironment):
    """N environments in each of which an agent must remember the color of a corridor.

    The corridor is 12 cells long and 1 wide; with each step, the agent advances by one cell, whatever it does. The
    corridor's floor has the color of the left or the right door in the first frame only; both are equally likely. The
    12th action picks the door at the corridor's end: the reward is 1 for the door of that color and -1 for the other
    one, and the episode terminates. All other rewards are 0.
    """

    num_actions = 2
    max_steps = _LENGTH
    _tiles = np.stack([tiles.bordered(color, FRAME_SIZE // 7) for color in _COLORS])
    _corridor = _make_corridor()

    def __init__(self, seeds: Sequence[int]) -> None:
        """Creates one environment per seed."""
        super().__init__(seeds)
        self._cue = np.zeros(self.num_envs, np.int64)

    def _begin(self, index: int, rng: np.random.Generator) -> None:
        self._position[index] = (_LENGTH, _COLUMN)
        self._heading[index] = NORTH
        self._cue[index] = rng.integers(2)

    def _move(
        self, indices: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        picks = self._step[indices] == _LENGTH
        self._position[indices, 0] -= ~picks
        self._position[indices, 1] += picks * np.where(actions == LEFT, -1, 1)
        reward = np.where(actions == self._cue[indices], 1, -1)
        return (picks * reward).astype(np.float32), picks

    def _render(self) -> npt.NDArray[np.uint8]:
        cells = np.repeat(self._corridor[None], self.num_envs, 0)
        color = np.where(self._cue == LEFT, _LEFT_CUE, _RIGHT_CUE)
        cells[:, 1:-1, _COLUMN] = np.where(self._step == 0, color, _FLOOR)[:, None]
        return render(cells, self._position, self._heading, tiles=self._tiles, view=_VIEW, outside=_OUTSIDE)


class Cue(GridEnvironment):
    """One environment of `BatchedCue`, with the same episodes for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        """Creates the environment."""
        super().__init__(BatchedCue([seed]))
