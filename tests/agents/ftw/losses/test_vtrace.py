"""V-trace, with all endings of episodes."""

import math

import numpy as np
import pytest
from helpers.ftw_fixtures import GARBAGE, TOLERANCE, arrays, ending, load, padding
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]

GAMMA = 0.9
T, B = 6, 3


@pytest.fixture
def vtrace(jax64):
    from engram.agents.ftw.losses.vtrace import vtrace  # noqa: PLC0415, an extra, not needed to collect the tests

    return jax64.jit(vtrace, static_argnames=("rho_bar", "c_bar", "pg_rho_bar"))


@pytest.fixture
def log_prob():
    from engram.agents.ftw.actions import log_prob  # noqa: PLC0415, as above

    return log_prob


def fixture_inputs(log_prob):
    inputs = arrays(load("vtrace")["inputs"])
    num_actions = inputs["target_logits"].shape[-1]
    log_rhos = log_prob(inputs["target_logits"], inputs["actions"], num_actions) - log_prob(
        inputs["behaviour_logits"], inputs["actions"], num_actions
    )
    values = np.concatenate([inputs["values"], inputs["bootstrap"][None]])
    return log_rhos, inputs["rewards"], inputs["discounts"], values


def random_inputs(seed=0, num_steps=T, batch=B):
    rng = np.random.default_rng(seed)
    log_rhos, rewards = rng.normal(size=(2, num_steps, batch))
    return log_rhos, rewards, np.full((num_steps, batch), GAMMA), rng.normal(size=(num_steps + 1, batch))


def model(log_rhos, rewards, discounts, values):
    """V-trace of one sequence by the sum in Espeholt et al. 2018, eq. 1."""
    steps = len(rewards)
    rho = [min(1.0, math.exp(x)) for x in log_rhos]
    vs = list(values)
    for s in range(steps):
        for t in range(s, steps):
            delta = rho[t] * (rewards[t] + discounts[t] * values[t + 1] - values[t])
            vs[s] += math.prod(discounts[i] * rho[i] for i in range(s, t)) * delta
    advantages = [rho[s] * (rewards[s] + discounts[s] * vs[s + 1] - values[s]) for s in range(steps)]
    return np.array(vs[:-1]), np.array(advantages)


def test_cases_of_the_fixture(vtrace, log_prob):
    log_rhos, rewards, discounts, values = fixture_inputs(log_prob)
    for case in load("vtrace")["cases"]:
        result = vtrace(log_rhos, rewards, discounts, values, rho_bar=case["rho_bar"], pg_rho_bar=case["pg_rho_bar"])
        expected = arrays(case["expected"])
        np.testing.assert_allclose(log_rhos, expected["log_rhos"], **TOLERANCE)
        np.testing.assert_allclose(result.vs, expected["vs"], **TOLERANCE)
        np.testing.assert_allclose(result.pg_advantages, expected["pg_advantages"], **TOLERANCE)


def test_on_policy_targets_are_n_step_returns(vtrace, log_prob):
    log_rhos, rewards, discounts, values = fixture_inputs(log_prob)
    result = vtrace(0 * log_rhos, rewards, discounts, values)
    np.testing.assert_allclose(result.vs, np.array(load("vtrace")["on_policy_vs"]), **TOLERANCE)
    expected = values[-1]
    for reward, discount in zip(rewards[::-1], discounts[::-1], strict=True):
        expected = reward + discount * expected
    np.testing.assert_allclose(result.vs[0], expected, **TOLERANCE)


def test_impossible_actions_leave_the_values(vtrace):
    _, rewards, discounts, values = random_inputs()
    result = vtrace(np.full((T, B), -np.inf), rewards, discounts, values)
    np.testing.assert_array_equal(result.vs, values[:-1])
    np.testing.assert_array_equal(result.pg_advantages, 0)


@pytest.mark.parametrize("end", range(T))
def test_nothing_after_a_discount_of_zero_matters(vtrace, end):
    log_rhos, rewards, discounts, values = random_inputs()
    discounts[end] = 0
    other_rhos, other_rewards, _, other_values = random_inputs(seed=1)
    other_rhos[: end + 1], other_rewards[: end + 1] = log_rhos[: end + 1], rewards[: end + 1]
    other_values[: end + 1] = values[: end + 1]
    result = vtrace(log_rhos, rewards, discounts, values)
    other = vtrace(other_rhos, other_rewards, discounts, other_values)
    np.testing.assert_array_equal(result.vs[: end + 1], other.vs[: end + 1])
    np.testing.assert_array_equal(result.pg_advantages[: end + 1], other.pg_advantages[: end + 1])


def test_values_equal_to_the_returns_have_no_advantage(vtrace):
    _, rewards, discounts, values = random_inputs()
    for t in reversed(range(T)):
        values[t] = rewards[t] + discounts[t] * values[t + 1]
    result = vtrace(np.zeros((T, B)), rewards, discounts, values)
    np.testing.assert_allclose(result.pg_advantages, 0, atol=1e-12)
    np.testing.assert_allclose(result.vs, values[:-1], rtol=1e-12)


def test_no_gradient_passes_through_targets_and_advantages(vtrace, jax64):
    log_rhos, rewards, discounts, values = random_inputs()
    grads = jax64.grad(lambda x, v: sum(part.sum() for part in vtrace(x, rewards, discounts, v)), (0, 1))(
        log_rhos, values
    )
    for grad in grads:
        np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize("terminated", [True, False])
def test_an_episode_may_end_at_every_offset(vtrace, terminated):
    """Equals the targets of the transitions alone; a truncated episode bootstraps, a terminated one does not."""
    log_rhos, rewards, _, values = random_inputs(batch=1)
    for num_valid in range(1, T + 1):
        valid, discounts = ending(T, num_valid, terminated=terminated)
        result = vtrace(log_rhos, rewards, GAMMA * discounts, values, valid=valid)
        final_value = 0.0 if terminated else values[num_valid, 0]
        vs, advantages = model(
            log_rhos[:num_valid, 0],
            rewards[:num_valid, 0],
            [GAMMA] * num_valid,
            [*values[:num_valid, 0], final_value],
        )
        np.testing.assert_allclose(result.vs[:num_valid, 0], vs, rtol=1e-12)
        np.testing.assert_allclose(result.pg_advantages[:num_valid, 0], advantages, rtol=1e-12)
        np.testing.assert_array_equal(result.pg_advantages[num_valid:], 0)


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("terminated", [True, False])
def test_padding_may_have_any_content(vtrace, terminated, kind):
    log_rhos, rewards, _, values = random_inputs(batch=1)
    for num_valid in range(1, T + 1):
        valid, discounts = ending(T, num_valid, terminated=terminated)
        row_valid = (np.arange(T + 1) <= num_valid)[:, None]
        spoil = padding(valid, kind)
        result = vtrace(log_rhos, rewards, GAMMA * discounts, values, valid=valid)
        spoiled = vtrace(
            spoil(log_rhos),
            spoil(rewards),
            spoil(GAMMA * discounts),
            padding(row_valid, kind)(values),
            valid=valid,
        )
        np.testing.assert_array_equal(result.vs[:num_valid], spoiled.vs[:num_valid])
        np.testing.assert_array_equal(result.pg_advantages, spoiled.pg_advantages)
        np.testing.assert_array_equal(spoiled.vs[num_valid + 1 :], 0)


def test_a_mask_of_ones_changes_nothing(vtrace):
    inputs = random_inputs()
    masked, unmasked = vtrace(*inputs, valid=np.ones((T, B), np.float32)), vtrace(*inputs)
    np.testing.assert_array_equal(masked.vs, unmasked.vs)
    np.testing.assert_array_equal(masked.pg_advantages, unmasked.pg_advantages)


def test_shapes_are_checked(vtrace):
    log_rhos, rewards, discounts, values = random_inputs()
    with raises(
        InvalidArgumentError,
        "`log_rhos`, `rewards`, `discounts` and `values` must have the shapes [T, B], [T, B], [T, B] and [T + 1, B];"
        " got (6, 3), (6, 3), (6, 3) and (6, 3)",
    ):
        vtrace.__wrapped__(log_rhos, rewards, discounts, values[:-1])
