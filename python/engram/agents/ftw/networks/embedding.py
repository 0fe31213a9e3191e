"""The input of the core: features of the observation, the previous action and the previous reward (OAR)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.actions import NumActions, group_sizes, one_hot
from engram.agents.ftw.networks.num_actions import static_num_actions
from engram.errors import InvalidArgumentError


class OAR(NamedTuple):
    """What the agent receives in each step: an observation, and the action and the reward of the step before."""

    observation: Any  # u8 or f[..., H, W, C], or what else the torso takes
    action: Any  # i[...], or i[..., G] of G groups. At an episode's start 0, or -1 for an all-zero one-hot
    reward: Any  # f[...], or f[..., E] of E events. At an episode's start 0


class OAREmbedding(eqx.Module):
    """Concatenates `torso(o)`, one-hot previous actions, and `tanh(w . r)` of the previous reward.

    Args:
        torso: Maps observations [N, ...] to features f[N, D]; has the attribute `hidden_size`, D.
        num_actions: A, or a sequence of the sizes of action groups, whose one-hots are concatenated.

    Raises:
        InvalidArgumentError: If the torso is not callable, or `num_actions` is neither.
    """

    torso: Callable[[jax.Array], jax.Array]
    num_actions: int | tuple[int, ...] = eqx.field(static=True)
    size: int = eqx.field(static=True)  # of an embedding: D + A + 1

    def __init__(self, torso: Callable[[jax.Array], jax.Array], num_actions: NumActions) -> None:
        if not callable(torso):
            raise InvalidArgumentError(f"`torso` must be callable; got {_checks.short_repr(torso)}")
        self.torso = torso
        self.num_actions = static_num_actions(num_actions)
        self.size = int(torso.hidden_size) + sum(group_sizes(self.num_actions)) + 1  # type: ignore[attr-defined]

    def __call__(self, oar: OAR, internal_rewards: jax.Array) -> jax.Array:
        """Returns embeddings f[N, size].

        Args:
            oar: Observations, actions and rewards of N steps.
            internal_rewards: w, the weight of each event: f[E], or f[] for scalar rewards. It is not trained.
        """
        features = self.features(oar.observation)
        action = jnp.asarray(oar.action)
        groups = () if isinstance(self.num_actions, int) else (len(self.num_actions),)
        if action.shape != (len(features), *groups):
            raise InvalidArgumentError(
                f"`action` has a wrong shape for `num_actions` {self.num_actions}; got {action.shape}, "
                f"expected {(len(features), *groups)}"
            )
        reward = weighted_reward(oar.reward, internal_rewards, features.shape[:1])
        reward = jnp.tanh(jax.lax.stop_gradient(reward)).astype(features.dtype)
        return jnp.concatenate([features, one_hot(action, self.num_actions, features.dtype), reward[:, None]], axis=-1)

    def features(self, observation: jax.Array) -> jax.Array:
        """Returns the torso's features f[N, D]: the one way from observations to features, for all heads."""
        return self.torso(pixels_to_float(observation))


def pixels_to_float(observation: jax.Array) -> jax.Array:
    """Divides pixels u8 by 255, which gives f32; returns observations of other dtypes unchanged."""
    observation = jnp.asarray(observation)
    return observation.astype(jnp.float32) / 255 if observation.dtype == jnp.uint8 else observation


def weighted_reward(reward: jax.Array, weights: jax.Array, batch_shape: tuple[int, ...]) -> jax.Array:
    """Returns `w . r`, f[*batch_shape], of rewards or events.

    Args:
        reward: Scalar rewards f[*batch_shape], or events f[*batch_shape, E].
        weights: w, f[E]; for scalar rewards f[] or f[1].
        batch_shape: Shape of one number per step.

    Raises:
        InvalidArgumentError: If the shapes do not fit.
    """
    reward, weights = jnp.asarray(reward), jnp.asarray(weights)
    if reward.shape == batch_shape and weights.size == 1:
        return reward * weights.reshape(())
    if reward.shape == (*batch_shape, *weights.shape) and weights.ndim == 1:
        return reward @ weights
    events = weights.shape if weights.size != 1 else ()
    raise InvalidArgumentError(
        f"`reward` has a wrong shape for {weights.size} internal rewards; got {reward.shape}, "
        f"expected {(*batch_shape, *events)}"
    )
