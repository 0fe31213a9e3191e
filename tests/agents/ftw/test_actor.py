import equinox as eqx
import jax
import numpy as np
import pytest
from helpers import ftw_agent
from helpers.ftw_agent import TERMINATION, TRUNCATION, Scripted, where

from engram.agents.ftw import evaluation
from engram.agents.ftw.actor import Actors, ActorState, act, example_row
from engram.agents.ftw.agent_networks import make_networks, split_networks
from engram.agents.ftw.environment import make_environment
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.recorder import timestep_arrays
from engram.agents.ftw.replay import QUEUE, Replay
from engram.agents.ftw.trajectory import to_trajectories

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("quick_compilation")]

N, T = 2, 4


def networks_of(num_actions=3, shape=ftw_agent.FRAME, **options):
    return make_networks(
        ftw_agent.network_config(**options),
        ftw_agent.replay_config(use_pixel_control=False, use_reward_prediction=False),
        observation_shape=shape,
        num_actions=num_actions,
        key=jax.random.key(0),
    )


@pytest.fixture(scope="module")
def networks():
    return networks_of()


def record(networks, environment, num_steps, spec=None, params=None):
    """Returns the items of the queue and the actors' keys before each step."""
    own, static = split_networks(networks)
    row = example_row(spec or ftw_agent.spec(), networks.policy)
    config = ftw_agent.replay_config(use_pixel_control=False, use_reward_prediction=False)
    keys = []
    with Replay(config, row, seed=0) as replay, Actors(environment, static, replay, jax.random.key(1)) as actors:
        for _ in range(num_steps):
            keys.append(actors._state.key)
            actors.step(own if params is None else params, ftw_agent.HYPERS)
        return replay.store.sample(QUEUE, replay.store.info()[QUEUE].size).data, keys


SCRIPTS = [[(9, TERMINATION), (3, TRUNCATION)], [(5, TRUNCATION), (8, TERMINATION)]]


def test_stored_state_observations_and_noise_reproduce_the_stored_logits(networks):
    environment = Scripted(SCRIPTS)
    items, keys = record(networks, environment, 30)
    trajectories = to_trajectories(items, networks.policy)
    # The noise of each environment in each step, and when the first row of each item was acted upon.
    noise = np.stack(
        [networks.policy.sample_noise(jax.random.split(jax.random.split(key)[0])[0], (N,)) for key in keys]
    )
    moments = {
        (env, *position[env]): moment
        for moment, position in enumerate(environment.history[1:])
        for env in range(N)
        if position != environment.history[moment]
    }
    first = [where(frames[0]) for frames in items.observation.observation]
    noise_of = np.zeros((T + 1, len(first), noise.shape[-1]), np.float32)
    for b, (env, episode, step) in enumerate(first):
        moment = moments[env, episode, step]
        rows = noise[moment : moment + T + 1, env]
        noise_of[: len(rows), b] = rows
    unroll = jax.jit(lambda t, noise: networks.unroll(t.oar, t.state, noise, ftw_agent.HYPERS).logits[:-1])
    logits = np.asarray(unroll(trajectories, noise_of))
    valid = np.asarray(trajectories.valid)
    assert valid.sum() > 40
    np.testing.assert_allclose(logits[valid], np.asarray(trajectories.logits)[valid], rtol=1e-4, atol=1e-6)
    assert np.ptp(logits[valid], axis=0).min() > 1e-3  # they differ


def test_observations_contain_the_action_and_the_reward_before_them(networks):
    items, _ = record(networks, Scripted(SCRIPTS), 30)
    for action, reward, oar_action, oar_reward, mask in zip(
        items.action, items.reward, items.observation.action, items.observation.reward, items.mask, strict=True
    ):
        number = int(mask[:T].sum())
        assert (oar_action[1 : number + 1] == action[:number]).all()
        assert (oar_reward[1 : number + 1] == reward[:number]).all()


def act_once(networks, oar, is_first=None, state=None, seed=0):
    params, static = split_networks(networks)
    core = networks.policy.initial_state(N) if state is None else state
    is_first = np.zeros(N, bool) if is_first is None else is_first
    acted, after = act(params, ActorState(core, jax.random.key(seed)), oar, is_first, ftw_agent.HYPERS, static=static)
    return jax.tree.map(np.asarray, (acted, after.core))


def random_oar(seed=0):
    rng = np.random.default_rng(seed)
    frames = rng.integers(256, size=(N, *ftw_agent.FRAME), dtype=np.uint8)
    return OAR(frames, rng.integers(3, size=N).astype(np.int32), rng.normal(size=N).astype(np.float32))


def test_pixels_of_uint8_and_of_float_from_0_to_1_are_the_same(networks):
    oar = random_oar()
    expected, _ = act_once(networks, oar)
    scaled, _ = act_once(networks, oar._replace(observation=oar.observation / np.float32(255)))
    np.testing.assert_allclose(scaled.logits, expected.logits, rtol=1e-5)
    assert (scaled.actions == expected.actions).all()
    unscaled, _ = act_once(networks, oar._replace(observation=oar.observation.astype(np.float32)))
    assert (abs(unscaled.logits - expected.logits) > 1e-3).any()  # floats are never divided


def test_the_core_is_reset_at_the_start_of_each_episode(networks):
    state = jax.tree.map(lambda x: x + 7, networks.policy.initial_state(N))
    oar = random_oar()
    acted, after = act_once(networks, oar, np.array([True, False]), state)
    fresh, fresh_after = act_once(networks, oar)
    assert [part[0].tolist() for part in acted.core_before] == [part[0].tolist() for part in fresh.core_before]
    assert (acted.logits[0] == fresh.logits[0]).all()
    assert (acted.logits[1] != fresh.logits[1]).any()
    assert after.step.tolist() == [1, 8]
    assert fresh_after.step.tolist() == [1, 1]


def test_without_memory_state_action_and_reward_have_no_effect():
    networks = networks_of(memory=False)
    state = jax.tree.map(lambda x: x + 7, networks.policy.initial_state(N))
    expected, _ = act_once(networks, random_oar())
    acted, _ = act_once(networks, random_oar(1)._replace(observation=random_oar().observation), state=state)
    jax.tree.map(np.testing.assert_array_equal, acted, expected)


def test_new_hyperparameters_need_no_compilation(networks):
    params, static = split_networks(networks)
    arguments = (
        params,
        ActorState(networks.policy.initial_state(N), jax.random.key(0)),
        random_oar(),
        np.ones(N, bool),
    )
    act(*arguments, ftw_agent.HYPERS, static=static)
    compiled = act._cache_size()
    act(*arguments, ftw_agent.HYPERS.replace({"slow_core_period": 9, "internal_rewards": [3]}), static=static)
    assert act._cache_size() == compiled


def test_actors_use_the_parameters_that_they_are_given(networks):
    environments = [Scripted(SCRIPTS, seed=5) for _ in range(3)]
    params, static = split_networks(networks)
    other = jax.tree.map(lambda x: x + 0.1, params)
    expected, changed, again = (
        record(networks, e, 9, params=p)[0] for e, p in zip(environments, (None, other, params), strict=True)
    )
    assert (expected.extras["logits"] == again.extras["logits"]).all()
    assert (expected.extras["logits"][:, 0] != changed.extras["logits"][: len(expected.mask), 0]).any()
    assert eqx.tree_equal(static, split_networks(networks)[1])


def test_returns_and_frames_of_episodes(networks):
    environment = Scripted([[(3, TERMINATION)], [(1, TRUNCATION), (2, TERMINATION)]])
    params, static = split_networks(networks)
    actors = Actors(environment, static, None, jax.random.key(1))
    ended = [actors.step(params, ftw_agent.HYPERS) for _ in range(6)]
    assert ended == [[(1, 1.0)], [], [(0, 6.0)], [(1, 3.0)], [], [(1, 1.0)]]
    assert actors.frames == 12 - 3  # three steps began an episode


def test_decomposed_actions_and_events():
    networks = networks_of((3, 2))
    hypers = ftw_agent.HYPERS._replace(internal_rewards=np.array([0.5, -1.0]))
    environment = Scripted(SCRIPTS, groups=(2,), events=(2,))
    params, static = split_networks(networks)
    row = example_row(ftw_agent.spec((3, 2), 2), networks.policy)
    config = ftw_agent.replay_config(use_pixel_control=False, use_reward_prediction=False)
    with Replay(config, row, seed=0) as replay, Actors(environment, static, replay, jax.random.key(1)) as actors:
        for _ in range(12):
            actors.step(params, hypers)
        items = replay.sample().items
    assert items.action.shape == items.observation.action.shape == (4, T + 1, 2)
    assert items.reward.shape == (4, T + 1, 2)
    assert items.extras["logits"].shape == (4, T + 1, 5)
    assert items.action[..., 0].max() == 2
    assert items.action[..., 1].max() == 1


def test_evaluation_takes_the_first_episode_of_each_environment(networks, monkeypatch):
    """Environment i has episodes of i + 1 steps, with the return i in the first."""

    def make(name, seeds):
        assert name == "scripted"
        drawn.extend(seeds)
        rewards = lambda env, episode, step: env * (episode == 0) * (step == 0) - (episode > 0)  # noqa: E731
        return Scripted([[(env + 1, TERMINATION)] for env in range(3)], rewards=rewards), ftw_agent.spec()

    drawn = []
    monkeypatch.setattr(evaluation, "make_environment", make)
    params, static = split_networks(networks)
    arguments = {"num_episodes": 5, "num_envs": 3, "rng": np.random.default_rng(0), "key": jax.random.key(2)}
    returns = evaluation.evaluate(static, params, ftw_agent.HYPERS, "scripted", **arguments)
    assert returns == [0, 1, 2, 0, 1]
    assert len(set(drawn)) == 6


@pytest.mark.parametrize("memory", [True, False])
def test_without_memory_a_cue_affects_only_the_step_that_shows_it(memory):
    networks = networks_of(2, memory=memory, conv_filters=((4, 6, 6),), shape=(42, 42, 3))
    params, static = split_networks(networks)

    def play(cue):
        """Returns the logits of each step of an episode."""
        environment, spec = make_environment("cue", [0, 1])
        config = ftw_agent.replay_config(sequence_length=12, use_pixel_control=False, use_reward_prediction=False)
        with Replay(config, example_row(spec, networks.policy), seed=0) as replay:
            actors = Actors(environment, static, replay, jax.random.key(1))
            # The first frame is rendered again with this cue.
            environment.set_state({**environment.get_state(), "cue": np.full(2, cue)})
            first = actors._timestep.observation._replace(observation=environment._render())
            actors.set_state(
                {**actors.get_state(), "timestep": timestep_arrays(actors._timestep._replace(observation=first))}
            )
            for _ in range(12):
                actors.step(params, ftw_agent.HYPERS)
            items = replay.store.sample(QUEUE, 2).data
            actors.close()
        assert (items.observation.observation[:, 1:12] == items.observation.observation[:1, 1:12]).all()
        return items.extras["logits"][:, :12], items.extras["core_state"]

    (left, left_state), (right, _) = play(0), play(1)
    differs = (left != right).any((0, 2))
    assert differs[0]
    assert differs[1:].any() == memory
    assert not any(part.any() for part in left_state)  # of the initial state


def test_actors_continue_where_others_stopped(networks):
    environment = Scripted([[(3, TERMINATION)], [(1, TRUNCATION), (2, TERMINATION)]])
    environment.get_state, environment.set_state = dict, lambda _: None  # it continues by itself
    params, static = split_networks(networks)
    actors = Actors(environment, static, None, jax.random.key(1))
    for _ in range(2):
        actors.step(params, ftw_agent.HYPERS)
    others = Actors(Scripted(SCRIPTS), static, None, jax.random.key(2))
    others._environment = environment
    others.set_state(actors.get_state())
    jax.tree.map(np.testing.assert_array_equal, others.get_state(), actors.get_state())
    assert others.step(params, ftw_agent.HYPERS) == [(0, 6.0)]
    assert others.frames == 5
