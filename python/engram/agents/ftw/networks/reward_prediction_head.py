"""The head of the auxiliary task reward prediction: the sign of the reward that follows a few frames.

Jaderberg et al., "Reinforcement learning with unsupervised auxiliary tasks" (2017), section 3.2.
"""

from collections.abc import Callable

import equinox as eqx
import jax

from engram import _checks
from engram.agents.ftw.networks.layers import Linear

NUM_CLASSES = 3
"""Reward of zero (0), negative (1), positive (2)."""


class RewardPredictionHead(eqx.Module):
    """A hidden layer on the concatenated features of L frames, and the logits of the classes of rewards.

    Args:
        feature_size: D, size of the features of one frame.
        sequence_length: L.
        hidden_size: Size of the hidden layer.
        activation: The nonlinearity.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If a size is not an integer of at least 1.
    """

    hidden: Linear
    logits: Linear
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __init__(
        self,
        feature_size: int,
        sequence_length: int = 3,
        hidden_size: int = 128,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        *,
        key: jax.Array,
    ) -> None:
        hidden_key, logits_key = jax.random.split(key)
        hidden_size = _checks.integer("`hidden_size`", hidden_size)
        in_size = feature_size * _checks.integer("`sequence_length`", sequence_length)
        self.hidden = Linear(in_size, hidden_size, key=hidden_key)
        self.logits = Linear(hidden_size, NUM_CLASSES, key=logits_key)
        self.activation = activation

    def __call__(self, features: jax.Array) -> jax.Array:
        """Returns logits f[B, 3] for features f[L, B, D] of frames, the oldest first."""
        features = features.swapaxes(0, 1).reshape(features.shape[1], -1)
        return self.logits(self.activation(self.hidden(features)))
