"""Policy gradient, baseline and entropy losses."""

import numpy as np
import pytest
from helpers.ftw_fixtures import GARBAGE, TOLERANCE, arrays, load, padding

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]

T, B, A = 5, 3, 4
VALID = np.arange(T)[:, None] < np.array([5, 2, 3])


@pytest.fixture
def losses():
    from engram.agents.ftw.losses import policy_gradient  # noqa: PLC0415, an extra, not needed to collect the tests

    return policy_gradient


def random_inputs():
    rng = np.random.default_rng(0)
    return rng.normal(size=(T, B, A)), rng.integers(A, size=(T, B)), rng.normal(size=(T, B))


def test_losses_of_the_fixture(losses):
    fixture = arrays(load("losses"))
    logits, actions, advantages = fixture["logits"], fixture["actions"], fixture["advantages"]
    num_actions = logits.shape[-1]
    np.testing.assert_allclose(
        losses.policy_gradient_loss(logits, actions, advantages, num_actions),
        fixture["policy_gradient_loss"],
        **TOLERANCE,
    )
    np.testing.assert_allclose(losses.entropy_loss(logits, num_actions), fixture["entropy_loss"], **TOLERANCE)
    np.testing.assert_allclose(
        losses.baseline_loss(advantages, np.zeros_like(advantages)), fixture["baseline_loss"], **TOLERANCE
    )


def test_entropy_loss_is_between_uniform_and_zero(losses):
    np.testing.assert_allclose(losses.entropy_loss(np.zeros((T, B, A)), A), -T * B * np.log(A), rtol=1e-12)
    one_hot = np.zeros((T, B, A))
    one_hot[..., 1] = 1e3
    np.testing.assert_allclose(losses.entropy_loss(one_hot, A), 0, atol=1e-12)
    assert losses.entropy_loss(random_inputs()[0], A) < 0


def test_policy_gradient_loss_is_linear_in_the_advantages(losses):
    logits, actions, advantages = random_inputs()
    once, other, both = (
        losses.policy_gradient_loss(logits, actions, weights, A)
        for weights in (advantages, advantages**2, 3 * advantages - 2 * advantages**2)
    )
    np.testing.assert_allclose(both, 3 * once - 2 * other, rtol=1e-12)


def test_a_batch_twice_has_twice_the_loss(losses):
    logits, actions, advantages = random_inputs()
    doubled = [np.concatenate([array, array], 1) for array in (logits, actions, advantages)]
    for loss in (
        lambda x, a, w: losses.policy_gradient_loss(x, a, w, A),
        lambda _, __, w: losses.baseline_loss(w, 0 * w),
        lambda x, _, __: losses.entropy_loss(x, A),
    ):
        np.testing.assert_allclose(loss(*doubled), 2 * loss(logits, actions, advantages), rtol=1e-12)


def test_baseline_loss_and_its_gradient(losses, jax64):
    _, _, values = random_inputs()
    vs = values + 1
    assert losses.baseline_loss(values, values) == 0
    grad_vs, grad_values = jax64.grad(losses.baseline_loss, (0, 1))(vs, values)
    np.testing.assert_array_equal(grad_vs, 0)
    np.testing.assert_allclose(grad_values, values - vs, rtol=1e-12)


def test_no_gradient_passes_through_the_advantages(losses, jax64):
    logits, actions, advantages = random_inputs()
    grad = jax64.grad(lambda weights: losses.policy_gradient_loss(logits, actions, weights, A))(advantages)
    np.testing.assert_array_equal(grad, 0)


def test_a_constant_added_to_all_logits_changes_nothing(losses):
    logits, actions, advantages = random_inputs()
    for shift in (7.0, np.arange(T * B).reshape(T, B, 1)):
        np.testing.assert_allclose(
            losses.policy_gradient_loss(logits + shift, actions, advantages, A),
            losses.policy_gradient_loss(logits, actions, advantages, A),
            rtol=1e-12,
        )
        np.testing.assert_allclose(losses.entropy_loss(logits + shift, A), losses.entropy_loss(logits, A), rtol=1e-12)


@pytest.mark.parametrize("kind", GARBAGE)
def test_padding_may_have_any_content(losses, jax64, kind):
    """Neither the losses nor their gradients depend on it."""
    logits, actions, advantages = random_inputs()

    def total(logits, values, actions, advantages):
        return (
            losses.policy_gradient_loss(logits, actions, advantages, A, valid=VALID)
            + losses.baseline_loss(advantages, values, valid=VALID)
            + losses.entropy_loss(logits, A, valid=VALID)
        )

    spoil = padding(VALID, kind)
    value_and_grad = jax64.value_and_grad(total, (0, 1))
    value, grads = value_and_grad(logits, 0 * advantages, actions, advantages)
    spoiled, spoiled_grads = value_and_grad(spoil(logits), spoil(0 * advantages), spoil(actions), spoil(advantages))
    assert value == spoiled
    for grad, spoiled_grad in zip(grads, spoiled_grads, strict=True):
        np.testing.assert_array_equal(grad, spoiled_grad)
        np.testing.assert_array_equal(grad[~VALID], 0)


def test_losses_count_the_valid_transitions_only(losses):
    logits, actions, advantages = random_inputs()
    expected = [0.0, 0.0, 0.0]
    for b, length in enumerate(VALID.sum(0)):
        part = np.s_[:length, b : b + 1]
        expected[0] += losses.policy_gradient_loss(logits[part], actions[part], advantages[part], A)
        expected[1] += losses.baseline_loss(advantages[part], 0 * advantages[part])
        expected[2] += losses.entropy_loss(logits[part], A)
    masked = (
        losses.policy_gradient_loss(logits, actions, advantages, A, valid=VALID),
        losses.baseline_loss(advantages, 0 * advantages, valid=VALID),
        losses.entropy_loss(logits, A, valid=VALID),
    )
    np.testing.assert_allclose(masked, expected, rtol=1e-12)


def test_decomposed_actions(losses):
    logits, actions, advantages = random_inputs()
    groups = (A, A)
    both = losses.policy_gradient_loss(
        np.concatenate([logits, logits], -1), np.stack([actions, actions], -1), advantages, groups
    )
    np.testing.assert_allclose(both, 2 * losses.policy_gradient_loss(logits, actions, advantages, A), rtol=1e-12)
