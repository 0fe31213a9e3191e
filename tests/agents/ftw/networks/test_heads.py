"""Torso, embedding and heads: what each receives, the shapes of decomposed actions, and initial values."""

import re

import numpy as np
import pytest
from helpers import ftw_network_reference

pytestmark = pytest.mark.jax

BATCH = 5
FILTERS_HINT = "must be a sequence of (channels, kernel, stride), each an integer above 0"
RESIDUAL_HINT = "must have 64 channels and stride 1, to keep the shape of its input"


@pytest.fixture
def networks(helpers):
    return helpers.networks


class SumTorso:
    """A torso without parameters: the sum and the maximum of each observation."""

    hidden_size = 2

    def __call__(self, x):
        flat = x.reshape(len(x), -1)
        return np.stack([flat.sum(-1), flat.max(-1)], axis=-1)


def test_the_embedding_joins_features_action_and_reward(networks):
    embedding = networks.OAREmbedding(SumTorso(), 3)
    oar = networks.OAR(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), np.array([2, 0]), np.array([1.0, -2.0]))
    expected = [[3, 2, 0, 0, 1, np.tanh(0.5)], [7, 4, 1, 0, 0, np.tanh(-1.0)]]
    for weights in (np.full(1, 0.5, np.float32), np.float32(0.5)):
        np.testing.assert_allclose(embedding(oar, weights), expected, rtol=1e-6)
    assert embedding.size == 6


def test_the_embedding_of_decomposed_actions_and_events(networks):
    embedding = networks.OAREmbedding(SumTorso(), [2, 3])
    oar = networks.OAR(
        np.zeros((2, 1), np.float32), np.array([[1, 2], [0, 0]]), np.array([[1, 0, 2], [0, 1, 0]], np.float32)
    )
    embedded = embedding(oar, np.array([0.1, 0.2, 0.3], np.float32))
    expected = [[0, 0, 0, 1, 0, 0, 1, np.tanh(0.7)], [0, 0, 1, 0, 1, 0, 0, np.tanh(0.2)]]
    np.testing.assert_allclose(embedded, expected, rtol=1e-5)


def test_action_minus_one_has_no_one(networks):
    embedding = networks.OAREmbedding(SumTorso(), 3)
    embedded = embedding(networks.OAR(np.ones((1, 1), np.float32), np.array([-1]), np.zeros(1)), np.ones(1))
    np.testing.assert_array_equal(embedded[0, 2:5], 0)


def test_internal_rewards_are_not_trained(networks):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    embedding = networks.OAREmbedding(SumTorso(), 3)
    oar = networks.OAR(jax.numpy.ones((1, 1)), np.array([0]), np.ones(1, np.float32))
    gradient = jax.grad(lambda w: embedding(oar, w)[:, -1].sum())(np.ones(1, np.float32))
    np.testing.assert_array_equal(gradient, 0)


def test_all_heads_divide_pixels_by_255_once(helpers):
    network = helpers.small_network()
    frames = np.random.default_rng(0).integers(0, 256, (BATCH, 12, 12, 3), np.uint8)
    features = network.embedding.features(frames)
    as_floats = network.embedding.features(frames.astype(np.float32) / 255)
    np.testing.assert_allclose(as_floats, features, rtol=1e-5, atol=1e-5)
    # The features of reward prediction are those of the policy.
    over_time = network.features(np.stack([frames, frames[::-1]]))
    np.testing.assert_allclose(over_time, [features, features[::-1]], rtol=1e-5, atol=1e-5)
    oar = helpers.networks.OAR(frames, np.zeros(BATCH, np.int32), np.zeros(BATCH, np.float32))
    embedded = network.embedding(oar, np.ones(1, np.float32))
    np.testing.assert_array_equal(embedded[:, : features.shape[1]], features)
    assert helpers.networks.pixels_to_float(np.full(1, 255, np.uint8)) == 1
    assert helpers.networks.pixels_to_float(np.full(1, 255.0, np.float32)) == 255


def test_a_torso_can_compute_in_another_dtype(helpers):
    import jax.numpy as jnp  # noqa: PLC0415 - an extra, not needed to collect the tests

    options = {"conv_filters": ((4, 4, 2),), "residual_filters": ((4, 3, 1),), "hidden_size": 8}
    frames = np.random.default_rng(0).uniform(size=(BATCH, 12, 12, 3)).astype(np.float32)
    torsos = [
        helpers.shapes_of(helpers.networks.FtwTorso, (12, 12, 3), **options, compute_dtype=dtype)
        for dtype in (None, jnp.bfloat16)
    ]
    expected, features = (helpers.with_normal_leaves(torso)(frames) for torso in torsos)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=0.05, atol=0.05)
    assert (np.asarray(features) != expected).any()


def test_policy_and_value(helpers, networks):
    head = helpers.with_normal_leaves(helpers.shapes_of(networks.PolicyValueHead, 3, (2, 4), 6))
    x = np.random.default_rng(0).normal(size=(2, BATCH, 3)).astype(np.float32)
    logits, value = head(x)
    policy = np.maximum(x @ head.policy_hidden.weight + head.policy_hidden.bias, 0)
    np.testing.assert_allclose(logits, policy @ head.policy.weight + head.policy.bias, rtol=1e-5, atol=1e-6)
    hidden = np.maximum(x @ head.value_hidden.weight + head.value_hidden.bias, 0)
    np.testing.assert_allclose(value, (hidden @ head.value.weight + head.value.bias)[..., 0], rtol=1e-5, atol=1e-6)
    assert (logits.shape, value.shape) == ((2, BATCH, 6), (2, BATCH))


@pytest.mark.parametrize("num_actions", [3, (2, 3)])
def test_action_values_of_pixel_control(helpers, networks, num_actions):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    head = helpers.with_normal_leaves(helpers.shapes_of(networks.PixelControlHead, 4, num_actions, channels=4))
    x = np.random.default_rng(0).normal(size=(2, BATCH, 4)).astype(np.float32)
    call = jax.jit(lambda head, x: (head(x), head.value_and_advantage(x)))
    q, (value, _) = call(head, x)
    sizes = np.atleast_1d(num_actions)
    assert q.shape == (2, BATCH, 20, 20, sum(sizes))
    np.testing.assert_allclose(jax.jit(lambda head, x: head(x))(head, x[1]), q[1], rtol=1e-4, atol=1e-4)
    for group in np.split(np.asarray(q), np.cumsum(sizes)[:-1], axis=-1):
        np.testing.assert_allclose(group.mean(-1), value[..., 0], rtol=1e-4, atol=1e-4)
    bias = head.advantage.bias
    shift = np.repeat(np.arange(1, len(sizes) + 1), sizes)  # the same for all actions of a group
    shifted = helpers.eqx.tree_at(lambda h: h.advantage.bias, head, bias + shift)
    np.testing.assert_allclose(call(shifted, x)[0], q, rtol=1e-4, atol=1e-4)
    other = helpers.eqx.tree_at(lambda h: h.advantage.bias, head, bias.at[0].add(1))
    assert np.abs(call(other, x)[0] - q).max() > 0.1


@pytest.mark.parametrize(("kernel", "stride", "size"), [(4, 2, 7), (4, 3, 9), (2, 3, 8), (5, 1, 6), (9, 3, 20)])
def test_a_transposed_convolution_adds_a_kernel_per_input_pixel(kernel, stride, size):
    from engram.agents.ftw.networks.transposed_convolution import (  # noqa: PLC0415 - needs an extra
        transposed_convolution,
    )

    rng = np.random.default_rng(0)
    small = -(-size // stride)
    x, w = rng.normal(size=(2, small, small, 3)), rng.normal(size=(kernel, kernel, 2, 3))
    expected = ftw_network_reference.transposed_convolution(x, w, np.zeros(2), stride, size)
    actual = transposed_convolution(x.astype(np.float32), w.astype(np.float32), stride, (size, size))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_reward_prediction_reads_the_frames_in_their_order(helpers, networks):
    head = helpers.with_normal_leaves(helpers.shapes_of(networks.RewardPredictionHead, 4, hidden_size=6))
    features = np.random.default_rng(0).normal(size=(3, BATCH, 4)).astype(np.float32)
    joined = np.concatenate(list(features), axis=-1)
    hidden = np.maximum(joined @ head.hidden.weight + head.hidden.bias, 0)
    expected = hidden @ head.logits.weight + head.logits.bias
    assert expected.shape == (BATCH, 3)
    np.testing.assert_allclose(head(features), expected, rtol=1e-5, atol=1e-6)


def test_initial_values(networks):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    size, hidden = 100, 50
    lstm = networks.LSTM(size, hidden, key=jax.random.key(0))
    np.testing.assert_array_equal(lstm.bias, np.repeat([0, 1, 0, 0], hidden))  # the gates i, f, g, o
    for weight, fan_in in [(lstm.input_weight, size), (lstm.hidden_weight, hidden)]:
        assert np.abs(weight).max() <= 2 / np.sqrt(fan_in)
        # A normal distribution cut at two standard deviations has 0.88 of its standard deviation.
        np.testing.assert_allclose(np.std(weight), 0.8796 / np.sqrt(fan_in), rtol=0.03)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hidden_size": 2.5}, "`hidden_size` must be an integer; got 2.5 (float)"),
        ({"activate_last": 1}, "`activate_last` must be True or False; got 1 (int)"),
        ({"conv_filters": [(32, 8)]}, f"`conv_filters` {FILTERS_HINT}; got [(32, 8)]"),
        ({"conv_filters": 3}, f"`conv_filters` {FILTERS_HINT}; got 3"),
        ({"residual_filters": [(64, 3, 1.0)]}, f"`residual_filters` {FILTERS_HINT}; got [(64, 3, 1.0)]"),
        ({"residual_filters": [(64, 3, 0)]}, f"`residual_filters` {FILTERS_HINT}; got [(64, 3, 0)]"),
        ({"residual_filters": [(32, 3, 1)]}, f"each of `residual_filters` {RESIDUAL_HINT}; got (32, 3, 1)"),
        ({"residual_filters": [(64, 3, 2)]}, f"each of `residual_filters` {RESIDUAL_HINT}; got (64, 3, 2)"),
        ({"observation_shape": (12, 12)}, "`observation_shape` must be (height, width, channels); got (12, 12)"),
    ],
)
def test_wrong_options_of_the_torso_are_rejected(helpers, networks, options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        networks.FtwTorso(**({"observation_shape": (12, 12, 3)} | options), key=helpers.KEY)


def test_wrong_options_of_the_embedding_are_rejected(networks):
    with pytest.raises(ValueError, match=r"^`torso` must be callable; got 'torso'$"):
        networks.OAREmbedding("torso", 3)
    with pytest.raises(ValueError, match=r"^`num_actions` must be an integer; got 3.0 \(float\)$"):
        networks.OAREmbedding(SumTorso(), 3.0)
    with pytest.raises(ValueError, match=r"^each of `num_actions` must be at least 1; got 0$"):
        networks.OAREmbedding(SumTorso(), (3, 0))


@pytest.mark.parametrize(
    ("action", "reward", "weights", "text"),
    [
        ((2, 2), (2,), (1,), "`action` has a wrong shape for `num_actions` 3; got (2, 2), expected (2,)"),
        ((2,), (2,), (3,), "`reward` has a wrong shape for 3 internal rewards; got (2,), expected (2, 3)"),
        ((2,), (2, 2), (3,), "`reward` has a wrong shape for 3 internal rewards; got (2, 2), expected (2, 3)"),
        ((2,), (2, 3), (), "`reward` has a wrong shape for 1 internal rewards; got (2, 3), expected (2,)"),
    ],
)
def test_wrong_shapes_of_inputs_are_rejected(networks, action, reward, weights, text):
    oar = networks.OAR(np.zeros((2, 1), np.float32), np.zeros(action, np.int32), np.zeros(reward, np.float32))
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        networks.OAREmbedding(SumTorso(), 3)(oar, np.ones(weights, np.float32))


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("PolicyValueHead", {"num_actions": 2.0}, "`num_actions` must be an integer; got 2.0 (float)"),
        ("PolicyValueHead", {"num_actions": 2, "hidden_size": 0}, "`hidden_size` must be at least 1; got 0"),
        ("PixelControlHead", {"num_actions": "3"}, "`num_actions` must be an integer; got '3' (str)"),
        ("PixelControlHead", {"num_actions": 3, "num_cells": 0}, "`num_cells` must be at least 1; got 0"),
        ("RewardPredictionHead", {"sequence_length": 0}, "`sequence_length` must be at least 1; got 0"),
    ],
)
def test_wrong_options_of_the_heads_are_rejected(helpers, networks, name, options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        getattr(networks, name)(4, **options, key=helpers.KEY)
