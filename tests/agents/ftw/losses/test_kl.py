"""KL divergences of the latent variable."""

import numpy as np
import pytest
from helpers.ftw_fixtures import GARBAGE, TOLERANCE, arrays, load, padding

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]


@pytest.fixture
def kl():
    from engram.agents.ftw.losses import kl  # noqa: PLC0415, an extra, not needed to collect the tests

    return kl


def random_gaussian(kl, seed, shape=(5, 3, 4)):
    rng = np.random.default_rng(seed)
    return kl.Gaussian(rng.normal(size=shape), rng.uniform(0.1, 2, size=shape))


def test_values_of_the_fixture(kl):
    fixture = load("kl")
    inputs, expected = arrays(fixture["inputs"]), arrays(fixture["expected"])
    prior = kl.Gaussian(inputs["prior_loc"], inputs["prior_scale"])
    posterior = kl.Gaussian(inputs["post_loc"], inputs["post_scale"])
    updates = kl.slow_core_updates(inputs["first_step"], inputs["period"], len(prior.loc))
    np.testing.assert_array_equal(updates, expected["mask"])
    fixed = kl.Gaussian(np.zeros_like(prior.loc), np.full_like(prior.loc, 0.1))
    np.testing.assert_allclose(kl.kl_divergence(prior, fixed), expected["kld_prior_fixed"], **TOLERANCE)
    np.testing.assert_allclose(kl.kl_divergence(posterior, prior), expected["kld_prior_posterior"], **TOLERANCE)
    np.testing.assert_allclose(kl.prior_fixed_loss(prior, updates), expected["kld_prior_fixed_loss"], **TOLERANCE)
    np.testing.assert_allclose(
        kl.prior_posterior_loss(posterior, prior), expected["kld_prior_posterior_loss"], **TOLERANCE
    )


def test_divergence_is_a_divergence(kl):
    p, q = random_gaussian(kl, 0), random_gaussian(kl, 1)
    np.testing.assert_allclose(kl.kl_divergence(p, p), 0, atol=1e-12)
    assert (kl.kl_divergence(p, q) > 0).all()
    assert not np.allclose(kl.kl_divergence(p, q), kl.kl_divergence(q, p))


@pytest.mark.parametrize(("loc", "expected"), [(0.0, 0.0), (0.1, 0.5)])
def test_divergence_from_the_fixed_prior_per_dimension(kl, loc, expected):
    dimensions = 7
    prior = kl.Gaussian(np.full((1, 1, dimensions), loc), np.full((1, 1, dimensions), 0.1))
    loss = kl.prior_fixed_loss(prior, np.ones((1, 1), bool))
    np.testing.assert_allclose(loss, expected * dimensions, atol=1e-12)


def test_the_scale_of_the_fixed_prior_is_a_setting(kl):
    prior = kl.Gaussian(np.zeros((1, 1, 2)), np.full((1, 1, 2), 0.5))
    assert abs(float(kl.prior_fixed_loss(prior, np.ones((1, 1), bool), fixed_prior_scale=0.5))) < 1e-12


@pytest.mark.parametrize(("first_step", "expected"), [(0, [0, 5]), (13, [2, 7]), (15, [0, 5]), (4, [1, 6])])
def test_rows_where_the_slow_core_updates(kl, first_step, expected):
    updates = kl.slow_core_updates(np.array([first_step]), 5, 10)
    assert np.flatnonzero(updates[:, 0]).tolist() == expected


def test_the_period_may_change_without_compiling_again(kl, jax64):
    traces = []

    @jax64.jit
    def updates(first_step, period):
        traces.append(period)
        return kl.slow_core_updates(first_step, period, 10)

    for period in (5, 7):
        expected = np.arange(10)[:, None] % period == 0
        np.testing.assert_array_equal(updates(np.array([0]), period), expected)
    assert len(traces) == 1


def test_both_gaussians_receive_gradients(kl, jax64):
    p, q = random_gaussian(kl, 0), random_gaussian(kl, 1)
    for grad in jax64.tree.leaves(jax64.grad(kl.prior_posterior_loss, (0, 1))(p, q)):
        assert (grad != 0).all()
    updates = np.arange(5)[:, None] % 2 == np.zeros(3)
    for grad in jax64.grad(kl.prior_fixed_loss)(p, updates):
        np.testing.assert_array_equal((grad != 0).all(-1), updates)


def test_padding_without_a_scale_computes_no_nan(kl, jax64):
    """Not even on the way to a result that is finite: `jax_debug_nans` would report it."""
    p, q = random_gaussian(kl, 0), random_gaussian(kl, 1)
    valid = np.arange(5)[:, None] < np.array([5, 2, 3])
    p, q = (kl.Gaussian(loc, scale * valid[..., None]) for loc, scale in (p, q))
    with jax64.debug_nans(True):  # noqa: FBT003, JAX's signature
        for grad in jax64.tree.leaves(jax64.grad(kl.prior_posterior_loss, (0, 1))(p, q, valid=valid)):
            assert np.isfinite(grad).all()


@pytest.mark.parametrize("kind", GARBAGE)
def test_padding_may_have_any_content(kl, jax64, kind):
    p, q = random_gaussian(kl, 0), random_gaussian(kl, 1)
    valid = np.arange(5)[:, None] < np.array([5, 2, 3])
    updates = np.ones((5, 3), bool)

    def total(p, q):
        return kl.prior_posterior_loss(p, q, valid=valid) + kl.prior_fixed_loss(q, updates, valid=valid)

    spoil = padding(valid, kind)
    value, grads = jax64.value_and_grad(total, (0, 1))(p, q)
    spoiled, spoiled_grads = jax64.value_and_grad(total, (0, 1))(*jax64.tree.map(spoil, (p, q)))
    assert value == spoiled
    jax64.tree.map(np.testing.assert_array_equal, grads, spoiled_grads)
    expected = sum(
        float(np.sum(kl.kl_divergence(a, b)[valid]))
        for a, b in ((p, q), (q, kl.Gaussian(np.zeros(1), np.full(1, 0.1))))
    )
    np.testing.assert_allclose(value, expected, rtol=1e-12)
