"""A choice between two states for each element of a batch."""

from typing import TypeVar

import jax
import jax.numpy as jnp

State = TypeVar("State")


def batch_select(condition: jax.Array, on_true: State, on_false: State) -> State:
    """Returns, for each element of the batch, one of two pytrees of equal structure, bit for bit.

    Args:
        condition: bool[B].
        on_true: Pytree of arrays [B, ...].
        on_false: The same.
    """

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(-1, *[1] * (jnp.ndim(a) - 1)), a, b)

    selected: State = jax.tree.map(select, on_true, on_false)
    return selected
