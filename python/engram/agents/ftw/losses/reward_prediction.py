"""Reward prediction (Jaderberg et al. 2017, UNREAL): predict the sign of the reward that follows a few frames.

Half of a batch are windows whose last reward is zero, the other half windows whose last reward is not.
"""

from engram._extras import importing_extra
from engram.agents.ftw.losses.masks import zero_padding
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array

ZERO, NEGATIVE, POSITIVE = 0, 1, 2
"""Classes of the reward."""


def reward_labels(rewards: Array) -> Array:
    """Returns the class of each reward, i32 `[...]`: `ZERO`, `NEGATIVE` or `POSITIVE`."""
    return jnp.where(rewards > 0, POSITIVE, jnp.where(rewards < 0, NEGATIVE, ZERO)).astype(jnp.int32)


def join_windows(zero_frames: Array, nonzero_frames: Array, nonzero_rewards: Array) -> tuple[Array, Array]:
    """Returns the frames `[K, 2 N, ...]` and labels i32 `[2 N]` of a batch; the windows with zero rewards are first.

    Args:
        zero_frames: `[K, N, ...]`, K frames each, whose last reward is zero.
        nonzero_frames: `[K, N, ...]`, whose last reward is not zero.
        nonzero_rewards: `[N]`, the last rewards of these, weighted by the internal rewards.

    Raises:
        InvalidArgumentError: The shapes do not match.
    """
    if zero_frames.shape != nonzero_frames.shape or nonzero_rewards.shape != zero_frames.shape[1:2]:
        raise InvalidArgumentError(
            "`zero_frames`, `nonzero_frames` and `nonzero_rewards` must have the shapes [K, N, ...], [K, N, ...] and"
            f" [N]; got {zero_frames.shape}, {nonzero_frames.shape} and {nonzero_rewards.shape}"
        )
    labels = reward_labels(nonzero_rewards)
    return jnp.concatenate([zero_frames, nonzero_frames], 1), jnp.concatenate([jnp.full_like(labels, ZERO), labels])


def cross_entropies(logits: Array, labels: Array) -> Array:
    """Returns the cross-entropy of each example in nats, `[N]`.

    Args:
        logits: `[N, 3]`, of the classes.
        labels: int `[N]`, of `reward_labels`.
    """
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]


def reward_prediction_loss(logits: Array, labels: Array, *, valid: Array | None = None) -> Array:
    """Returns the sum of the cross-entropies, `[]`.

    Args:
        logits: `[N, 3]`, of the classes.
        labels: int `[N]`, of `reward_labels`.
        valid: `[N]`, nonzero for the examples that count. Default: all do.
    """
    if valid is None:
        return jnp.sum(cross_entropies(logits, labels))
    logits, labels = zero_padding((logits, labels), valid)
    return jnp.sum(zero_padding(cross_entropies(logits, labels), valid))
