"""The Gaussian head: initial scale, bounds, and samples."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.jax

IN_SIZE, DIMENSIONS = 3, 2


@pytest.fixture
def networks():
    from engram.agents.ftw import networks  # noqa: PLC0415 - an extra, not needed to collect the tests

    return networks


@pytest.fixture
def make_head(networks):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    def make(**options):
        config = networks.GaussianHeadConfig(**options)
        return networks.GaussianHead(IN_SIZE, DIMENSIONS, config, key=jax.random.key(0))

    return make


def zeros(_key, shape, dtype):
    return np.zeros(shape, dtype)


def test_a_head_of_zeros_has_the_initial_scale(make_head):
    loc, scale = make_head(w_init=zeros)(np.ones((4, IN_SIZE), np.float32))
    np.testing.assert_array_equal(loc, np.zeros((4, DIMENSIONS)))
    np.testing.assert_allclose(scale, 0.100001, rtol=1e-6)
    _, scale = make_head(w_init=zeros, init_scale=0.3, min_scale=0.01)(np.ones(IN_SIZE, np.float32))
    np.testing.assert_allclose(scale, 0.31, rtol=1e-6)


def test_a_fixed_scale_is_exact_and_has_no_parameters(make_head):
    head = make_head(fixed_scale=True, init_scale=0.3)
    _, scale = head(np.ones((4, IN_SIZE), np.float32))
    np.testing.assert_array_equal(scale, np.full((4, DIMENSIONS), np.float32(0.3)))
    assert head.scale is None


def test_tanh_bounds_the_mean(make_head):
    features = np.random.default_rng(0).normal(0, 2, (100, IN_SIZE)).astype(np.float32)
    loc, _ = make_head(tanh_mean=True)(features)
    free, _ = make_head()(features)
    assert np.abs(free).max() > 1
    np.testing.assert_allclose(loc, np.tanh(free), rtol=1e-5, atol=1e-6)
    assert np.abs(loc).max() < 1


def test_samples_have_the_mean_and_the_scale(networks):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    gaussian = networks.LocScaleDistributionParameters(np.array([1.0, -2.0]), np.array([0.1, 3.0]))
    z = np.asarray(gaussian.sample(jax.random.normal(jax.random.key(0), (100_000, DIMENSIONS))))
    standard_error = gaussian.scale / np.sqrt(len(z))
    assert (np.abs(z.mean(0) - gaussian.loc) < 5 * standard_error).all()
    assert (np.abs(z.std(0) - gaussian.scale) < 5 * standard_error).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"init_scale": 0}, "`init_scale` must be greater than 0; got 0"),
        ({"min_scale": float("nan")}, "`min_scale` must be a number; got nan"),
        ({"tanh_mean": 1}, "`tanh_mean` must be True or False; got 1 (int)"),
        ({"fixed_scale": "no"}, "`fixed_scale` must be True or False; got 'no' (str)"),
    ],
)
def test_wrong_options_are_rejected(networks, options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        networks.GaussianHeadConfig(**options)
