"""Bugs of the published networks, actor and agent that Engram does not have; see docs/coming-from-ftw.md."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.ftw_agent import FRAME
from helpers.ftw_published import BOTH_TASKS, Environment, Networks, agent, environment_spec, equal, play, torso

from engram import envs
from engram.adders import Step
from engram.agents.ftw.losses.pixel_control import pseudo_rewards, q_targets
from engram.compat import ftw, reverb
from engram.compat.ftw.agents.tf.ftw._batches import to_items
from engram.envs import OAR

pytestmark = pytest.mark.jax


def frames(*shape):
    return np.random.default_rng(0).integers(256, size=(*shape, *FRAME), dtype=np.uint8)


def oar(observation, actions=None):
    batch = len(observation)
    actions = np.zeros(batch, np.int32) if actions is None else actions
    return OAR(observation, actions, np.zeros(batch, np.float32))


def test_bug_1_pixels_are_divided_by_255_when_acting():
    def logits(observation, **options):
        actor = ftw.FtwActor(Networks().policy, seed=0, **options)
        actor.select_action(OAR(observation, np.int32(0), np.float32(0)))
        return actor._extras["logits"]

    pixels = frames()
    expected = logits((pixels / 255).astype(np.float32))
    assert np.allclose(logits(pixels), expected, atol=1e-6)
    unscaled = logits(pixels.astype(np.float32))
    assert not np.allclose(unscaled, expected, atol=1e-3)  # floats are never divided
    assert np.allclose(logits(pixels, uint_pixels_to_float=False), unscaled, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_bugs_1_and_2_all_heads_see_the_same_pixels(dtype):
    """Reward prediction divided pixels that were divided already; policy and pixel control did not divide at all."""
    networks = Networks()
    pixels = frames(3, 2)
    given = pixels if dtype == np.uint8 else (pixels / 255).astype(np.float32)
    features = networks.torso((pixels / 255).astype(np.float32).reshape(-1, *FRAME))
    head = networks.prediction.build(FRAME).head.module
    assert np.allclose(networks.prediction(given.swapaxes(0, 1)), head(features.reshape(3, 2, -1)), atol=1e-5)
    assert np.allclose(networks.embed(oar(given[0]))[:, :8], features[:2], atol=1e-5)
    rewards = pseudo_rewards(jnp.asarray(given), num_cells=4)
    assert np.allclose(rewards, pseudo_rewards(jnp.asarray(pixels / 255), num_cells=4), atol=1e-6)


def test_bug_1_the_learner_keeps_pixels_for_its_networks_to_divide():
    observation, other = frames(2, 5), np.zeros((2, 5), np.float32)
    extras = {"logits": other[..., None], "core_state": ()}
    step = ftw_step(OAR(observation, other, other), other, other, other, extras)
    assert to_items(step, scale_pixels=True).observation.observation is observation
    unscaled = to_items(step, scale_pixels=False).observation.observation
    assert unscaled.dtype == np.float32
    assert np.array_equal(unscaled, observation)


def ftw_step(observation, action, reward, discount, extras):
    return Step(observation, action, reward, discount, np.zeros(discount.shape, bool), extras)


def test_bug_3_the_default_agent_can_be_created_and_has_the_published_size():
    spec = environment_spec(frame=(84, 84, 3))
    actions = spec.actions.replace(num_values=4)
    oar_spec = spec.observations._replace(action=actions)
    with ftw.FTW(spec._replace(observations=oar_spec, actions=actions), 20) as agent_:
        weights = agent_.get_weights()
        assert sum(array.size for array in weights["policy_network"]) == 4_595_941
        assert {name.removesuffix("_network") for name in weights if name.endswith("_network")} == {
            "policy",
            "pixel_control",
            "reward_prediction",
        }


def test_bug_5_a_core_of_lstm_acts_and_learns():
    logged = []
    logger = type("Logger", (), {"write": lambda _self, data: logged.append(data)})()
    with agent(core_type="lstm", logger=logger) as agent_:
        play(agent_, Environment(), 13, lambda: bool(agent_.update()))
        assert agent_.get_step() == len(logged) == 2
        assert logged[0]["kld_prior_posterior_loss"] == logged[0]["kld_prior_fixed_loss"] == 0


def test_a_core_with_a_memory_acts_and_stores_one_state_per_item():
    sizes = {"dnc_memory_size": 3, "dnc_word_size": 2, "dnc_num_reads": 1}
    with agent(core_type="rpth_dnc", batch_size=3, **sizes) as agent_:
        play(agent_, Environment(), 9)
        state = agent_._store.sample("queue", 2).data.extras["core_state"]
        assert isinstance(state.core_state, ftw.DNCState)
        assert state.core_state.access_state.linkage.link.shape == (2, 1, 1, 3, 3)
        assert state.step.tolist() == [[0], [4]]
        with agent(core_type="rpth_dnc", **sizes) as again:
            assert equal(again.get_weights(), agent_.get_weights())


@pytest.mark.slow
def test_bugs_6_7_and_25_events_and_decomposed_actions_with_all_tasks():
    """Events crashed in the embedding and in the adders; decomposed actions crashed, or were wrong if B = groups."""
    rewards = ftw.InternalRewards(2, 0.5)
    networks = Networks(num_actions=(3, 2), rewards=rewards)
    spec = environment_spec(groups=(3, 2), events=(2,))
    environment = Environment(
        ((9, 0.0), (6, 1.0)), groups=(2,), events=(2,), rewards=lambda _env, _episode, step: step % 3 == 1
    )
    tables, can_sample, can_sample_auxiliary = ftw.create_reverb_tables(2, 20, **BOTH_TASKS)
    server = reverb.Server(tables, host="localhost")
    client = server.localhost_client()
    adders = ftw.create_adders(client, 4, **BOTH_TASKS, pad_end_of_episode=True, overlap=True)
    actor = ftw.FtwActor(networks.policy, *adders, seed=0)
    play(actor, environment, 15)
    for adder in adders:
        adder.flush()
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], networks.policy.initial_state(1))
    extras = {"core_state": state, "logits": np.zeros(5, np.float32)}
    datasets = ftw.create_datasets(client, spec, 2, 4, extras, **BOTH_TASKS, overlap=True)
    learner = networks.learner(*datasets, can_sample=can_sample, can_sample_auxiliary=can_sample_auxiliary)
    assert learner.step()
    assert learner.get_step() == 1
    for adder in adders:
        adder.close()
    server.stop()


def test_bug_25_groups_are_the_last_axis_also_if_there_are_as_many_as_elements():
    embed = ftw.OAREmbedding(torso(), (3, 2))
    actions = np.array([[2, 0], [1, 1]], np.int32)
    one_hots = np.asarray(embed(oar(frames(2), actions)))[:, 8:-1]
    assert one_hots.tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 1]]


def test_bug_17_observations_have_the_action_and_the_reward_just_before_them():
    environment = envs.ObservationActionReward(envs.Cue(0))  # 12 steps, with a reward for the last one
    with agent(environment_spec=ftw.make_environment_spec(environment), max_queue_size=20) as agent_:
        play(agent_, environment, 48)
        items = agent_._store.sample("queue", 12).data
    real = items.mask[:, :-1].astype(bool)
    assert real.all()
    assert np.array_equal(items.observation.action[:, 1:], items.action[:, :-1])
    assert np.array_equal(items.observation.reward[:, 1:], items.reward[:, :-1])
    assert len(np.unique(items.action[:, :-1])) > 1
    assert items.reward.any()


def test_bug_20_pixel_control_takes_frames_of_any_size_and_stops_at_terminations():
    assert pseudo_rewards(jnp.zeros((3, 2, 72, 96, 3))).shape == (2, 2, 20, 20)
    rewards, q_values = jnp.ones((2, 1, 1, 1)), jnp.full((3, 1, 1, 1, 2), 5.0)
    (returns,) = q_targets(rewards, q_values, jnp.array([[0.0], [1.0]]), 2)
    assert returns.ravel().tolist() == pytest.approx([1, 1 + 0.9 * 5])


@pytest.mark.filterwarnings("error")
def test_bug_26_periods_may_be_tuples_or_hyperparameters_and_are_sorted_at_each_step():
    slow = ftw.IntHyperparameter(1, 9, 2)
    core = ftw.RPTH((7, slow), 4, 3, seed=0)
    assert core.period() == (7, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        core.build(2)
    slow.set(9)  # it is the slowest core now
    other = ftw.RPTH((9, 7), 4, 3, seed=0).build(2)
    state, expected_state = core.initial_state(1), other.initial_state(1)
    rng = np.random.default_rng(0)
    for _ in range(10):  # the cores differ from the eighth step on, if they are in the wrong order
        x, noise = rng.normal(size=(1, 2)).astype(np.float32), rng.normal(size=(1, 3)).astype(np.float32)
        output, state = core(x, state, noise)
        expected, expected_state = other(x, expected_state, noise)
        assert jax.tree.all(jax.tree.map(np.array_equal, (output, state), (expected, expected_state)))
    assert core.module.periods(jnp.array(core.period())).tolist() == [9, 7]


def test_agents_with_another_id_share_no_random_numbers():
    with agent(seed=0) as one, agent(seed=0, agent_id=1) as other, agent(seed=0) as again:
        assert one.get_hypers().get() == again.get_hypers().get() != other.get_hypers().get()
        pairs = zip(one.get_weights()["policy_network"], other.get_weights()["policy_network"], strict=True)
        assert not all(np.array_equal(a, b) for a, b in pairs)
