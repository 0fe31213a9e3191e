"""Pixel control (Jaderberg et al. 2017, UNREAL): learn to change the picture, with n-step Q-learning for each cell.

The picture is divided into cells; the pseudo reward of a cell is how much its pixels change. Pictures may have any
size: a cell has as many pixels as fit, and the cells are in the middle of the picture.
"""

from engram import _checks
from engram._extras import importing_extra
from engram.agents.ftw.actions import NumActions, select, split_logits
from engram.agents.ftw.losses.masks import masked_sum, row_mask, zero_padding
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array

NUM_CELLS = 20
"""Cells per side of the picture: the size of the head's output."""
GAMMA = 0.9
"""Discount of the pseudo rewards."""


def pseudo_rewards(
    frames: Array, *, num_cells: int | tuple[int, int] = NUM_CELLS, cell_size: int | tuple[int, int] | None = None
) -> Array:
    """Returns the mean absolute change of the pixels of each cell, `[T, B, rows, columns]`, from 0 to 1.

    At 84 x 84 pixels, 20 x 20 cells have 4 x 4 pixels, and a border of 2 pixels belongs to no cell.

    Args:
        frames: `[T + 1, B, H, W, C]`, u8, or floating-point from 0 to 1.
        num_cells: Rows and columns, or one number for both.
        cell_size: Height and width of a cell in pixels, or one number for both. Default: `(H // rows, W // columns)`.

    Raises:
        InvalidArgumentError: `frames` has other axes, or is smaller than the cells.
    """
    if frames.ndim != 5 or frames.shape[0] < 1:  # noqa: PLR2004, the axes in the docstring
        raise InvalidArgumentError(f"`frames` must have the shape [T + 1, B, H, W, C]; got {frames.shape}")
    (top, rows, height), (left, columns, width) = (
        _cells(axis, frames.shape[2 + index], _pair(num_cells)[index], cell_size and _pair(cell_size)[index])
        for index, axis in enumerate(("height", "width"))
    )
    pixels = frames[:, :, top : top + rows * height, left : left + columns * width]
    if pixels.dtype == jnp.uint8:
        pixels = pixels.astype(float) / 255
    change = jnp.abs(pixels[1:] - pixels[:-1])
    return jnp.mean(change.reshape(*change.shape[:2], rows, height, columns, width, -1), (3, 5, 6))


def q_targets(
    rewards: Array,
    q_values: Array,
    discounts: Array,
    num_actions: NumActions,
    *,
    valid: Array | None = None,
    gamma: Array | float = GAMMA,
) -> list[Array]:
    """Returns the n-step returns of the cells, one array `[T, B, rows, columns]` per group of actions.

        G_t = r_t + gamma discount_t G_{t+1}

    After the last transition, `G` is `max_a Q`. No gradient passes through the returns. At transitions that are not
    valid, `G_t` is `max_a Q_t`: the last valid transition bootstraps from the row that follows it.

    Args:
        rewards: `[T, B, rows, columns]`, of `pseudo_rewards`.
        q_values: `[T + 1, B, rows, columns, L]`.
        discounts: `[T, B]`, of the environment: 0 at a termination, otherwise usually 1.
        num_actions: See `engram.agents.ftw.actions`.
        valid: `[T, B]`, nonzero for real transitions. Default: all are.
        gamma: Discount of the pseudo rewards.
    """
    if valid is None:
        valid = jnp.ones(discounts.shape, bool)
    rewards, discounts = zero_padding((rewards, discounts), valid)
    q_values = jax.lax.stop_gradient(zero_padding(q_values, row_mask(valid)))
    at_each_cell = (..., None, None)
    transitions = (rewards, (gamma * discounts)[at_each_cell], valid.astype(bool)[at_each_cell])
    best = [jnp.max(q_group, -1) for q_group in split_logits(q_values, num_actions)]
    return [jax.lax.scan(_one_step_back, b[-1], (*transitions, b[:-1]), reverse=True)[1] for b in best]


def cell_losses(
    rewards: Array,
    actions: Array,
    q_values: Array,
    discounts: Array,
    num_actions: NumActions,
    *,
    valid: Array | None = None,
    gamma: Array | float = GAMMA,
) -> Array:
    """Returns `(G_t - Q_t(a_t))^2 / 2` of each cell, `[T, B, rows, columns]`: the sum over the groups of actions.

    Args:
        rewards: `[T, B, rows, columns]`, of `pseudo_rewards`.
        actions: int `[T, B]`, or `[T, B, G]` if decomposed.
        q_values: `[T + 1, B, rows, columns, L]`. Only the Q of the actions taken receives gradients.
        discounts: `[T, B]`, of the environment.
        num_actions: See `engram.agents.ftw.actions`.
        valid: `[T, B]`, nonzero for real transitions; elsewhere, the loss is 0. Default: all are.
        gamma: Discount of the pseudo rewards.
    """
    targets = q_targets(rewards, q_values, discounts, num_actions, valid=valid, gamma=gamma)
    q_before = q_values[:-1]
    if valid is not None:
        q_before, actions = zero_padding((q_before, actions), valid)
    at_each_cell = actions[:, :, None, None]
    taken = select(q_before, at_each_cell, num_actions)
    errors = [(target - q) ** 2 / 2 for target, q in zip(targets, taken, strict=True)]
    total = jnp.sum(jnp.stack(errors), 0)
    return total if valid is None else zero_padding(total, valid)


def pixel_control_loss(
    rewards: Array,
    actions: Array,
    q_values: Array,
    discounts: Array,
    num_actions: NumActions,
    *,
    valid: Array | None = None,
    gamma: Array | float = GAMMA,
) -> Array:
    """Returns the sum of `cell_losses` over time, batch and cells, `[]`; the arguments are the same."""
    return masked_sum(cell_losses(rewards, actions, q_values, discounts, num_actions, valid=valid, gamma=gamma), valid)


def _one_step_back(following: Array, row: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
    reward, discount, is_valid, best = row
    result = jnp.where(is_valid, reward + discount * following, best)
    return result, result


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _cells(axis: str, size: int, number: int, cell: int | None) -> tuple[int, int, int]:
    """Returns the first pixel of the cells, their number, and the pixels of each, along one axis."""
    _checks.integer("`num_cells`", number)
    cell = size // number if cell is None else _checks.integer("`cell_size`", cell)
    if cell < 1 or number * cell > size:
        raise InvalidArgumentError(
            f"`frames`: smaller than the cells; got a {axis} of {size} pixels, expected at least"
            f" {number * max(cell, 1)} for {number} cells"
        )
    return (size - number * cell) // 2, number, cell
