"""Atari: one stored frame per step, and a convolutional network with the same results in JAX and NumPy."""

import numpy as np
import pytest

import engram

pytestmark = pytest.mark.jax

FRAME = 84 * 84
SMOKE = {"max_steps": 300, "min_replay_size": 64, "batch_size": 8, "learn_period": 16, "hidden_sizes": (16,)}


@pytest.fixture
def dqn():
    from engram.agents import dqn  # noqa: PLC0415 - an extra, not needed to collect the tests

    return dqn


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_convolutions_match_a_loop(dqn, stride):
    from engram.agents.dqn.network import convolve  # noqa: PLC0415 - an extra

    rng = np.random.default_rng(stride)
    height, width, channels, outputs = 3 * stride, 4 * stride, 3, 5
    x = rng.normal(size=(2, height, width, channels))
    # Axes: corner and pixel vertically, corner and pixel horizontally, channels, outputs.
    kernel = rng.normal(size=(2, stride, 2, stride, channels, outputs))
    bias = rng.normal(size=outputs)
    expected = np.empty((2, 2, 3, outputs))
    flat = kernel.reshape(2 * stride, 2 * stride, channels, outputs)
    for b, i, j in np.ndindex(2, 2, 3):
        window = x[b, i * stride : (i + 2) * stride, j * stride : (j + 2) * stride]
        expected[b, i, j] = np.einsum("hwc,hwco->o", window, flat) + bias
    weight = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(2, 2, stride * stride * channels, outputs)
    np.testing.assert_allclose(convolve(x, dqn.Layer(weight, bias)), expected, atol=1e-12)


def test_numpy_and_jax_compute_the_same_values(dqn):
    import jax  # noqa: PLC0415 - an extra

    from engram.agents.dqn.learner import Learner  # noqa: PLC0415 - an extra

    spaces = dqn.Spaces((84, 84), np.uint8, 4, 6)
    params = Learner(dqn.DQNConfig.for_env("ALE/Pong-v5"), spaces, seed=0).params
    assert [layer.weight.shape for layer in params] == [(2, 2, 64, 16), (2, 2, 64, 32), (2592, 256), (256, 6)]
    images = np.random.default_rng(0).integers(256, size=(3, 4, 84, 84), dtype=np.uint8)
    numpy_values, jax_values = dqn.q_values(params, images), jax.jit(dqn.q_values)(params, images)
    assert numpy_values.shape == (3, 6)
    assert numpy_values.dtype == np.float32
    np.testing.assert_allclose(numpy_values, jax_values, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dqn.q_values(params, images[1]), numpy_values[1], rtol=1e-4, atol=1e-4)


def numbered_frame(t):
    """Returns a frame of noise whose first pixel is the number of its step."""
    frame = np.random.default_rng(t).integers(256, size=(84, 84), dtype=np.uint8)
    frame[0, 0] = t
    return frame


def test_stacks_store_one_frame_per_step(dqn):
    from engram.agents.dqn.tables import (  # noqa: PLC0415 - an extra
        REPLAY,
        begin_episode,
        make_pattern,
        make_replay,
        pad_episode,
    )

    config = dqn.DQNConfig(n_step=3, min_replay_size=1)
    spaces = dqn.Spaces((84, 84), np.uint8, 4, 6)
    steps = 200
    with (
        engram.Store([make_replay(config, spaces)], seed=0) as store,
        store.pattern_writer([make_pattern(config, spaces)]) as writer,
    ):
        begin_episode(writer, numbered_frame(0), stack=4)
        for t in range(steps):
            writer.append(dqn.Step(numbered_frame(t), np.int32(t), np.float32(1), np.float32(0.9)))
        pad_episode(writer, numbered_frame(steps), terminated=True, n_step=3)
        info = store.info()[REPLAY]
        batch = store.sample(REPLAY, 2_000, timeout=5).data
    assert info.size == steps
    print(f"{info.bytes / steps:.0f} bytes per step, a frame has {FRAME}")  # noqa: T201, shown with pytest -s
    assert info.bytes / steps < 1.15 * FRAME  # plus 3 frames at each end of the episode, and the items
    # The first four frames end with the first step's frame, the last four end n steps later.
    assert batch.observation.shape == (2_000, 7, 84, 84)
    first = batch.action[:, 0]
    assert set(first.tolist()) == set(range(steps))
    numbers = batch.observation[:, :, 0, 0].astype(int)
    expected = np.clip(first[:, None] + np.arange(-3, 4), 0, steps)
    np.testing.assert_array_equal(numbers, expected)


@pytest.mark.parametrize("processes", [1, 3])
def test_pong_trains_for_max_steps(dqn, processes):
    reports = []
    config = dqn.DQNConfig.for_env("ALE/Pong-v5", processes=processes, **SMOKE)
    result = dqn.train(config, reports.append, report_period=0.0)
    assert result.stopped == "budget"
    assert result.steps >= 300
    assert result.learner_steps > 5
    assert result.table.bytes / result.table.inserts < FRAME
    assert reports[-1].returns == result.returns
    assert all(np.isfinite(layer.weight).all() for layer in result.params)


def test_pong_rewards_are_the_points_of_the_game(dqn):
    with dqn.Environment("ALE/Pong-v5") as env:
        assert env.spaces == dqn.Spaces((84, 84), np.uint8, 4, 6)
        frame = env.reset(seed=0)
        assert (frame.shape, frame.dtype) == ((84, 84), np.uint8)
        total, outcome = 0.0, env.step(0)
        while not (outcome.terminated or outcome.truncated):
            total += outcome.reward
            outcome = env.step(0)
    assert total + outcome.reward == -21
