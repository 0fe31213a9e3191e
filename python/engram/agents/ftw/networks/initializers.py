"""Initial values of weights: Sonnet's defaults, which the original agent used."""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp

Initializer: TypeAlias = Callable[[jax.Array, tuple[int, ...], jnp.dtype], jax.Array]
"""Returns an array from a key, a shape and a dtype, as those of `jax.nn.initializers` do."""


def truncated_normal(fan_in: int) -> Initializer:
    """A normal distribution with standard deviation `1/sqrt(fan_in)`, cut at two standard deviations."""

    def initialize(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        size = math.prod(shape)
        blocks = [_block(key, number, dtype) for number in range(-(-size // _BLOCK))]
        values: jax.Array = jnp.concatenate(blocks)[:size].reshape(shape) * fan_in**-0.5
        return values

    return initialize


_BLOCK = 1 << 14
"""Numbers that are drawn at once: JAX compiles the drawing for each size, which takes about a second."""


@partial(jax.jit, static_argnums=2)
def _block(key: jax.Array, number: int, dtype: jnp.dtype) -> jax.Array:
    values: jax.Array = jax.random.truncated_normal(jax.random.fold_in(key, number), -2.0, 2.0, (_BLOCK,), dtype)
    return values
