"""The latent variable's losses: KL of the fast core's posterior to the slow core's prior, and of that to a fixed prior.

Gaussians are diagonal; `scale` is a standard deviation. (Jaderberg et al. 2019, supplement: the variational objective.)
"""

from typing import NamedTuple

from engram._extras import importing_extra
from engram.agents.ftw.losses.masks import masked_sum, zero_padding

with importing_extra("agents", "engram.agents"):
    import jax.numpy as jnp
    from jax import Array


class Gaussian(NamedTuple):
    """Diagonal Gaussians.

    Attributes:
        loc: `[..., Z]`, the means.
        scale: `[..., Z]`, the standard deviations.
    """

    loc: Array
    scale: Array


def kl_divergence(p: Gaussian, q: Gaussian) -> Array:
    """Returns KL(p || q), `[...]`: the sum over Z of `log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2`."""
    ratio = p.scale / q.scale
    distance = (p.loc - q.loc) / q.scale
    return jnp.sum((ratio**2 + distance**2 - 1) / 2 - jnp.log(ratio), -1)


def slow_core_updates(first_step: Array, period: Array | int, num_steps: int) -> Array:
    """Returns where the slow core updates, bool `[T, B]`: where `first_step + t` is a multiple of the period.

    Args:
        first_step: `[B]`, the step counter of the core state before row 0.
        period: `[]`, the slow core's period; may be traced.
        num_steps: T.
    """
    step = first_step[None].astype(jnp.int32) + jnp.arange(num_steps, dtype=jnp.int32)[:, None]
    return step % jnp.asarray(period).astype(jnp.int32) == 0


def prior_fixed_loss(
    prior: Gaussian, updates: Array, *, fixed_prior_scale: Array | float = 0.1, valid: Array | None = None
) -> Array:
    """Returns the sum of KL(prior || N(0, fixed_prior_scale^2 I)) over the rows where the slow core updates, `[]`.

    Args:
        prior: `[T, B, Z]`, of the slow core.
        updates: bool `[T, B]`, of `slow_core_updates`.
        fixed_prior_scale: Standard deviation of the fixed prior.
        valid: `[T, B]`, nonzero for the rows that count. Default: all do.
    """
    counted = updates if valid is None else updates & valid.astype(bool)
    fixed = Gaussian(jnp.zeros((), prior.loc.dtype), jnp.asarray(fixed_prior_scale, prior.loc.dtype))
    return masked_sum(kl_divergence(_defined(prior, counted), fixed), counted)


def prior_posterior_loss(posterior: Gaussian, prior: Gaussian, *, valid: Array | None = None) -> Array:
    """Returns the sum of KL(posterior || prior), `[]`; both receive gradients.

    Args:
        posterior: `[T, B, Z]`, of the fast core.
        prior: `[T, B, Z]`, of the slow core.
        valid: `[T, B]`, nonzero for the rows that count. Default: all do.
    """
    if valid is not None:
        posterior, prior = _defined(posterior, valid), _defined(prior, valid)
    return masked_sum(kl_divergence(posterior, prior), valid)


def _defined(gaussian: Gaussian, mask: Array) -> Gaussian:
    """Returns the Gaussians with N(0, 1) where the mask is 0."""
    loc, scale = zero_padding((gaussian.loc, gaussian.scale), mask)
    return Gaussian(loc, jnp.where(mask.astype(bool)[..., None], scale, jnp.ones((), scale.dtype)))
