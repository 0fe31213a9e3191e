"""Internal rewards."""

import numpy as np
import pytest
from helpers.ftw_fixtures import TOLERANCE, arrays, load
from helpers.support import raises

from engram.agents.ftw.internal_rewards import (
    InternalRewards,
    initialize_internal_rewards,
    internal_reward,
    learner_reward,
)
from engram.errors import InvalidArgumentError


def test_values_of_the_fixture():
    fixture = load("internal_rewards")
    values = arrays(fixture)
    np.testing.assert_allclose(internal_reward(values["weights"], values["events"]), values["expected"], **TOLERANCE)
    scalar = arrays(fixture["scalar"])
    weights = np.array([scalar["weight"]])
    np.testing.assert_allclose(internal_reward(weights, scalar["rewards"]), scalar["expected"], **TOLERANCE)
    rewards = InternalRewards(len(values["weights"]), 1.0)
    rewards.set(fixture["weights"])
    np.testing.assert_allclose(rewards.reward(fixture["events"]), values["expected"], **TOLERANCE)


@pytest.mark.jax
@pytest.mark.usefixtures("jax64")
def test_arrays_of_jax():
    import jax.numpy as jnp  # noqa: PLC0415, an extra, not needed to collect the tests

    values = arrays(load("internal_rewards"))
    result = internal_reward(jnp.asarray(values["weights"]), jnp.asarray(values["events"]))
    np.testing.assert_allclose(result, values["expected"], **TOLERANCE)
    clipped = learner_reward(jnp.array([10.0]), jnp.array([1.0, -1.0, 0.1]), 2.0)
    np.testing.assert_array_equal(clipped, [2, -2, 1])


def test_rewards_are_clipped_after_they_are_weighted():
    np.testing.assert_array_equal(learner_reward(np.array([10.0]), np.array([1.0]), 2.0), [2.0])
    np.testing.assert_array_equal(learner_reward(np.array([10.0]), np.array([1.0]), np.inf), [10.0])


@pytest.mark.parametrize("shape", [(), (2,), (4, 2)])
def test_events_are_checked(shape):
    with raises(
        InvalidArgumentError,
        f"`events`: the last axis must have 3 elements, one per internal reward; got the shape {shape}",
    ):
        internal_reward(np.ones(3), np.ones(shape))


def test_weights_are_drawn_independently_or_equal():
    drawn = initialize_internal_rewards(5, seed=0).get()
    assert len(set(drawn)) == 5
    assert ((drawn >= 0.1) & (drawn <= 1)).all()
    np.testing.assert_array_equal(initialize_internal_rewards(3, 0.7).get(), [0.7] * 3)


def test_each_weight_is_perturbed_independently_and_keeps_its_sign():
    rewards = InternalRewards(2000, 0.5, 0.05, seed=0)
    signs = np.where(np.arange(2000) % 2, -0.5, 0.5)
    rewards.set(signs)
    rewards.perturb()
    ratios = rewards.get() / signs
    assert ((ratios >= 0.8) & (ratios <= 1.2)).all()
    changed = ratios[ratios != 1]
    assert 0.03 < len(changed) / 2000 < 0.07
    assert len(set(changed)) == len(changed)


def test_weights_cannot_be_changed_from_outside():
    rewards = initialize_internal_rewards(2, 0.5)
    rewards.get()[:] = 7
    np.testing.assert_array_equal(rewards.get(), [0.5, 0.5])
    given = np.ones(2)
    rewards.set(given)
    given[:] = 7
    np.testing.assert_array_equal(rewards.get(), [1, 1])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: InternalRewards(0, 0.5), "`num_events` must be at least 1; got 0"),
        (lambda: InternalRewards(2, 0.5, 1), "`perturb_probability` must be a float; got 1 (int)"),
        (lambda: InternalRewards(2, 0.5, 1.0, 2.0), "`perturb_max_pct_change` must be from 0 to 1; got 2"),
        (
            lambda: InternalRewards(2, 1),
            "`init_value_or_range` must be a float, or a tuple of two floats, 0 < low <= high; got 1 (int)",
        ),
        (
            lambda: InternalRewards(2, 0.5).set([1.0]),
            "`value` must be finite numbers of the shape (2,); got [1.0]",
        ),
    ],
)
def test_arguments_are_checked(make, text):
    with raises(InvalidArgumentError, text):
        make()
