"""Initial values of weights: Sonnet's defaults, which the original agent used."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

Initializer: TypeAlias = Callable[[jax.Array, tuple[int, ...], jnp.dtype], jax.Array]
"""Returns an array from a key, a shape and a dtype, as those of `jax.nn.initializers` do."""


def truncated_normal(fan_in: int) -> Initializer:
    """A normal distribution with standard deviation `1/sqrt(fan_in)`, cut at two standard deviations."""

    def initialize(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        values: jax.Array = jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype) * fan_in**-0.5
        return values

    return initialize
