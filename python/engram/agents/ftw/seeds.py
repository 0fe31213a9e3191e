"""Seeds of NumPy's random generators."""

import sys
from typing import Any, TypeAlias

import numpy as np

from engram.errors import InvalidArgumentError

Seed: TypeAlias = Any
"""See `seed_sequence`."""


def seed_sequence(seed: Seed) -> np.random.SeedSequence:
    """Returns the seed sequence of a seed.

    Args:
        seed: A non-negative int or a sequence of these, a `SeedSequence`, a JAX key, or None: a seed of the operating
            system.

    Raises:
        InvalidArgumentError: Another value.
    """
    if isinstance(seed, np.random.SeedSequence):
        return seed
    jax = sys.modules.get("jax")  # A key exists only if JAX has been imported.
    if jax is not None and isinstance(seed, jax.Array) and jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = np.asarray(jax.random.key_data(seed)).ravel().tolist()
    try:
        return np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "`seed`: not a seed; got"
            f" {seed!r}, expected a non-negative int, a sequence of these, a SeedSequence, a JAX key or None"
        ) from None


def generator(seed: Seed) -> np.random.Generator:
    """Returns a generator.

    Args:
        seed: See `seed_sequence`. A `Generator` is returned as it is.

    Raises:
        InvalidArgumentError: The seed is none of these.
    """
    return seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed_sequence(seed))
