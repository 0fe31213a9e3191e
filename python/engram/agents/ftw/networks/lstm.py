"""The cell of a long short-term memory (LSTM). Hochreiter & Schmidhuber (1997), Gers et al. (2000)."""

from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from engram.agents.ftw.networks.initializers import truncated_normal

Values = TypeVar("Values")


class LSTMState(NamedTuple, Generic[Values]):
    """State of one cell, `LSTMState[jax.Array]`, or of several, `LSTMState[tuple[jax.Array, ...]]`."""

    hidden: Values  # h: f[..., H] of each cell
    cell: Values  # c: f[..., H] of each cell


class LSTM(eqx.Module):
    """An LSTM cell of H units, without peepholes.

        i, f, g, o = split(x W_i + h W_h + b)
        c' = sigmoid(f) c + sigmoid(i) tanh(g)
        h' = sigmoid(o) tanh(c')

    At first, `b` is 1 for the forget gate f and 0 for the other gates.

    Args:
        in_size: I, size of the inputs' last axis.
        hidden_size: H.
        key: Random key of the weights.
    """

    input_weight: jax.Array  # W_i: f[I, 4H]
    hidden_weight: jax.Array  # W_h: f[H, 4H]
    bias: jax.Array  # b: f[4H]
    hidden_size: int = eqx.field(static=True)

    def __init__(self, in_size: int, hidden_size: int, *, key: jax.Array) -> None:
        i_key, h_key = jax.random.split(key)
        gates = 4 * hidden_size
        self.input_weight = truncated_normal(in_size)(i_key, (in_size, gates), jnp.float32)
        self.hidden_weight = truncated_normal(hidden_size)(h_key, (hidden_size, gates), jnp.float32)
        self.bias = jnp.zeros(gates).at[hidden_size : 2 * hidden_size].set(1)
        self.hidden_size = hidden_size

    def __call__(self, x: jax.Array, state: LSTMState[jax.Array]) -> LSTMState[jax.Array]:
        """Returns the next state for inputs f[..., I]; the output is its `hidden`."""
        gates = x @ self.input_weight + state.hidden @ self.hidden_weight + self.bias
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * state.cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return LSTMState(jax.nn.sigmoid(o) * jnp.tanh(cell), cell)

    def initial_state(self, batch_size: int, dtype: jnp.dtype = jnp.float32) -> LSTMState[jax.Array]:
        """Returns zeros f[B, H]."""
        zeros = jnp.zeros((batch_size, self.hidden_size), dtype)
        return LSTMState(zeros, zeros)
