"""Pictures of the cells of a grid, u8 `[c, c, 3]`."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Color: TypeAlias = tuple[int, int, int]
Tile: TypeAlias = npt.NDArray[np.uint8]

FLOOR: Final[Color] = (64, 64, 64)
_SHADE: Final = 0.75
"""Brightness of a tile's border, which shows where cells end, and so how far the agent moves."""


def bordered(color: Color, size: int) -> Tile:
    """Returns a tile of one color with a darker line at its lower and right border."""
    tile = np.full((size, size, 3), color, np.float64)
    tile[-1] *= _SHADE
    tile[:-1, -1] *= _SHADE
    return tile.astype(np.uint8)


def flag(color: Color, size: int) -> Tile:
    """Returns a flag on the floor."""
    tile = bordered(FLOOR, size)
    tile[: 2 * size // 3] = color
    tile[:, 0] = (255, 255, 255)  # its pole
    return tile
