"""Reward prediction."""

import numpy as np
import pytest
from helpers.ftw_fixtures import GARBAGE, TOLERANCE, arrays, load, padding
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]


@pytest.fixture
def losses():
    from engram.agents.ftw.losses import reward_prediction  # noqa: PLC0415, an extra, not needed to collect the tests

    return reward_prediction


def test_values_of_the_fixture(losses):
    fixture = load("reward_prediction")
    logits, expected = np.array(fixture["logits"]), arrays(fixture["expected"])
    labels = losses.reward_labels(np.array(fixture["last_rewards"]))
    np.testing.assert_array_equal(labels, expected["labels"])
    np.testing.assert_allclose(losses.cross_entropies(logits, labels), expected["per_example"], **TOLERANCE)
    np.testing.assert_allclose(losses.reward_prediction_loss(logits, labels), expected["loss"], **TOLERANCE)


def test_labels_are_the_signs(losses):
    assert losses.reward_labels(np.array([-2.0, 0.0, 0.5])).tolist() == [1, 0, 2]


def test_uniform_logits_cost_log_3_per_example(losses):
    np.testing.assert_allclose(losses.cross_entropies(np.zeros((4, 3)), np.array([0, 1, 2, 0])), np.log(3), rtol=1e-12)


def test_windows_with_zero_rewards_are_first(losses):
    zero, nonzero = np.zeros((3, 2, 4)), np.ones((3, 2, 4))
    frames, labels = losses.join_windows(zero, nonzero, np.array([-1.0, 2.0]))
    assert frames.shape == (3, 4, 4)
    np.testing.assert_array_equal(frames[0, :, 0], [0, 0, 1, 1])
    assert labels.tolist() == [0, 0, 1, 2]


def test_windows_are_checked(losses):
    with raises(
        InvalidArgumentError,
        "`zero_frames`, `nonzero_frames` and `nonzero_rewards` must have the shapes [K, N, ...], [K, N, ...] and [N];"
        " got (3, 2, 4), (3, 1, 4) and (2,)",
    ):
        losses.join_windows(np.zeros((3, 2, 4)), np.zeros((3, 1, 4)), np.zeros(2))


@pytest.mark.parametrize("kind", GARBAGE)
def test_examples_that_do_not_count_may_have_any_content(losses, jax64, kind):
    logits, labels = np.random.default_rng(0).normal(size=(4, 3)), np.array([0, 1, 2, 0])
    valid = np.array([1, 0, 1, 0])
    spoil = padding(valid, kind)
    loss = jax64.value_and_grad(lambda x, y: losses.reward_prediction_loss(x, y, valid=valid))
    value, grad = loss(logits, labels)
    spoiled, spoiled_grad = loss(spoil(logits), spoil(labels))
    assert value == spoiled
    np.testing.assert_array_equal(grad, spoiled_grad)
    np.testing.assert_allclose(value, losses.reward_prediction_loss(logits[::2], labels[::2]), rtol=1e-12)
