"""The Double DQN: its targets, its learner, and short training runs."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax

GAMMA = 0.9
NUM_ACTIONS = 3


@pytest.fixture
def dqn():
    from engram.agents import dqn  # noqa: PLC0415 - an extra, not needed to collect the tests

    return dqn


def expected_return(reward, discount, bootstrap):
    """Returns the n-step return of one sequence by its definition."""
    total, factor = 0.0, 1.0
    for r, g in zip(reward, discount, strict=True):
        total += factor * r
        factor *= g
    return total + factor * bootstrap


@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_step_returns_match_the_definition(dqn, n):
    rng = np.random.default_rng(n)
    reward = rng.normal(size=(16, n)).astype(np.float32)
    discount = rng.choice([0.0, 0.9, 1.0], size=(16, n)).astype(np.float32)
    bootstrap = rng.normal(size=16).astype(np.float32)
    expected = [expected_return(*row) for row in zip(reward, discount, bootstrap, strict=True)]
    np.testing.assert_allclose(dqn.n_step_return(reward, discount, bootstrap), expected, rtol=1e-5, atol=1e-6)


def test_n_step_returns_end_with_the_episode(dqn):
    reward = np.array([[1.0, 1.0, 0.0]], np.float32)
    terminal = np.array([[GAMMA, 0.0, 0.0]], np.float32)
    truncated = np.array([[GAMMA, GAMMA, 1.0]], np.float32)  # then one step of padding
    bootstrap = np.array([100.0], np.float32)
    np.testing.assert_allclose(dqn.n_step_return(reward, terminal, bootstrap), [1 + GAMMA], rtol=1e-6)
    np.testing.assert_allclose(dqn.n_step_return(reward, truncated, bootstrap), [1 + GAMMA + GAMMA**2 * 100], rtol=1e-6)


def test_n_step_returns_check_shapes(dqn):
    with pytest.raises(
        InvalidArgumentError, match=r"the shapes \[B, n\], \[B, n\] and \[B\]; got \(2, 3\), \(2, 2\) and \(2,\)$"
    ):
        dqn.n_step_return(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2))


def random_batch(step, rng, *, batch_size=32, n=2, num_inputs=4):
    length = n + 1
    return step(
        observation=rng.normal(size=(batch_size, length, num_inputs)).astype(np.float32),
        action=rng.integers(NUM_ACTIONS, size=(batch_size, length)).astype(np.int32),
        reward=rng.normal(size=(batch_size, length)).astype(np.float32),
        discount=np.full((batch_size, length), GAMMA, np.float32),
    )


def random_network(rng, sizes):
    from engram.agents import dqn  # noqa: PLC0415 - an extra

    return tuple(
        dqn.Layer(rng.normal(size=(i, o)).astype(np.float32), rng.normal(size=o).astype(np.float32))
        for i, o in itertools.pairwise(sizes)
    )


def test_the_target_is_that_of_double_dqn(dqn):
    """The online network chooses, the target network evaluates; the networks of this test disagree."""
    rng = np.random.default_rng(0)
    batch = random_batch(dqn.Step, rng)
    online, target = (random_network(rng, (4, 8, NUM_ACTIONS)) for _ in range(2))
    value, td_error = dqn.loss(online, target, batch, np.ones(32, np.float32))

    expected = []
    disagreements = 0
    for b in range(32):
        best = int(np.argmax(dqn.q_values(online, batch.observation[b, -1:])))
        q_last = dqn.q_values(target, batch.observation[b, -1:])
        disagreements += best != int(np.argmax(q_last))
        goal = expected_return(batch.reward[b, :2], batch.discount[b, :2], q_last[best])
        expected.append(goal - dqn.q_values(online, batch.observation[b, :1])[batch.action[b, 0]])
    assert disagreements > 0  # otherwise DQN would pass, too
    np.testing.assert_allclose(td_error, expected, rtol=1e-4, atol=1e-4)
    huber = np.where(np.abs(expected) <= 1, np.square(expected) / 2, np.abs(expected) - 0.5)
    np.testing.assert_allclose(value, huber.mean(), rtol=1e-4)


def test_importance_weights_scale_the_loss(dqn):
    rng = np.random.default_rng(1)
    batch = random_batch(dqn.Step, rng)
    network = random_network(rng, (4, 8, NUM_ACTIONS))
    full, _ = dqn.loss(network, network, batch, np.ones(32, np.float32))
    half, _ = dqn.loss(network, network, batch, np.full(32, 0.5, np.float32))
    np.testing.assert_allclose(half, full / 2, rtol=1e-6)


def new_learner(config):
    import jax  # noqa: PLC0415 - an extra

    from engram.agents import dqn  # noqa: PLC0415 - an extra
    from engram.agents.dqn.learner import init_learner  # noqa: PLC0415 - an extra

    return init_learner(config, jax.random.key(0), dqn.Spaces((4,), np.float32, 1, NUM_ACTIONS))


def test_learning_reduces_the_loss_on_a_fixed_batch(dqn):
    config = dqn.DQNConfig(hidden_sizes=(32,), learning_rate=1e-2, target_period=1_000)
    state = new_learner(config)
    batch, weight = random_batch(dqn.Step, np.random.default_rng(2)), np.ones(32, np.float32)
    losses = []
    for _ in range(100):
        state, metrics = dqn.learner_step(state, batch, weight, config=config)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0] / 4
    assert int(state.step) == 100


def test_the_target_network_is_updated_every_target_period(dqn):
    config = dqn.DQNConfig(hidden_sizes=(8,), target_period=3)
    state = new_learner(config)
    first = np.asarray(state.params[0].weight)
    batch, weight = random_batch(dqn.Step, np.random.default_rng(3)), np.ones(32, np.float32)
    for step in range(1, 4):
        state, _ = dqn.learner_step(state, batch, weight, config=config)
        expected = state.params[0].weight if step == 3 else first
        np.testing.assert_array_equal(state.target_params[0].weight, expected)
    assert not np.array_equal(state.params[0].weight, first)


@pytest.mark.parametrize(("terminated", "discount"), [(True, 0.0), (False, 1.0)])
def test_each_step_of_an_episode_starts_an_item(dqn, terminated, discount):
    import engram  # noqa: PLC0415
    from engram.agents.dqn.tables import REPLAY, make_pattern, make_replay, pad_episode  # noqa: PLC0415 - an extra

    config = dqn.DQNConfig(n_step=3, min_replay_size=1)
    spaces = dqn.Spaces((2,), np.float32, 1, NUM_ACTIONS)
    with (
        engram.Store([make_replay(config, spaces)], seed=0) as store,
        store.pattern_writer([make_pattern(config, spaces)]) as writer,
    ):
        for t in range(5):
            observation = np.full(2, t, np.float32)
            writer.append(dqn.Step(observation, np.int32(1), np.float32(1), np.float32(0.9)))
        pad_episode(writer, np.full(2, 5, np.float32), terminated=terminated, n_step=3)
        writer.flush()
        assert store.info()[REPLAY].size == 5
        batch = store.sample(REPLAY, 200, timeout=5)
    assert isinstance(batch.data, dqn.Step)
    firsts = batch.data.observation[:, 0, 0]
    assert set(firsts.tolist()) == {0, 1, 2, 3, 4}
    last = batch.data.observation[firsts == 4][0]
    np.testing.assert_array_equal(last[:, 0], [4, 5, 5, 5])
    np.testing.assert_array_equal(batch.data.reward[firsts == 4][0], [1, 0, 0, 0])
    np.testing.assert_allclose(batch.data.discount[firsts == 4][0, 1:], discount)


SMOKE = {"max_steps": 400, "min_replay_size": 64, "batch_size": 32, "hidden_sizes": (16,), "n_step": 3}


def test_a_short_run_trains_for_max_steps(dqn):
    reports = []
    result = dqn.train(dqn.DQNConfig(**SMOKE), reports.append, report_period=0.0)
    assert result.stopped == "budget"
    assert result.steps == 400
    assert result.learner_steps > 100
    assert result.table.samples == result.learner_steps * 32
    assert len(result.returns) == len(result.episode_ends) > 5
    assert sum(result.returns) == result.episode_ends[-1]  # in CartPole, each step has a reward of 1
    assert all(np.isfinite(layer.weight).all() for layer in result.params)
    assert reports[-1].step == 400
    assert reports[0].table.blocked is not None


def test_the_same_seed_gives_the_same_run(dqn):
    first, second = (dqn.train(dqn.DQNConfig(**SMOKE, seed=7)) for _ in range(2))
    assert first.returns == second.returns
    for a, b in zip(first.params, second.params, strict=True):
        np.testing.assert_array_equal(a.weight, b.weight)


def test_a_run_stops_when_solved(dqn):
    result = dqn.train(dqn.DQNConfig(**SMOKE, solved_return=1.0, solved_episodes=2))
    assert result.stopped == "solved"
    assert len(result.returns) == 2
    assert result.mean_return >= 1


def test_ctrl_c_returns_the_result_so_far(dqn):
    def interrupt(progress):
        if progress.step == 200:
            raise KeyboardInterrupt

    result = dqn.train(dqn.DQNConfig(**SMOKE), interrupt, report_period=0.0)
    assert result.stopped == "interrupted"
    assert result.steps == 200
    assert result.learner_steps > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved(dqn, seed):
    result = dqn.train(dqn.DQNConfig(seed=seed))
    assert result.stopped == "solved"
    assert result.mean_return >= 195


def test_the_mean_return_of_too_few_episodes_is_nan(dqn):
    result = dqn.train(dataclasses.replace(dqn.DQNConfig(**SMOKE), max_steps=20))
    assert math.isnan(result.mean_return)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n_step": 0}, "`n_step` must be at least 1; got 0"),
        ({"min_replay_size": 9, "replay_size": 8}, "`min_replay_size` must be from 1 to `replay_size`, 8; got 9"),
        ({"processes": 0}, "`processes` must be at least 1; got 0"),
        ({"gamma": 1.5}, "`gamma` must be from 0 to 1; got 1.5"),
    ],
)
def test_bad_configurations_are_rejected(dqn, arguments, text):
    import engram.errors  # noqa: PLC0415

    with pytest.raises(engram.errors.InvalidArgumentError) as caught:
        dqn.DQNConfig(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        ("Pendulum-v1", "environment `Pendulum-v1` has observations `Box("),
        ("ALE/Pang-v5", "cannot open environment `ALE/Pang-v5`: Environment `Pang` doesn't exist in namespace ALE"),
        ("CartPol-v1", "cannot open environment `CartPol-v1`: Environment `CartPol` doesn't exist"),
    ],
)
def test_unsupported_environments_are_rejected(dqn, env_id, text):
    import engram.errors  # noqa: PLC0415

    with pytest.raises(engram.errors.InvalidArgumentError) as caught:
        dqn.Environment(env_id)
    assert text in str(caught.value)
    expectation = "expected a `Box` observation of one axis and `Discrete` actions"
    cannot_open = text.startswith("cannot open")
    assert (expectation in str(caught.value)) is not cannot_open
    assert str(caught.value).endswith("; choose for example CartPole-v1 or ALE/Pong-v5") is cannot_open
    assert ".;" not in str(caught.value)
