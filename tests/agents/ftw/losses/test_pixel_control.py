"""Pixel control: pseudo rewards, n-step returns with all endings of episodes, and the loss."""

import numpy as np
import pytest
from helpers.ftw_fixtures import GARBAGE, TOLERANCE, arrays, ending, load, padding
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]

T, CELLS, A = 5, 2, 3


@pytest.fixture
def losses():
    from engram.agents.ftw.losses import pixel_control  # noqa: PLC0415, an extra, not needed to collect the tests

    return pixel_control


@pytest.fixture
def q_targets(losses, jax64):
    return jax64.jit(losses.q_targets, static_argnames="num_actions")


@pytest.fixture
def cell_losses(losses, jax64):
    return jax64.jit(losses.cell_losses, static_argnames="num_actions")


def random_inputs(num_actions=A, batch=1):
    rng = np.random.default_rng(0)
    rewards = rng.uniform(size=(T, batch, CELLS, CELLS))
    actions = rng.integers(A, size=(T, batch))
    return rewards, actions, rng.normal(size=(T + 1, batch, CELLS, CELLS, num_actions)), np.ones((T, batch))


def test_values_of_the_fixture(losses):
    fixture = load("pixel_control")
    inputs, expected = arrays(fixture["inputs"]), arrays(fixture["expected"])
    q_values, actions, gamma = inputs["action_values"], inputs["actions"], inputs["gamma"]
    num_actions = q_values.shape[-1]
    rewards = losses.pseudo_rewards(inputs["obs"], num_cells=q_values.shape[2:4], cell_size=inputs["cell_size"])
    np.testing.assert_allclose(rewards, expected["pseudo_rewards"], **TOLERANCE)
    discounts = np.ones(actions.shape)
    (targets,) = losses.q_targets(rewards, q_values, discounts, num_actions, gamma=gamma)
    np.testing.assert_allclose(targets, expected["targets"], **TOLERANCE)
    spatial = losses.cell_losses(rewards, actions, q_values, discounts, num_actions, gamma=gamma)
    np.testing.assert_allclose(spatial, expected["spatial_loss"], **TOLERANCE)
    np.testing.assert_allclose(spatial.sum((0, 2, 3)), expected["loss"], **TOLERANCE)
    loss = losses.pixel_control_loss(rewards, actions, q_values, discounts, num_actions, gamma=gamma)
    np.testing.assert_allclose(loss, expected["loss"].sum(), **TOLERANCE)


def test_pseudo_rewards_are_the_change_of_each_cell(losses):
    black, white = np.zeros((1, 1, 42, 42, 3)), np.ones((1, 1, 42, 42, 3))
    np.testing.assert_array_equal(losses.pseudo_rewards(np.concatenate([black, black])), 0)
    np.testing.assert_array_equal(losses.pseudo_rewards(np.concatenate([black, white])), 1)
    np.testing.assert_array_equal(losses.pseudo_rewards(np.concatenate([white, black])), 1)
    one_cell = black.copy()
    one_cell[:, :, 1 + 2 * 4 : 1 + 2 * 5, 1 + 2 * 7 : 1 + 2 * 8] += 0.25  # a border of 1, cells of 2 pixels
    expected = np.zeros((1, 1, 20, 20))
    expected[0, 0, 4, 7] = 0.25
    np.testing.assert_array_equal(losses.pseudo_rewards(np.concatenate([black, one_cell])), expected)


def test_integers_are_scaled(losses):
    frames = np.random.default_rng(0).integers(256, size=(3, 2, 40, 40, 1), dtype=np.uint8)
    np.testing.assert_allclose(losses.pseudo_rewards(frames), losses.pseudo_rewards(frames / 255), rtol=1e-12)


def test_pixels_outside_the_cells_do_not_matter(losses):
    frames = np.random.default_rng(0).uniform(size=(2, 1, 84, 84, 3))
    bordered = np.random.default_rng(1).uniform(size=(2, 1, 84, 84, 3))
    bordered[:, :, 2:82, 2:82] = frames[:, :, 2:82, 2:82]
    np.testing.assert_array_equal(losses.pseudo_rewards(frames), losses.pseudo_rewards(bordered))
    bordered[:, :, 2, 2] += 1
    bordered[1, :, 81, 81] += 1
    changed = np.asarray(losses.pseudo_rewards(frames) != losses.pseudo_rewards(bordered))
    assert np.argwhere(changed[0, 0]).tolist() == [[19, 19]]


@pytest.mark.parametrize(
    ("size", "num_cells", "shape"), [((72, 96), 20, (20, 20)), ((84, 84), 20, (20, 20)), ((30, 41), (3, 4), (3, 4))]
)
def test_frames_of_any_size(losses, size, num_cells, shape):
    frames = np.random.default_rng(0).uniform(size=(2, 1, *size, 3))
    rewards = losses.pseudo_rewards(frames, num_cells=num_cells)
    assert rewards.shape[2:] == shape
    (height, width), (rows, columns) = (size[0] // shape[0], size[1] // shape[1]), shape
    top, left = (size[0] - rows * height) // 2, (size[1] - columns * width) // 2
    change = np.abs(frames[1, 0] - frames[0, 0])
    for row, column in np.ndindex(shape):
        y, x = top + row * height, left + column * width
        np.testing.assert_allclose(rewards[0, 0, row, column], change[y : y + height, x : x + width].mean())


def test_frames_and_cells_are_checked(losses):
    with raises(
        InvalidArgumentError,
        "`frames`: smaller than the cells; got a width of 19 pixels, expected at least 20 for 20 cells",
    ):
        losses.pseudo_rewards(np.zeros((2, 1, 84, 19, 3)))
    with raises(
        InvalidArgumentError,
        "`frames`: smaller than the cells; got a height of 12 pixels, expected at least 15 for 3 cells",
    ):
        losses.pseudo_rewards(np.zeros((2, 1, 12, 12, 3)), num_cells=3, cell_size=5)
    with raises(InvalidArgumentError, "`frames` must have the shape [T + 1, B, H, W, C]; got (84, 84, 3)"):
        losses.pseudo_rewards(np.zeros((84, 84, 3)))
    with raises(InvalidArgumentError, "`num_cells` must be at least 1; got 0"):
        losses.pseudo_rewards(np.zeros((2, 1, 84, 84, 3)), num_cells=0)
    with raises(InvalidArgumentError, "`cell_size` must be at least 1; got 0"):
        losses.pseudo_rewards(np.zeros((2, 1, 84, 84, 3)), cell_size=0)


@pytest.mark.parametrize("terminated", [True, False])
def test_an_episode_may_end_at_every_offset(q_targets, terminated):
    """A truncated episode bootstraps from the best Q at its final observation, a terminated one from 0."""
    rewards, _, q_values, _ = random_inputs()
    for num_valid in range(1, T + 1):
        valid, discounts = ending(T, num_valid, terminated=terminated)
        (targets,) = q_targets(rewards, q_values, discounts, A, valid=valid)
        expected = np.zeros((CELLS, CELLS)) if terminated else q_values[num_valid, 0].max(-1)
        for t in reversed(range(num_valid)):
            expected = rewards[t, 0] + 0.9 * expected
            np.testing.assert_allclose(targets[t, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("terminated", [True, False])
def test_padding_may_have_any_content(cell_losses, jax64, terminated, kind):
    """Neither the loss nor its gradient depends on it."""
    rewards, actions, q_values, _ = random_inputs()

    @jax64.jit
    @jax64.value_and_grad
    def loss(q_values, rewards, actions, discounts, valid):
        return cell_losses(rewards, actions, q_values, discounts, A, valid=valid).sum()

    for num_valid in range(1, T + 1):
        valid, discounts = ending(T, num_valid, terminated=terminated)
        row_valid = (np.arange(T + 1) <= num_valid)[:, None]
        spoil = padding(valid, kind)
        value, grad = loss(q_values, rewards, actions, discounts, valid)
        np.testing.assert_array_equal(grad[num_valid:], 0)
        # Actions that are out of range would hide what Q contains.
        for other_actions in (actions, spoil(actions)):
            spoiled, spoiled_grad = loss(
                padding(row_valid, kind)(q_values), spoil(rewards), other_actions, spoil(discounts), valid
            )
            assert value == spoiled
            np.testing.assert_array_equal(grad, spoiled_grad)
        part = np.s_[:num_valid]
        alone = cell_losses(rewards[part], actions[part], q_values[: num_valid + 1], discounts[part], A)
        np.testing.assert_allclose(value, alone.sum(), rtol=1e-12)


def test_a_mask_of_ones_changes_nothing(cell_losses):
    inputs = random_inputs()
    np.testing.assert_array_equal(cell_losses(*inputs, A, valid=np.ones((T, 1))), cell_losses(*inputs, A))


def test_the_loss_is_zero_where_q_equals_the_return(q_targets, cell_losses, jax64):
    rewards, actions, q_values, discounts = random_inputs()
    (targets,) = q_targets(rewards, q_values, discounts, A)
    for t in range(T):
        q_values[t, 0, :, :, actions[t, 0]] = targets[t, 0]
    np.testing.assert_allclose(cell_losses(rewards, actions, q_values, discounts, A), 0, atol=1e-24)
    grad = jax64.grad(lambda q: cell_losses(rewards, actions, q, discounts, A).sum())(q_values + 1)
    taken = np.arange(A) == actions[..., None]
    np.testing.assert_array_equal(np.asarray(grad[:-1] != 0), np.broadcast_to(taken[:, :, None, None], grad[:-1].shape))
    np.testing.assert_array_equal(grad[-1], 0)


def test_without_a_discount_the_return_is_the_next_reward(losses):
    rewards, _, q_values, discounts = random_inputs()
    np.testing.assert_array_equal(losses.q_targets(rewards, q_values, discounts, A, gamma=0.0)[0], rewards)


def test_the_loss_of_decomposed_actions_is_the_sum_over_the_groups(losses, cell_losses):
    rewards, actions, q_values, discounts = random_inputs(2 * A)
    both = np.stack([actions, (actions + 1) % A], -1)
    parts = [
        cell_losses(rewards, both[..., group], q_values[..., A * group : A * (group + 1)], discounts, A)
        for group in range(2)
    ]
    np.testing.assert_allclose(cell_losses(rewards, both, q_values, discounts, (A, A)), sum(parts), rtol=1e-12)
    total = losses.pixel_control_loss(rewards, both, q_values, discounts, (A, A))
    np.testing.assert_allclose(total, sum(part.sum() for part in parts), rtol=1e-12)
