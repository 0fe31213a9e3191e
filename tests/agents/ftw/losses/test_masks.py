"""Masks of valid rows."""

import numpy as np
import pytest
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax


@pytest.fixture
def masks():
    from engram.agents.ftw.losses import masks  # noqa: PLC0415, an extra, not needed to collect the tests

    return masks


def test_rows_before_and_after_a_valid_transition_are_real(masks):
    valid = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]], np.float32)
    expected = [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(masks.row_mask(valid), expected)


def test_padding_becomes_zero_in_every_array(masks):
    mask = np.array([[1, 0], [0, 1]], np.float32)
    tree = {"frames": np.full((2, 2, 3), 7, np.uint8), "rewards": np.array([[1.0, np.nan], [np.inf, 2.0]], np.float32)}
    result = masks.zero_padding(tree, mask)
    np.testing.assert_array_equal(result["rewards"], [[1, 0], [0, 2]])
    np.testing.assert_array_equal(result["frames"], 7 * np.broadcast_to(mask[..., None], (2, 2, 3)))
    assert result["frames"].dtype == np.uint8


def test_without_padding_a_network_would_receive_nan_gradients(masks):
    """The reason why `zero_padding` is for the network's inputs, too."""
    import jax  # noqa: PLC0415, as above
    import jax.numpy as jnp  # noqa: PLC0415, as above

    mask, inputs = np.float32([[1], [0]]), np.float32([[[2]], [[np.nan]]])

    def loss(weight, inputs):
        return masks.masked_sum(jnp.tanh(inputs @ weight), mask)

    weight = np.ones((1, 1), np.float32)
    assert np.isnan(jax.grad(loss)(weight, inputs)).all()
    assert np.isfinite(jax.grad(loss)(weight, masks.zero_padding(inputs, mask))).all()


def test_axes_are_checked(masks):
    with raises(
        InvalidArgumentError,
        "`tree`: each array must begin with the axes of the mask, (2, 3); got the shape (2,)",
    ):
        masks.zero_padding(np.zeros(2), np.ones((2, 3)))
