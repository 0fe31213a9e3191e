"""Flat and decomposed actions."""

import numpy as np
import pytest
from helpers.ftw_fixtures import arrays, load
from helpers.support import raises
from scipy.special import log_softmax

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]

GROUPS = (5, 3, 2)


@pytest.fixture
def actions():
    from engram.agents.ftw import actions  # noqa: PLC0415, an extra, not needed to collect the tests

    return actions


def test_log_probabilities_of_groups_add_up(actions):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 2, sum(GROUPS)))
    taken = np.stack([rng.integers(size, size=(4, 2)) for size in GROUPS], -1)
    expected = np.zeros((4, 2))
    for t, b in np.ndindex(4, 2):
        for group, part in enumerate(np.split(logits[t, b], np.cumsum(GROUPS)[:-1])):
            expected[t, b] += log_softmax(part)[taken[t, b, group]]
    np.testing.assert_allclose(actions.log_prob(logits, taken, GROUPS), expected, rtol=1e-12)


def test_a_single_group_equals_a_flat_action(actions):
    rng = np.random.default_rng(0)
    logits, taken = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(4, size=6)
    np.testing.assert_array_equal(actions.log_prob(logits, taken[:, None], [4]), actions.log_prob(logits, taken, 4))
    np.testing.assert_array_equal(actions.entropy(logits, [4]), actions.entropy(logits, 4))
    np.testing.assert_array_equal(actions.one_hot(taken[:, None], [4]), actions.one_hot(taken, 4))


def test_entropy_of_uniform_groups_is_the_log_of_the_number_of_composite_actions(actions):
    groups = (5, 3, 3, 3, 2, 2)
    np.testing.assert_allclose(actions.entropy(np.zeros(sum(groups)), groups), np.log(540), rtol=1e-12)


def test_entropy_with_impossible_actions_and_its_gradient_are_finite(actions, jax64):
    logits = np.array([0.0, -np.inf, 0.0], np.float32)
    np.testing.assert_allclose(actions.entropy(logits, 3), np.log(2), rtol=1e-6)
    assert np.isfinite(jax64.grad(lambda x: actions.entropy(x, 3))(logits)).all()


def test_entropy_of_nan_is_nan(actions):
    assert np.isnan(actions.entropy(np.array([0.0, np.nan], np.float32), 2))


def test_samples_follow_the_probabilities_of_each_group(actions, jax64):
    logits = np.log(np.array([0.2, 0.8, 0.5, 0.25, 0.25]))
    drawn = np.asarray(actions.sample(jax64.random.key(0), np.tile(logits, (20_000, 1)), (2, 3)))
    assert drawn.shape == (20_000, 2)
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(np.bincount(drawn[:, 0]) / 20_000, [0.2, 0.8], atol=0.02)
    np.testing.assert_allclose(np.bincount(drawn[:, 1]) / 20_000, [0.5, 0.25, 0.25], atol=0.02)


def test_groups_are_drawn_independently(actions, jax64):
    drawn = np.asarray(actions.sample(jax64.random.key(0), np.zeros((5_000, 4)), (2, 2)))
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.06


def test_samples_of_flat_actions_have_no_axis_of_groups(actions, jax64):
    assert actions.sample(jax64.random.key(0), np.zeros((7, 3, 4)), 4).shape == (7, 3)


def test_one_hot_concatenates_the_groups(actions):
    fixture = arrays(load("internal_rewards")["oar_multi"])
    features = fixture["features"].shape[-1]
    groups = fixture["groups"].tolist()
    np.testing.assert_array_equal(actions.one_hot(fixture["actions"], groups), fixture["expected"][:, features:])


def test_the_number_of_flat_actions_may_be_an_integer_of_numpy(actions):
    logits, taken = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6) % 4
    np.testing.assert_array_equal(actions.log_prob(logits, taken, np.int64(4)), actions.log_prob(logits, taken, 4))


def test_select_returns_a_value_per_group(actions):
    values = np.arange(10.0).reshape(1, 10)
    picked = actions.select(values, np.array([[4, 0, 1]]), GROUPS)
    assert [float(value[0]) for value in picked] == [4.0, 5.0, 9.0]


@pytest.mark.parametrize(
    ("num_actions", "text"),
    [
        (0, "`num_actions` must be at least 1; got 0"),
        (2.5, "`num_actions` must be an integer; got 2.5 (float)"),
        ("ab", "`num_actions` must be an integer; got 'ab' (str)"),
        ((3, 0), "each of `num_actions` must be at least 1; got 0"),
        ((), "`num_actions`: no groups; got an empty sequence, expected at least one int"),
    ],
)
def test_group_sizes_are_checked(actions, num_actions, text):
    with raises(InvalidArgumentError, text):
        actions.group_sizes(num_actions)


def test_shapes_are_checked(actions):
    with raises(
        InvalidArgumentError,
        "`logits`: the last axis must have 10 elements, one per action of each group; got the shape (2, 9)",
    ):
        actions.entropy(np.zeros((2, 9)), GROUPS)
    with raises(
        InvalidArgumentError, "`actions`: the last axis must have 3 elements, one per group; got the shape (2, 2)"
    ):
        actions.log_prob(np.zeros((2, 10)), np.zeros((2, 2), int), GROUPS)
