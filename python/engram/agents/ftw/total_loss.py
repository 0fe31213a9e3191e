"""The agent's loss: actor-critic with V-trace, KL of the latent variable, and the auxiliary tasks.

The modules of `engram.agents.ftw.losses` have the equations.

    L = L_pg + baseline_cost L_v + entropy_cost L_H + kld_prior_fixed_cost L_pf + kld_prior_posterior_cost L_pq
        + pixel_control_cost L_pc + reward_prediction_cost L_rp

Each term is a sum over time and batch. The last two count only once their tables have a batch.
"""

from typing import NamedTuple

from engram._extras import importing_extra
from engram.agents.ftw.actions import log_prob
from engram.agents.ftw.agent_networks import AgentNetworks
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.internal_rewards import internal_reward, learner_reward
from engram.agents.ftw.losses import kl, pixel_control, policy_gradient, reward_prediction
from engram.agents.ftw.losses.vtrace import vtrace
from engram.agents.ftw.networks import RPTH, NetworkOutput, PeriodicRNNState
from engram.agents.ftw.trajectory import Batch, Trajectories, Windows, to_trajectories

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array


class Losses(NamedTuple):
    """The terms of the loss, each multiplied by its cost, and their sum; f32 `[]`."""

    loss: Array
    policy_gradient_loss: Array
    critic_loss: Array
    entropy_loss: Array
    kld_prior_fixed_loss: Array
    kld_prior_posterior_loss: Array
    pixel_control_loss: Array
    reward_prediction_loss: Array


def total_loss(networks: AgentNetworks, batch: Batch, key: Array, hypers: Hypers) -> tuple[Array, Losses]:
    """Returns the loss `[]` and its terms.

    Args:
        networks: The networks.
        batch: The batch.
        key: Random key of the latent variables, which are sampled again.
        hypers: The hyperparameters.
    """
    main_key, control_key = jax.random.split(key)
    terms = actor_critic_losses(networks, to_trajectories(batch.items, networks.policy), main_key, hypers)
    control = prediction = zero = jnp.zeros(())
    if networks.pixel_control is not None:
        trajectories = to_trajectories(batch.pixel_control, networks.policy)
        control = hypers.pixel_control_cost * pixel_control_loss(networks, trajectories, control_key, hypers)
    if networks.reward_prediction is not None:
        assert batch.windows is not None  # noqa: S101, the task is on
        prediction = hypers.reward_prediction_cost * reward_prediction_loss(networks, batch.windows, hypers)
    control, prediction = (batch.auxiliary_weight * term for term in (control, prediction))
    loss = sum((*terms, control, prediction), zero)
    return loss, Losses(loss, *terms, control, prediction)


def actor_critic_losses(
    networks: AgentNetworks, trajectories: Trajectories, key: Array, hypers: Hypers
) -> tuple[Array, Array, Array, Array, Array]:
    """Returns the losses of policy gradient, baseline, entropy, KL(prior || fixed prior) and KL(posterior || prior).

    Each is multiplied by its cost, `[]`.
    """
    policy, valid, actions = networks.policy, trajectories.valid, trajectories.actions
    noise = policy.sample_noise(key, (len(valid) + 1, valid.shape[1]))
    output = networks.unroll(trajectories.oar, trajectories.state, noise, hypers)
    logits = output.logits[:-1]
    log_rhos = log_prob(logits, actions, policy.num_actions) - log_prob(
        trajectories.logits, actions, policy.num_actions
    )
    targets = vtrace(
        jax.lax.stop_gradient(log_rhos),
        learner_reward(hypers.internal_rewards, trajectories.rewards, hypers.max_abs_reward),
        hypers.discount * trajectories.discounts,
        jax.lax.stop_gradient(output.value),
        valid=valid,
    )
    prior_fixed, prior_posterior = kl_losses(networks, output, trajectories, hypers)
    return (
        policy_gradient.policy_gradient_loss(logits, actions, targets.pg_advantages, policy.num_actions, valid=valid),
        hypers.baseline_cost * policy_gradient.baseline_loss(targets.vs, output.value[:-1], valid=valid),
        hypers.entropy_cost * policy_gradient.entropy_loss(logits, policy.num_actions, valid=valid),
        hypers.kld_prior_fixed_cost * prior_fixed,
        hypers.kld_prior_posterior_cost * prior_posterior,
    )


def kl_losses(
    networks: AgentNetworks, output: NetworkOutput, trajectories: Trajectories, hypers: Hypers
) -> tuple[Array, Array]:
    """Returns KL(prior || fixed prior), summed over the slow cores, and KL(posterior || prior of the last slow core).

    Both are 0 for a core without a latent variable, "lstm".
    """
    core, state, valid = networks.policy.core, trajectories.state, trajectories.valid
    fixed = jnp.zeros(())
    if not (isinstance(core, RPTH) and isinstance(state, PeriodicRNNState)):
        return fixed, fixed
    *priors, posterior = (kl.Gaussian(*(x[:-1] for x in each)) for each in output.core.distribution_params)
    periods = core.periods(hypers.slow_core_period)
    first_step = state.step if networks.memory else jnp.zeros_like(state.step)
    for prior, period in zip(priors, periods, strict=True):
        # Without memory, each row is the first of a sequence.
        updates = kl.slow_core_updates(first_step, period if networks.memory else 1, len(valid))
        fixed += kl.prior_fixed_loss(prior, updates, fixed_prior_scale=hypers.fixed_prior_scale, valid=valid)
    return fixed, kl.prior_posterior_loss(posterior, priors[-1], valid=valid)


def pixel_control_loss(networks: AgentNetworks, trajectories: Trajectories, key: Array, hypers: Hypers) -> Array:
    """Returns the loss of pixel control without its cost, `[]`."""
    head, valid = networks.pixel_control, trajectories.valid
    assert head is not None  # noqa: S101, the task is on
    noise = networks.policy.sample_noise(key, (len(valid) + 1, valid.shape[1]))
    z = networks.unroll_core(trajectories.oar, trajectories.state, noise, hypers).z
    return pixel_control.pixel_control_loss(
        pixel_control.pseudo_rewards(trajectories.oar.observation, num_cells=head.num_cells),
        trajectories.actions,
        head(z),
        trajectories.discounts,
        head.num_actions,
        valid=valid,
        gamma=hypers.pixel_control_discount,
    )


def reward_prediction_loss(networks: AgentNetworks, windows: Windows, hypers: Hypers) -> Array:
    """Returns the loss of reward prediction without its cost, `[]`."""
    assert networks.reward_prediction is not None  # noqa: S101, the task is on
    rewards = internal_reward(hypers.internal_rewards, windows.nonzero_rewards)
    zero_frames, nonzero_frames = (jnp.swapaxes(frames, 0, 1) for frames in windows[:2])
    frames, labels = reward_prediction.join_windows(zero_frames, nonzero_frames, rewards)
    features = networks.policy.embedding.features(frames.reshape(-1, *frames.shape[2:]))
    logits = networks.reward_prediction(features.reshape(*frames.shape[:2], -1))
    return reward_prediction.reward_prediction_loss(logits, labels)
