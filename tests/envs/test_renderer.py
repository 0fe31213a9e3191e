"""The egocentric renderer, for any view."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("dm_env")

from engram.envs import View, render
from engram.envs.renderer import EAST, NORTH, SOUTH, WEST

TILES = np.random.default_rng(0).integers(256, size=(5, 2, 2, 3), dtype=np.uint8)


def rotated(cells, position, heading):
    """Returns the grid turned so that the heading is up, and the position in it."""
    row, column = position
    height, width = cells.shape
    if heading == NORTH:
        return cells, (row, column)
    if heading == EAST:  # a quarter turn to the left
        return np.rot90(cells), (width - 1 - column, row)
    if heading == SOUTH:
        return np.rot90(cells, 2), (height - 1 - row, width - 1 - column)
    return np.rot90(cells, 3), (column, height - 1 - row)


@given(
    st.integers(0, 2**32),
    st.builds(View, *[st.integers(0, 4)] * 4),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_a_view_is_a_part_of_the_turned_grid(seed, view, shape):
    rng = np.random.default_rng(seed)
    cells = rng.integers(4, size=(3, *shape), dtype=np.uint8)
    positions = np.stack([rng.integers(size, size=3) for size in shape], 1)
    headings = rng.choice([NORTH, EAST, SOUTH, WEST], 3)
    frames = render(cells, positions, headings, tiles=TILES, view=view, outside=4)
    for n in range(3):
        turned, (row, column) = rotated(cells[n], positions[n], headings[n])
        turned = np.pad(turned, 4, constant_values=4)
        row, column = row + 4, column + 4
        seen = turned[row - view.ahead : row + view.behind + 1, column - view.left : column + view.right + 1]
        rows = [np.concatenate([TILES[kind] for kind in line], axis=1) for line in seen]
        np.testing.assert_array_equal(frames[n], np.concatenate(rows, axis=0))
