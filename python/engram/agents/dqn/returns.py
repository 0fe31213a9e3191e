"""n-step returns of sequences, as a pure function."""

import jax
from jax import Array


def n_step_return(reward: Array, discount: Array, bootstrap: Array) -> Array:
    """Discounted sum of the rewards of each sequence, then the value of where it led.

    With step discounts `g` this is `r_0 + g_0 (r_1 + g_1 (... + g_{n-1} v))`, the n-step return of Sutton and Barto
    2018, eq. 7.1. The discounts carry gamma and the end of the episode: 0 after a terminal step (nothing beyond it
    counts), 1 on padding behind a truncated one (the bootstrap value moves on unchanged).

    Args:
        reward: f32[B, n], the reward that followed each step.
        discount: f32[B, n], what a value after each step is worth before it.
        bootstrap: f32[B], the value of the state after the last step.

    Returns:
        f32[B].

    Raises:
        ValueError: If the shapes do not fit each other.
    """
    if reward.shape != (*bootstrap.shape, reward.shape[-1]) or bootstrap.ndim != 1 or discount.shape != reward.shape:
        msg = (
            f"got reward {reward.shape}, discount {discount.shape}, bootstrap {bootstrap.shape};"
            " allowed are [B, n], [B, n] and [B]"
        )
        raise ValueError(msg)

    def one_step_back(value: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        reward_t, discount_t = step
        return reward_t + discount_t * value, None

    value, _ = jax.lax.scan(one_step_back, bootstrap, (reward.T, discount.T), reverse=True, unroll=True)
    return value
