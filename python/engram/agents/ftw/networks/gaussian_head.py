"""A diagonal Gaussian distribution whose mean and scale are linear functions of the input."""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.networks.initializers import Initializer
from engram.agents.ftw.networks.layers import Linear


class LocScaleDistributionParameters(NamedTuple):
    """Mean and standard deviation of each dimension of a Gaussian distribution."""

    loc: jax.Array  # f[..., Z]
    scale: jax.Array  # f[..., Z], above 0; 0 in initial states

    def sample(self, noise: jax.Array) -> jax.Array:
        """Returns `loc + scale * noise`, f[..., Z], for noise of the standard normal distribution (reparameterized)."""
        return self.loc + self.scale * noise


@dataclass(frozen=True, slots=True)
class GaussianHeadConfig:
    """Options of `GaussianHead`."""

    init_scale: float = 0.1  # standard deviation where the scale's layer returns 0
    min_scale: float = 1e-6  # is added to the standard deviation
    tanh_mean: bool = False  # bound the mean to (-1, 1)
    fixed_scale: bool = False  # `init_scale` is the standard deviation, and not learned
    w_init: Initializer | None = None  # of both layers; default: Linear's
    b_init: Initializer | None = None  # of both layers; default: zeros

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError if an option has a wrong type or value."""
        _checks.positive("`init_scale`", self.init_scale)
        _checks.finite("`min_scale`", self.min_scale)
        _checks.boolean("`tanh_mean`", self.tanh_mean)
        _checks.boolean("`fixed_scale`", self.fixed_scale)


DEFAULT_CONFIG = GaussianHeadConfig()


class GaussianHead(eqx.Module):
    """Parameters of a Gaussian distribution of Z dimensions for features h.

        loc = h W_m + b_m, or tanh of it
        scale = init_scale * softplus(h W_s + b_s) / softplus(0) + min_scale, or init_scale if it is fixed

    Args:
        in_size: Size of the features.
        num_dimensions: Z.
        config: Options.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If `num_dimensions` is not an integer of at least 1.
    """

    mean: Linear
    scale: Linear | None
    config: GaussianHeadConfig = eqx.field(static=True)
    num_dimensions: int = eqx.field(static=True)

    def __init__(
        self, in_size: int, num_dimensions: int, config: GaussianHeadConfig = DEFAULT_CONFIG, *, key: jax.Array
    ) -> None:
        self.num_dimensions = _checks.integer("`num_dimensions`", num_dimensions)
        self.config = config
        m_key, s_key = jax.random.split(key)
        init = {"w_init": config.w_init, "b_init": config.b_init}
        self.mean = Linear(in_size, num_dimensions, key=m_key, **init)
        self.scale = None if config.fixed_scale else Linear(in_size, num_dimensions, key=s_key, **init)

    def __call__(self, features: jax.Array) -> LocScaleDistributionParameters:
        """Maps f[..., I] to parameters f[..., Z]."""
        config = self.config
        loc = self.mean(features)
        loc = jnp.tanh(loc) if config.tanh_mean else loc
        if self.scale is None:
            return LocScaleDistributionParameters(loc, jnp.full_like(loc, config.init_scale))
        softplus_0 = jax.nn.softplus(jnp.zeros((), loc.dtype))
        scale = config.init_scale * jax.nn.softplus(self.scale(features)) / softplus_0 + config.min_scale
        return LocScaleDistributionParameters(loc, scale)
