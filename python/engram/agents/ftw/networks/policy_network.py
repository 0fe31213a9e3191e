"""The agent's network: embedding, recurrent core, policy and value."""

from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.actions import sample
from engram.agents.ftw.networks.batch_select import batch_select
from engram.agents.ftw.networks.embedding import OAR, OAREmbedding
from engram.agents.ftw.networks.heads import PolicyValueHead
from engram.agents.ftw.networks.lstm import LSTM, LSTMState
from engram.agents.ftw.networks.rpth import RPTH, PeriodicRNNState, RPTHOutput
from engram.errors import InvalidArgumentError

CoreState = LSTMState[jax.Array] | PeriodicRNNState


class NetworkHypers(Protocol):
    """The hyperparameters that the network reads. They are arguments of each call: other values need no compilation."""

    @property
    def internal_rewards(self) -> jax.Array:
        """Weight of each event, f[E]; f[] or f[1] for scalar rewards."""

    @property
    def slow_core_period(self) -> jax.Array:
        """Steps between two steps of a slow core, at least 1: i32[]; of S slow cores i32[S], or S of i32[]."""

    @property
    def scale_grads_fast_to_slow(self) -> jax.Array:
        """Factor of gradients that reach slow cores through the fast core's inputs, f[]."""


class NetworkOutput(NamedTuple):
    """Outputs of one step, [B, ...], or of T steps, [T, B, ...]."""

    logits: jax.Array  # f[..., A], or f[..., A_1 + ... + A_G] of decomposed actions
    value: jax.Array  # f[...]
    core: RPTHOutput  # z, and the distributions of the KL losses: priors, then the posterior; none for "lstm"


class FtwNetwork(eqx.Module):
    """Policy and value from z, the output of the core, which receives embeddings of observation, action and reward.

    All arguments of all methods may be traced; batches are of B environments or sequences.

    Args:
        embedding: Embeds observations, previous actions and previous rewards.
        core: `LSTM` or `RPTH`, with inputs of the embedding's size.
        head_hidden_size: Size of the hidden layers of policy and value.
        rematerialize: Whether gradients of `unroll` compute each step of the core again instead of storing what it
            computed, which saves memory where the core has one: about 4 MB per step and element at the default sizes.
        key: Random key of the head's weights.

    Raises:
        InvalidArgumentError: If the core has another type.
    """

    embedding: OAREmbedding
    core: LSTM | RPTH
    head: PolicyValueHead
    rematerialize: bool = eqx.field(static=True)

    def __init__(
        self,
        embedding: OAREmbedding,
        core: LSTM | RPTH,
        head_hidden_size: int = 256,
        *,
        rematerialize: bool = False,
        key: jax.Array,
    ) -> None:
        if not isinstance(core, LSTM | RPTH):
            raise InvalidArgumentError(f"`core` must be an LSTM or an RPTH; got {_checks.short_repr(core)}")
        self.embedding, self.core = embedding, core
        self.head = PolicyValueHead(self.core_output_size, embedding.num_actions, head_hidden_size, key=key)
        self.rematerialize = rematerialize

    @property
    def core_output_size(self) -> int:
        """Size of z, the input of all heads: Z, or H for an LSTM."""
        return self.core.hidden_size if isinstance(self.core, LSTM) else self.core.num_dimensions

    @property
    def num_actions(self) -> int | tuple[int, ...]:
        """A, or the sizes of action groups."""
        return self.embedding.num_actions

    def __call__(
        self, oar: OAR, state: CoreState, noise: jax.Array, hypers: NetworkHypers
    ) -> tuple[NetworkOutput, CoreState]:
        """Takes one step.

        Args:
            oar: Observations, actions and rewards [B, ...].
            state: The last state.
            noise: f[B, Z], see `sample_noise`.
            hypers: Hyperparameters.

        Returns:
            The outputs [B, ...] and the next state.
        """
        embedding = self.embedding(oar, hypers.internal_rewards)
        core, state = self._core_step(embedding, state, noise, hypers)
        return NetworkOutput(*self.head(core.z), core), state

    def unroll(
        self, oar: OAR, state: CoreState, noise: jax.Array, hypers: NetworkHypers
    ) -> tuple[NetworkOutput, CoreState]:
        """Takes T steps; returns what T calls would return.

        Args:
            oar: Observations, actions and rewards [T, B, ...].
            state: The state before the first step, [B, ...].
            noise: f[T, B, Z], see `sample_noise`.
            hypers: Hyperparameters.

        Returns:
            The outputs [T, B, ...] and the state after the last step.
        """
        core, state = self.unroll_core(oar, state, noise, hypers)
        return NetworkOutput(*self.head(core.z), core), state

    def unroll_core(
        self, oar: OAR, state: CoreState, noise: jax.Array, hypers: NetworkHypers
    ) -> tuple[RPTHOutput, CoreState]:
        """Takes T steps without policy and value, for the head of an auxiliary task; see `unroll`.

        Observations are embedded in one batch of T * B; only the core is scanned.
        """
        embedding = self.embedding(jax.tree.map(_join_time_and_batch, oar), hypers.internal_rewards)
        embedding = embedding.reshape(*noise.shape[:2], -1)

        def step(state: CoreState, inputs: tuple[jax.Array, jax.Array]) -> tuple[CoreState, RPTHOutput]:
            output, state = self._core_step(inputs[0], state, inputs[1], hypers)
            return state, output

        state, output = jax.lax.scan(jax.checkpoint(step) if self.rematerialize else step, state, (embedding, noise))
        return output, state

    def features(self, observation: jax.Array) -> jax.Array:
        """Returns the torso's features f[T, B, D] of observations [T, B, ...], for reward prediction."""
        return self.embedding.features(_join_time_and_batch(observation)).reshape(*observation.shape[:2], -1)

    def select_action(
        self, oar: OAR, state: CoreState, key: jax.Array, hypers: NetworkHypers
    ) -> tuple[jax.Array, jax.Array, CoreState]:
        """Samples z and actions.

        Args:
            oar: Observations, actions and rewards [B, ...].
            state: The last state.
            key: Random key.
            hypers: Hyperparameters.

        Returns:
            Actions i32[B], or i32[B, G] of G groups; logits f[B, A]; the next state.
        """
        noise_key, action_key = jax.random.split(key)
        noise = self.sample_noise(noise_key, (state_batch_size(state),))
        output, state = self(oar, state, noise, hypers)
        return sample(action_key, output.logits, self.num_actions), output.logits, state

    def sample_noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Returns noise f32[*shape, Z] of the standard normal distribution; Z is 0 for an LSTM, which needs none."""
        size = 0 if isinstance(self.core, LSTM) else self.core.num_dimensions
        return jax.random.normal(key, (*shape, size), jnp.float32)

    def initial_state(self, batch_size: int, dtype: jnp.dtype = jnp.float32) -> CoreState:
        """Returns the state at the start of an episode, for B elements."""
        return self.core.initial_state(batch_size, dtype)

    def reset(self, state: CoreState, is_first: jax.Array) -> CoreState:
        """Returns the state with the elements at the start of an episode, bool[B], set to the initial state."""
        return batch_select(is_first, self.initial_state(len(is_first)), state)

    def _core_step(
        self,
        x: jax.Array,
        state: Any,  # noqa: ANN401, the core's state
        noise: jax.Array,
        hypers: NetworkHypers,
    ) -> tuple[RPTHOutput, CoreState]:
        if isinstance(self.core, LSTM):
            state = self.core(x, state)
            return RPTHOutput(state.hidden, ()), state
        period, gradient_scale = hypers.slow_core_period, hypers.scale_grads_fast_to_slow
        return self.core(x, state, noise, period=period, gradient_scale=gradient_scale)


def _join_time_and_batch(x: jax.Array) -> jax.Array:
    """Reshapes [T, B, ...] to [T * B, ...]."""
    return jnp.reshape(x, (-1, *jnp.shape(x)[2:]))


def state_batch_size(state: CoreState) -> int:
    """Returns B of a state of a core."""
    return int(jax.tree.leaves(state)[0].shape[0])
