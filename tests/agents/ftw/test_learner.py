import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ftw_agent

from engram.agents.ftw.actor import example_row
from engram.agents.ftw.agent_networks import make_networks, split_networks
from engram.agents.ftw.learner import Learner, init, learner_step
from engram.agents.ftw.replay import Replay
from engram.agents.ftw.trajectory import Batch, Windows, pack_state, to_trajectories, unpack_state

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("quick_compilation")]

T, B = 4, 4
LENGTHS = (4, 1, 3, 2)  # valid transitions of each item


def networks_of(config, replay=None):
    return make_networks(
        config,
        replay or ftw_agent.replay_config(),
        observation_shape=ftw_agent.FRAME,
        num_actions=3,
        key=jax.random.key(0),
    )


@pytest.fixture(scope="module")
def networks():
    return networks_of(ftw_agent.network_config())


def parameters(networks):
    """Returns the parameters as NumPy arrays, whose comparisons need no compilation."""
    return jax.tree.map(np.asarray, split_networks(networks)[0])


def random_like(array, rng, low=0):
    if array.dtype == np.uint8:
        return rng.integers(256, size=array.shape, dtype=np.uint8)
    if array.dtype.kind in "ib":
        return rng.integers(low, 3, size=array.shape).astype(array.dtype)
    return rng.normal(size=array.shape).astype(array.dtype)


def make_items(networks, seed, lengths=LENGTHS, discounts=(1, 0, 1, 0)):
    """Returns items of random numbers, where item b has `lengths[b]` transitions, the last with `discounts[b]`."""
    rng = np.random.default_rng(seed)
    row = example_row(ftw_agent.spec(), networks.policy)
    items = jax.tree.map(lambda x: np.zeros((B, T + 1, *np.shape(x)), np.asarray(x).dtype), row)
    items = jax.tree.map(lambda x: random_like(x, rng), items)
    mask = (np.arange(T + 1) < np.array(lengths)[:, None]).astype(np.float32)
    discount = np.ones((B, T + 1), np.float32)
    discount[np.arange(B), np.array(lengths) - 1] = discounts
    states = [0.1 * rng.normal(size=(B, 1, *part.shape)) for part in row.extras["core_state"]]
    packed = tuple(part.astype(like.dtype) for part, like in zip(states, row.extras["core_state"], strict=True))
    return items._replace(extras={**items.extras, "core_state": packed}, mask=mask, discount=discount)


def make_batch(networks, seed=0, weight=1.0, **options):
    rng = np.random.default_rng(seed)
    frames = [rng.integers(256, size=(B // 2, 3, *ftw_agent.FRAME), dtype=np.uint8) for _ in range(2)]
    windows = Windows(*frames, np.array([-1, 2], np.float32))
    control = make_items(networks, seed + 1, **options)
    return Batch(make_items(networks, seed, **options), control, windows, np.float32(weight))


def step(networks, batch, hypers=ftw_agent.HYPERS):
    """Returns the next parameters and the metrics."""
    params, static = split_networks(networks)
    state = init(*jax.tree.map(jnp.copy, (params, jax.random.key(3))))
    state, metrics = learner_step(state, batch, hypers, static=static)
    return jax.tree.map(np.asarray, (state.params, metrics))


def with_garbage(items, seed):
    """Returns items with garbage where there is padding, and in the fields of a final observation's row."""
    rng = np.random.default_rng(seed)

    def replace(array, rows):
        garbage = random_like(array, rng, low=-(10**6))
        if array.dtype.kind == "f":
            garbage = np.where(rng.random(array.shape) < 0.5, np.nan, 1e30 * garbage).astype(array.dtype)
        return np.where(rows.reshape(B, T + 1, *[1] * (array.ndim - 2)), array, garbage)

    transition = items.mask.astype(bool)
    transition[:, T] = False
    observed = transition | np.roll(transition, 1, axis=1)
    return items._replace(
        observation=jax.tree.map(lambda x: replace(x, observed), items.observation),
        action=replace(items.action, transition),
        reward=replace(items.reward, transition),
        discount=replace(items.discount, transition),
        start_of_episode=replace(items.start_of_episode, transition),
        extras={**items.extras, "logits": replace(items.extras["logits"], transition)},
    )


def test_padding_of_any_content_has_no_effect(networks):
    batch = make_batch(networks)
    expected = step(networks, batch)
    for seed in range(3):
        other = batch._replace(
            items=with_garbage(batch.items, seed), pixel_control=with_garbage(batch.pixel_control, seed + 10)
        )
        jax.tree.map(np.testing.assert_array_equal, step(networks, other), expected)


def test_padding_has_no_loss(networks):
    batch = make_batch(networks)
    items, control = (each._replace(mask=np.zeros_like(each.mask)) for each in (batch.items, batch.pixel_control))
    losses = step(networks, batch._replace(items=items, pixel_control=control))[1].losses
    assert losses.loss == losses.reward_prediction_loss > 0
    assert all(term == 0 for term in losses[1:-1])


def test_real_rows_have_an_effect(networks):
    """The last valid transition and the final observation, on which a truncated return bootstraps."""
    batch = make_batch(networks, discounts=(1, 1, 1, 1))
    loss = step(networks, batch)[1].losses.loss
    for b, length in enumerate(LENGTHS):
        reward, frames = batch.items.reward.copy(), batch.items.observation.observation.copy()
        reward[b, length - 1] += 1
        frames[b, length] ^= 255
        for other in (
            batch.items._replace(reward=reward),
            batch.items._replace(observation=batch.items.observation._replace(observation=frames)),
        ):
            assert step(networks, batch._replace(items=other))[1].losses.loss != loss


def test_terminations_do_not_bootstrap_on_the_final_observation(networks):
    batch = make_batch(networks, weight=0, discounts=(0, 0, 0, 0))
    frames = batch.items.observation.observation.copy()
    frames[np.arange(B), LENGTHS] ^= 255
    other = batch._replace(items=batch.items._replace(observation=batch.items.observation._replace(observation=frames)))
    expected, changed = step(networks, batch)[1], step(networks, other)[1]
    assert expected.losses == changed.losses


def test_loss_is_the_sum_of_its_terms(networks):
    losses = step(networks, make_batch(networks))[1].losses
    assert all(term != 0 for term in losses)
    assert losses.loss == pytest.approx(sum(losses[1:]), rel=1e-5)


def test_without_costs_the_loss_is_that_of_the_policy_gradient(networks):
    batch = make_batch(networks)
    costs = {name: 0 for name in ftw_agent.HYPERS._fields if name.endswith("_cost")}
    losses = step(networks, batch, ftw_agent.HYPERS.replace(costs))[1].losses
    assert losses.loss == losses.policy_gradient_loss == step(networks, batch)[1].losses.policy_gradient_loss
    assert all(term == 0 for term in losses[2:])


def test_each_cost_scales_its_term(networks):
    batch = make_batch(networks)
    before = step(networks, batch)[1].losses
    terms = {
        "baseline_cost": "critic_loss",
        "entropy_cost": "entropy_loss",
        "kld_prior_fixed_cost": "kld_prior_fixed_loss",
        "kld_prior_posterior_cost": "kld_prior_posterior_loss",
        "pixel_control_cost": "pixel_control_loss",
        "reward_prediction_cost": "reward_prediction_loss",
    }
    for cost, term in terms.items():
        changed = ftw_agent.HYPERS.replace({cost: 2 * getattr(ftw_agent.HYPERS, cost)})
        after = step(networks, batch, changed)[1].losses
        assert getattr(after, term) == pytest.approx(2 * getattr(before, term), rel=1e-5)
        assert after.policy_gradient_loss == before.policy_gradient_loss


def test_new_hyperparameters_need_no_compilation(networks):
    batch = make_batch(networks)
    step(networks, batch)
    compiled = learner_step._cache_size()
    changed = {name: 2 for name in ftw_agent.HYPERS._fields if name != "internal_rewards"}
    for values in (changed, {"internal_rewards": [2]}, {"max_abs_reward": None, "max_gradient_norm": None}):
        step(networks, batch, ftw_agent.HYPERS.replace(values))
    assert learner_step._cache_size() == compiled


def test_auxiliary_batches_of_weight_0_change_nothing_and_need_no_compilation(networks):
    batch = make_batch(networks, weight=0)
    step(networks, batch)
    compiled = learner_step._cache_size()
    expected, metrics = step(networks, batch)
    other = make_batch(networks, seed=9, weight=0)._replace(items=batch.items)
    jax.tree.map(np.testing.assert_array_equal, step(networks, other)[0], expected)
    assert metrics.losses.pixel_control_loss == metrics.losses.reward_prediction_loss == 0
    step(networks, make_batch(networks))
    assert learner_step._cache_size() == compiled


@pytest.mark.parametrize("task", ["pixel_control", "reward_prediction"])
def test_gradients_of_auxiliary_tasks_reach_the_torso(networks, task):
    batch = make_batch(networks)
    no_transition = batch.items._replace(mask=np.zeros_like(batch.items.mask))
    costs = {"pixel_control_cost": 0, "reward_prediction_cost": 0, f"{task}_cost": 1}
    params, _ = step(networks, batch._replace(items=no_transition), ftw_agent.HYPERS.replace(costs))
    before = parameters(networks)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params, before)  # RMSProp moves what has a gradient
    assert all(jax.tree.leaves(moved.policy.embedding.torso))
    assert any(jax.tree.leaves(moved.policy.core)) == (task == "pixel_control")
    assert any(jax.tree.leaves(moved.pixel_control)) == (task == "pixel_control")
    assert any(jax.tree.leaves(moved.reward_prediction)) == (task == "reward_prediction")
    assert not any(jax.tree.leaves(moved.policy.head))


@pytest.mark.parametrize("core_type", ["lstm", pytest.param("rpth_dnc", marks=pytest.mark.slow)])
def test_other_core_types_learn(core_type):
    config = ftw_agent.replay_config(use_pixel_control=False, use_reward_prediction=False)
    networks = networks_of(ftw_agent.network_config(core_type), config)
    batch = make_batch(networks)._replace(pixel_control=None, windows=None)
    params, metrics = step(networks, batch)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics)))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params, parameters(networks))
    assert any(jax.tree.leaves(moved.policy.core))
    kl = (metrics.losses.kld_prior_fixed_loss, metrics.losses.kld_prior_posterior_loss)
    assert (kl == (0, 0)) == (core_type == "lstm")


def test_without_memory_rows_are_independent_of_each_other_and_of_the_state():
    networks = networks_of(ftw_agent.network_config("lstm", memory=False))
    oar = to_trajectories(make_items(networks, 0), networks.policy).oar
    state = jax.tree.map(lambda x: x + 1, networks.policy.initial_state(B))
    noise = networks.policy.sample_noise(jax.random.key(0), (T + 1, B))
    unroll = jax.jit(lambda oar, state: networks.unroll(oar, state, noise, ftw_agent.HYPERS).logits)
    logits = unroll(oar, state)
    others = oar._replace(
        observation=oar.observation.at[0].set(0), action=oar.action.at[1:].set(2), reward=oar.reward + 1
    )
    changed = unroll(others, networks.policy.initial_state(B))
    assert (logits[1:] == changed[1:]).all()
    assert (logits[0] != changed[0]).any()


def test_packed_states_are_unpacked_to_the_same(networks):
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: random_like(x, rng), networks.policy.initial_state(B))
    packed = pack_state(state)
    assert [(part.dtype, part.shape[0]) for part in packed] == [(np.float32, B), (np.int32, B)]
    jax.tree.map(np.testing.assert_array_equal, unpack_state(packed, networks.policy), state)


def test_learner_updates_its_state_and_keeps_the_callers_networks(networks):
    row = example_row(ftw_agent.spec(), networks.policy)
    # Copies: buffers that NumPy arrays refer to are not donated.
    before = jax.tree.map(np.array, parameters(networks))
    with Replay(ftw_agent.replay_config(), row, seed=0) as replay:
        replay.sample = lambda _timeout: make_batch(networks)
        learner = Learner(networks, ftw_agent.HYPERS, jax.random.key(3))
        for _ in range(2):
            metrics = learner.learn(replay)
    jax.tree.map(np.testing.assert_array_equal, parameters(networks), before)
    assert int(learner.state.optimizer.step) == 2
    assert math.isfinite(metrics.losses.loss)
    after = jax.tree.map(np.asarray, learner.params)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (after, before)), strict=True))


def test_steps_descend_the_loss(networks):
    batch = make_batch(networks)
    hypers = ftw_agent.HYPERS.replace({"learning_rate": 1e-5})
    params, metrics = step(networks, batch, hypers)
    after = step(eqx.combine(params, split_networks(networks)[1]), batch, hypers)[1]
    # To first order, RMSProp's first step changes the loss by -10 rate |grad|_1 <= -10 rate |grad|_2.
    assert after.losses.loss - metrics.losses.loss < -0.5 * 10 * 1e-5 * metrics.gradient_norm


def test_gradients_are_clipped_to_the_maximum_norm(networks):
    """The maximum is far below RMSProp's epsilon, so that changes are proportional to the gradient."""
    batch = make_batch(networks)
    hypers = ftw_agent.HYPERS.replace({"max_gradient_norm": 1e-3, "rms_prop_epsilon": 1e4, "learning_rate": 1e5})
    before = parameters(networks)
    after, _ = step(networks, batch, hypers)
    squares = [((a - b) ** 2).sum() for a, b in zip(*map(jax.tree.leaves, (after, before)), strict=True)]
    assert math.sqrt(sum(squares)) == pytest.approx(1e5 * 1e-3 / 1e2, rel=1e-2)
