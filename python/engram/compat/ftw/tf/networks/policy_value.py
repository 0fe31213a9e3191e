"""Policy and value."""

from collections.abc import Callable

import jax

from engram import _checks
from engram.agents.ftw import networks
from engram.agents.ftw.actions import NumActions
from engram.agents.ftw.networks.heads import PolicyValue
from engram.agents.ftw.networks.num_actions import static_num_actions
from engram.compat.ftw.tf.networks._lazy_module import Seed, SizedModule

__all__ = ["PolicyValueHead"]


class PolicyValueHead(SizedModule):
    """Logits and value, with a hidden layer each; see `engram.agents.ftw.networks.PolicyValueHead`."""

    def __init__(
        self,
        num_actions: NumActions,
        hidden_size: int = 256,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        Args:
            num_actions: Number of actions; of decomposed actions, that of each group.
            hidden_size: Units of the hidden layers.
            activation: The nonlinearity, of JAX arrays.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        super().__init__(seed)
        num_actions = static_num_actions(num_actions)
        _checks.integer("`hidden_size`", hidden_size)
        self._make = lambda in_size, key: networks.PolicyValueHead(
            in_size, num_actions, hidden_size, activation, key=key
        )

    def __call__(self, x: jax.Array) -> PolicyValue:
        """Maps `[..., I]` to logits `[..., A]` and values `[...]`."""
        output: PolicyValue = self.build(x.shape[-1]).module(x)
        return output
