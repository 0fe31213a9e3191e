"""V-trace: off-policy corrected values and advantages (Espeholt et al. 2018, eq. 1 and section 4.2, lambda = 1)."""

from typing import NamedTuple

from engram._extras import importing_extra
from engram.agents.ftw.losses.masks import row_mask, zero_padding
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array


class VTrace(NamedTuple):
    """Targets of the value function and advantages of the policy; no gradient passes through them.

    At transitions that are not valid, `vs` is the value and the advantage is 0.

    Attributes:
        vs: `[T, B]`, targets of the value function.
        pg_advantages: `[T, B]`, advantages of the actions.
    """

    vs: Array
    pg_advantages: Array


def vtrace(
    log_rhos: Array,
    rewards: Array,
    discounts: Array,
    values: Array,
    *,
    valid: Array | None = None,
    rho_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
    pg_rho_bar: float | None = 1.0,
) -> VTrace:
    """Returns the V-trace targets and advantages.

    With `rho = exp(log_rho)`:

        delta_t = min(rho_bar, rho_t) (r_t + discount_t V_{t+1} - V_t)
        vs_t - V_t = delta_t + discount_t min(c_bar, rho_t) (vs_{t+1} - V_{t+1})
        advantage_t = min(pg_rho_bar, rho_t) (r_t + discount_t vs_{t+1} - V_t)

    Where a transition is not valid, `delta_t` and the factor of `vs_{t+1} - V_{t+1}` are 0, so `vs_t = V_t`: the last
    valid transition bootstraps from the value of the row that follows it.

    Args:
        log_rhos: `[T, B]`, log pi(a_t) - log mu(a_t) of the target and the behaviour policy.
        rewards: `[T, B]`, the reward of each transition.
        discounts: `[T, B]`, the agent's discount times the environment's, which is 0 at a termination.
        values: `[T + 1, B]`, the value of each row.
        valid: `[T, B]`, nonzero for real transitions. Default: all are.
        rho_bar: Maximum of the ratio in `delta`. None: no maximum.
        c_bar: Maximum of the ratio in the trace. None: no maximum.
        pg_rho_bar: Maximum of the ratio in the advantage. None: no maximum.

    Raises:
        InvalidArgumentError: The shapes do not match.
    """
    shape = log_rhos.shape
    rows = (shape[0] + 1, *shape[1:]) if shape else None
    if rewards.shape != shape or discounts.shape != shape or values.shape != rows:
        raise InvalidArgumentError(
            "`log_rhos`, `rewards`, `discounts` and `values` must have the shapes [T, B], [T, B], [T, B] and"
            f" [T + 1, B]; got {shape}, {rewards.shape}, {discounts.shape} and {values.shape}"
        )
    if valid is not None:
        log_rhos, rewards, discounts = zero_padding((log_rhos, rewards, discounts), valid)
        values = zero_padding(values, row_mask(valid))
    is_valid = jnp.ones_like(rewards) if valid is None else valid.astype(rewards.dtype)

    rhos = jnp.exp(log_rhos)
    value, next_value = values[:-1], values[1:]
    delta = is_valid * _at_most(rhos, rho_bar) * (rewards + discounts * next_value - value)
    trace = is_valid * discounts * _at_most(rhos, c_bar)
    _, excess = jax.lax.scan(_one_step_back, jnp.zeros_like(delta[0]), (delta, trace), reverse=True)
    vs = value + excess
    next_vs = jnp.concatenate([vs[1:], values[-1:]])
    advantages = is_valid * _at_most(rhos, pg_rho_bar) * (rewards + discounts * next_vs - value)
    return VTrace(jax.lax.stop_gradient(vs), jax.lax.stop_gradient(advantages))


def _one_step_back(excess: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns `vs_t - V_t`, given `vs_{t+1} - V_{t+1}`."""
    delta, trace = row
    excess = delta + trace * excess
    return excess, excess


def _at_most(rhos: Array, bound: float | None) -> Array:
    return rhos if bound is None else jnp.minimum(rhos, bound)
