"""The policy and the value function."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax

from engram import _checks
from engram.agents.ftw.actions import NumActions, group_sizes
from engram.agents.ftw.networks.layers import Linear
from engram.agents.ftw.networks.num_actions import static_num_actions


class PolicyValue(NamedTuple):
    """Output of `PolicyValueHead`."""

    logits: jax.Array  # f[..., A]; of decomposed actions f[..., A_1 + ... + A_G], one group after the other
    value: jax.Array  # f[...]


class PolicyValueHead(eqx.Module):
    """Two networks with one hidden layer each: logits of the policy, and the value.

    Decomposed actions have one block of logits per group, with a hidden layer in common.

    Args:
        in_size: Size of the input.
        num_actions: A, or a sequence of the sizes of action groups.
        hidden_size: Size of both hidden layers.
        activation: The nonlinearity.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If `num_actions` is neither, or `hidden_size` is not an integer of at least 1.
    """

    policy_hidden: Linear
    policy: Linear
    value_hidden: Linear
    value: Linear
    num_actions: int | tuple[int, ...] = eqx.field(static=True)
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        num_actions: NumActions,
        hidden_size: int = 256,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        *,
        key: jax.Array,
    ) -> None:
        self.num_actions = static_num_actions(num_actions)
        hidden_size = _checks.integer("`hidden_size`", hidden_size)
        keys = jax.random.split(key, 4)
        self.policy_hidden = Linear(in_size, hidden_size, key=keys[0])
        self.policy = Linear(hidden_size, sum(group_sizes(self.num_actions)), key=keys[1])
        self.value_hidden = Linear(in_size, hidden_size, key=keys[2])
        self.value = Linear(hidden_size, 1, key=keys[3])
        self.activation = activation

    def __call__(self, x: jax.Array) -> PolicyValue:
        """Returns logits and values for inputs f[..., I]."""
        logits = self.policy(self.activation(self.policy_hidden(x)))
        value = self.value(self.activation(self.value_hidden(x)))
        return PolicyValue(logits, value[..., 0])
