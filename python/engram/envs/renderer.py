"""Egocentric pictures of grids: what agents see, with the direction they face at the top.

All functions work on N grids at once.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

NORTH, EAST, SOUTH, WEST = range(4)
"""Headings; a turn to the right adds 1. North is the first row of a grid."""
STEPS: Final = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
"""Change of row and column by one step ahead, of each heading."""


class View(NamedTuple):
    """The part of a grid that is seen, in cells around the agent's own.

    Attributes:
        ahead: Cells seen in the direction that the agent faces.
        behind: Cells seen in the opposite direction.
        left: Cells seen to the left.
        right: Cells seen to the right.
    """

    ahead: int
    behind: int
    left: int
    right: int


def render(
    cells: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.int64],
    headings: npt.NDArray[np.int64],
    *,
    tiles: npt.NDArray[np.uint8],
    view: View,
    outside: int,
) -> npt.NDArray[np.uint8]:
    """Returns what each agent sees, u8 `[N, rows * c, columns * c, 3]`.

    The tiles keep their orientation when the agent turns.

    Args:
        cells: u8 `[N, H, W]`, the kind of each cell.
        positions: int `[N, 2]`, row and column of each agent.
        headings: int `[N]`, `NORTH`, `EAST`, `SOUTH` or `WEST`.
        tiles: u8 `[kinds, c, c, 3]`, the picture of each kind of cell.
        view: The cells that are seen: `ahead + 1 + behind` rows and `left + 1 + right` columns.
        outside: The kind of cells outside the grid.
    """
    margin = max(view)
    padded = np.pad(cells, ((0, 0), (margin, margin), (margin, margin)), constant_values=outside)
    seen = positions[:, None, None] + margin + _offsets(view)[headings]
    kinds = padded[np.arange(len(cells))[:, None, None], seen[..., 0], seen[..., 1]]
    number, rows, columns = kinds.shape
    size = tiles.shape[1]
    frames: npt.NDArray[np.uint8] = tiles[kinds].swapaxes(2, 3).reshape(number, rows * size, columns * size, 3)
    return frames


def _offsets(view: View) -> npt.NDArray[np.int64]:
    """Returns row and column of each seen cell relative to the agent, for each heading: int `[4, rows, columns, 2]`."""
    ahead = np.arange(view.ahead, -view.behind - 1, -1)[None, :, None, None]
    right = np.arange(-view.left, view.right + 1)[None, None, :, None]
    to_the_right = np.roll(STEPS, -1, axis=0)
    offsets: npt.NDArray[np.int64] = ahead * STEPS[:, None, None] + right * to_the_right[:, None, None]
    return offsets
