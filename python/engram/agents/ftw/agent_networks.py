"""All networks of an agent: the policy, and the heads of the auxiliary tasks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from engram.agents.ftw.actions import NumActions
from engram.agents.ftw.config import NetworkConfig, ReplayConfig
from engram.agents.ftw.networks import (
    OAR,
    FtwNetwork,
    FtwTorso,
    NetworkHypers,
    NetworkOutput,
    OAREmbedding,
    PixelControlHead,
    RewardPredictionHead,
    RPTHOutput,
    make_core,
)
from engram.agents.ftw.networks.policy_network import CoreState


class AgentNetworks(eqx.Module):
    """The networks; an auxiliary task that is off has None."""

    policy: FtwNetwork
    pixel_control: PixelControlHead | None
    reward_prediction: RewardPredictionHead | None
    memory: bool = eqx.field(static=True)  # see `NetworkConfig.memory`

    def unroll(self, oar: OAR, state: CoreState, noise: jax.Array, hypers: NetworkHypers) -> NetworkOutput:
        """Takes R steps from a state [B, ...]; see `FtwNetwork.unroll`. Returns outputs [R, B, ...]."""
        core = self.unroll_core(oar, state, noise, hypers)
        return NetworkOutput(*self.policy.head(core.z), core)

    def unroll_core(self, oar: OAR, state: CoreState, noise: jax.Array, hypers: NetworkHypers) -> RPTHOutput:
        """Takes R steps without policy and value: outputs [R, B, ...] of the core."""
        if self.memory:
            return self.policy.unroll_core(oar, state, noise, hypers)[0]
        rows, batch = noise.shape[:2]
        # Every step is the first of a sequence of its own.
        flat = jax.tree.map(lambda x: x.reshape(1, rows * batch, *x.shape[2:]), (forget(oar), noise))
        output, _ = self.policy.unroll_core(flat[0], self.policy.initial_state(rows * batch), flat[1], hypers)
        return jax.tree.map(lambda x: x.reshape(rows, batch, *x.shape[2:]), output)  # type: ignore[no-any-return]


def split_networks(networks: AgentNetworks) -> tuple[Any, AgentNetworks]:
    """Returns the parameters, and the rest, which is hashable; `equinox.combine` joins them.

    Both are `AgentNetworks`; in each, None stands for what the other one has.
    """
    params, static = eqx.partition(networks, eqx.is_inexact_array)
    return params, static


def forget(oar: OAR) -> OAR:
    """Returns the same observations without previous actions and rewards."""
    return oar._replace(action=jnp.zeros_like(oar.action), reward=jnp.zeros_like(oar.reward))


def make_networks(
    network: NetworkConfig,
    replay: ReplayConfig,
    *,
    observation_shape: tuple[int, ...],
    num_actions: NumActions,
    key: jax.Array,
) -> AgentNetworks:
    """Returns networks with random weights.

    Args:
        network: Sizes.
        replay: Which auxiliary tasks there are.
        observation_shape: (H, W, C) of a frame.
        num_actions: See `engram.agents.ftw.actions`.
        key: Random key of the weights. Those of the policy do not depend on the auxiliary tasks.
    """
    torso_key, core_key, head_key, control_key, prediction_key = jax.random.split(key, 5)
    torso = FtwTorso(
        observation_shape,
        network.conv_filters,
        network.residual_filters,
        network.torso_size,
        activate_last=network.activate_last,
        compute_dtype=None if network.compute_dtype == "float32" else jnp.dtype(network.compute_dtype),
        key=torso_key,
    )
    embedding = OAREmbedding(torso, num_actions)
    core = make_core(embedding.size, network.core, key=core_key)
    policy = FtwNetwork(embedding, core, network.head_hidden_size, rematerialize=network.rematerialize, key=head_key)
    pixel_control = reward_prediction = None
    if replay.use_pixel_control:
        pixel_control = PixelControlHead(
            policy.core_output_size,
            num_actions,
            num_cells=network.pixel_control_cells,
            channels=network.pixel_control_channels,
            key=control_key,
        )
    if replay.use_reward_prediction:
        reward_prediction = RewardPredictionHead(
            network.torso_size,
            replay.reward_prediction_sequence_length,
            network.reward_prediction_hidden_size,
            key=prediction_key,
        )
    return AgentNetworks(policy, pixel_control, reward_prediction, network.memory)
