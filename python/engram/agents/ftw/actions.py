"""Distributions over actions that are flat or decomposed.

A flat action is one integer, 0 ... A - 1. A decomposed action has G parts, the groups, each with a categorical
distribution of its own; the parts are independent given the logits. The logits of all groups are concatenated, so both
kinds have logits [..., L], where L is the sum of the group sizes.

`num_actions` is an int for flat actions `[...]`, and a sequence of G ints for decomposed actions `[..., G]`.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from engram import _checks
from engram._extras import importing_extra
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array

NumActions: TypeAlias = int | Sequence[int]


def group_sizes(num_actions: NumActions) -> tuple[int, ...]:
    """Returns the number of actions of each group; a flat action has one group.

    Raises:
        InvalidArgumentError: `num_actions` is neither a positive int nor a sequence of these.
    """
    if isinstance(num_actions, Sequence) and not isinstance(num_actions, str):
        if not num_actions:
            raise InvalidArgumentError("`num_actions`: no groups; got an empty sequence, expected at least one int")
        return tuple(_checks.integer("each of `num_actions`", size) for size in num_actions)
    return (_checks.integer("`num_actions`", num_actions),)


def split_logits(logits: Array, num_actions: NumActions) -> list[Array]:
    """Returns the logits of each group, `[..., A_g]`; of other arrays `[..., L]`, the same parts.

    Raises:
        InvalidArgumentError: The last axis does not have one element per action.
    """
    sizes = group_sizes(num_actions)
    if logits.shape[-1] != sum(sizes):
        raise InvalidArgumentError(
            f"`logits`: the last axis must have {sum(sizes)} elements, one per action of each group; got the shape"
            f" {logits.shape}"
        )
    ends = [sum(sizes[: group + 1]) for group in range(len(sizes))]
    return [logits[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]


def split_actions(actions: Array, num_actions: NumActions) -> list[Array]:
    """Returns the part of each group, int `[...]`.

    Raises:
        InvalidArgumentError: Decomposed actions do not have one part per group.
    """
    if not isinstance(num_actions, Sequence):
        return [actions]
    groups = len(group_sizes(num_actions))
    if actions.ndim == 0 or actions.shape[-1] != groups:
        raise InvalidArgumentError(
            f"`actions`: the last axis must have {groups} elements, one per group; got the shape {actions.shape}"
        )
    return [actions[..., group] for group in range(groups)]


def log_prob(logits: Array, actions: Array, num_actions: NumActions) -> Array:
    """Returns log pi(a), `[...]`: the sum over the groups of log pi_g(a_g).

    Args:
        logits: `[..., L]`.
        actions: int `[...]`, or `[..., G]` if decomposed.
        num_actions: See the module.
    """
    parts = zip(split_logits(logits, num_actions), split_actions(actions, num_actions), strict=True)
    return _total([_select(jax.nn.log_softmax(group), action) for group, action in parts])


def entropy(logits: Array, num_actions: NumActions) -> Array:
    """Returns the entropy in nats, `[...]`: the sum of the entropies of the groups.

    An action with probability 0, a logit of minus infinity, adds 0.

    Args:
        logits: `[..., L]`.
        num_actions: See the module.
    """
    return _total([_entropy(group) for group in split_logits(logits, num_actions)])


def sample(key: Array, logits: Array, num_actions: NumActions) -> Array:
    """Draws actions, i32 `[...]`, or `[..., G]` if decomposed.

    Args:
        key: A JAX key.
        logits: `[..., L]`.
        num_actions: See the module.
    """
    groups = split_logits(logits, num_actions)
    if not isinstance(num_actions, Sequence):
        return jax.random.categorical(key, groups[0]).astype(jnp.int32)
    keys = jax.random.split(key, len(groups))
    parts = [jax.random.categorical(k, group) for k, group in zip(keys, groups, strict=True)]
    return jnp.stack(parts, -1).astype(jnp.int32)


def one_hot(actions: Array, num_actions: NumActions, dtype: Any = float) -> Array:  # noqa: ANN401, a dtype
    """Returns the concatenated one-hot vectors of the groups, `[..., L]`.

    Args:
        actions: int `[...]`, or `[..., G]` if decomposed.
        num_actions: See the module.
        dtype: Of the result. Default: JAX's default floating-point type.
    """
    parts = zip(split_actions(actions, num_actions), group_sizes(num_actions), strict=True)
    return jnp.concatenate([jax.nn.one_hot(action, size, dtype=dtype) for action, size in parts], -1)


def select(values: Array, actions: Array, num_actions: NumActions) -> list[Array]:
    """Returns the values of the taken actions, one array `[...]` per group.

    Args:
        values: `[..., L]`, a value per action, such as Q.
        actions: int `[...]`, or `[..., G]` if decomposed.
        num_actions: See the module.
    """
    parts = zip(split_logits(values, num_actions), split_actions(actions, num_actions), strict=True)
    return [_select(group, action) for group, action in parts]


def _select(values: Array, action: Array) -> Array:
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def _entropy(logits: Array) -> Array:
    log_pi = jax.nn.log_softmax(logits)
    possible = log_pi != -jnp.inf  # also of NaN, which must stay visible
    return -jnp.sum(jnp.where(possible, jnp.exp(log_pi) * jnp.where(possible, log_pi, 0), 0), -1)


def _total(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
