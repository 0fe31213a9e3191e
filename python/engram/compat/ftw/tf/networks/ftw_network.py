"""The policy network: embedding, core, policy and value."""

from typing import Any, NamedTuple, Self

import jax
import numpy as np

from engram import Nest, _checks
from engram.agents.ftw import networks
from engram.agents.ftw.actions import NumActions
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.networks.num_actions import static_num_actions
from engram.agents.ftw.networks.policy_network import CoreState, state_batch_size
from engram.compat.ftw.tf.networks._lazy_module import LazyModule, Seed, attach, check_is_free, random_key
from engram.compat.ftw.tf.networks.embedding import OAREmbedding
from engram.compat.ftw.tf.networks.recurrence import LSTM, RPTH
from engram.errors import InvalidArgumentError

__all__ = ["FtwNetwork"]


class CoreHypers(NamedTuple):
    """Current values of the hyperparameters that a network reads."""

    internal_rewards: Any
    slow_core_period: Any
    scale_grads_fast_to_slow: Any


class FtwNetwork(LazyModule):
    """The policy network; see `engram.agents.ftw.networks.FtwNetwork`.

    It holds the current parameters: actors and learners with the same object share them.
    """

    def __init__(
        self,
        embed: OAREmbedding,
        core: LSTM | RPTH,
        num_actions: NumActions,
        head_hidden_size: int = 256,
        *,
        rematerialize: bool = False,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made by `build`, or at the first call.

        Args:
            embed: The embedding.
            core: The core.
            num_actions: Number of actions; of decomposed actions, that of each group.
            head_hidden_size: Units of the hidden layers of policy and value.
            rematerialize: Whether gradients compute each step of the core again instead of storing it.
            seed: Seed of the weights, of actions and of latent variables. Parts with a seed of their own use that.

        Raises:
            InvalidArgumentError: An argument has the wrong type, or the embedding has another number of actions.
        """
        super().__init__(seed)
        if not isinstance(embed, OAREmbedding):
            raise InvalidArgumentError(f"`embed` must be an OAREmbedding; got {_checks.short_repr(embed)}")
        if not isinstance(core, LSTM | RPTH):
            raise InvalidArgumentError(f"`core` must be an LSTM or an RPTH; got {_checks.short_repr(core)}")
        self.num_actions = static_num_actions(num_actions)
        if self.num_actions != embed.num_actions:
            raise InvalidArgumentError(
                f"`num_actions` must be that of `embed`; got {self.num_actions}, expected {embed.num_actions}"
            )
        self.embed, self.core = embed, core
        self._head_hidden_size = _checks.integer("`head_hidden_size`", head_hidden_size)
        self._rematerialize = rematerialize
        self._weights_key, self._key = jax.random.split(random_key(self._seed))
        self.observation_shape: tuple[int, ...] = ()

    def build(self, observation_shape: tuple[int, ...]) -> Self:
        """Makes the weights, unless they exist.

        Args:
            observation_shape: (H, W, C) of a frame.

        Returns:
            This object.

        Raises:
            InvalidArgumentError: The torso cannot process such frames, or another network contains torso, embedding or
                core.
        """
        if self.is_built:
            return self
        for part in (self.embed, self.core):
            check_is_free(part, self)
        self.observation_shape = tuple(observation_shape)
        torso_key, core_key, head_key = jax.random.split(self._weights_key, 3)
        embedding = self.embed.build(tuple(observation_shape), torso_key).module
        core = self.core.build(embedding.size, core_key).module
        self._module = networks.FtwNetwork(
            embedding, core, self._head_hidden_size, rematerialize=self._rematerialize, key=head_key
        )
        attach(self.embed, self, lambda: self.module.embedding)
        attach(self.core, self, lambda: self.module.core)
        return self

    def hypers(self) -> CoreHypers:
        """Returns the current values of the hyperparameters that the network reads."""
        if isinstance(self.core, LSTM):
            return CoreHypers(self.embed.weights(), 1, 1.0)
        return CoreHypers(self.embed.weights(), self.core.period(), self.core.gradient_scale())

    def __call__(
        self, oar: Nest, state: CoreState, noise: jax.Array | None = None
    ) -> tuple[tuple[Any, Any, Any], CoreState]:
        """Takes one step.

        Args:
            oar: Observations, previous actions and rewards `[B, ...]`.
            state: The last state.
            noise: `[B, Z]`, of the standard normal distribution. Default: it is drawn.

        Returns:
            (logits `[B, A]`, values `[B]`, the core's output), and the next state.
        """
        module = self.build(np.shape(oar[0])[1:]).module
        noise = module.sample_noise(self._next_key(), (state_batch_size(state),)) if noise is None else noise
        output, state = module(OAR(*oar), state, noise, self.hypers())
        return tuple(output), state

    def unroll(
        self, oar: Nest, state: CoreState, noise: jax.Array | None = None
    ) -> tuple[tuple[Any, Any, Any], CoreState]:
        """Takes T steps.

        Args:
            oar: Observations, previous actions and rewards `[T, B, ...]`.
            state: The state before the first step, `[B, ...]`.
            noise: `[T, B, Z]`, of the standard normal distribution. Default: it is drawn.

        Returns:
            (logits `[T, B, A]`, values `[T, B]`, the core's outputs), and the last state.

        Raises:
            InvalidArgumentError: The shapes are not those that the network was built for.
        """
        module = self.build(np.shape(oar[0])[2:]).module
        noise = module.sample_noise(self._next_key(), np.shape(oar[0])[:2]) if noise is None else noise
        output, state = module.unroll(OAR(*oar), state, noise, self.hypers())
        return tuple(output), state

    def initial_state(self, batch_size: int) -> CoreState:
        """Returns the state at the start of an episode, for `batch_size` elements."""
        return self.core.initial_state(batch_size)

    def select_action(self, observation: Nest, state: CoreState) -> tuple[jax.Array, jax.Array, CoreState]:
        """Samples actions.

        Args:
            observation: Observations, previous actions and rewards `[B, ...]`.
            state: The last state.

        Returns:
            Actions i32 `[B]`, or `[B, G]` if decomposed; logits `[B, A]`; the next state.

        Raises:
            InvalidArgumentError: The shapes are not those that the network was built for.
        """
        module = self.build(np.shape(observation[0])[1:]).module
        selected: tuple[jax.Array, jax.Array, CoreState] = module.select_action(
            OAR(*observation), state, self._next_key(), self.hypers()
        )
        return selected

    def _next_key(self) -> jax.Array:
        key: jax.Array
        self._key, key = jax.random.split(self._key)
        return key
