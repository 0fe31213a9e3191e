"""n-step returns of sequences."""

from engram._extras import importing_extra
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    import jax
    from jax import Array


def n_step_return(reward: Array, discount: Array, bootstrap: Array) -> Array:
    """Returns the discounted sum of the rewards of each sequence, plus the discounted value of its last state.

    With the discounts `g` of the steps this is `r_0 + g_0 (r_1 + g_1 (... + g_{n-1} v))`, the n-step return of Sutton
    and Barto 2018, eq. 7.1. A discount is gamma, 0 from a terminal step on, or 1 in the padding after a truncated
    episode, which leaves the bootstrap value unchanged.

    Args:
        reward: f32[B, n], the reward of each step.
        discount: f32[B, n], the discount of each step.
        bootstrap: f32[B], the value of the state after the last step.

    Returns:
        f32[B].

    Raises:
        InvalidArgumentError: The shapes do not match.
    """
    if reward.shape != (*bootstrap.shape, reward.shape[-1]) or bootstrap.ndim != 1 or discount.shape != reward.shape:
        msg = (
            f"`reward`, `discount` and `bootstrap` must have the shapes [B, n], [B, n] and [B]; got {reward.shape},"
            f" {discount.shape} and {bootstrap.shape}"
        )
        raise InvalidArgumentError(msg)

    def one_step_back(value: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        reward_t, discount_t = step
        return reward_t + discount_t * value, None

    value, _ = jax.lax.scan(one_step_back, bootstrap, (reward.T, discount.T), reverse=True, unroll=True)
    return value
