"""Batches as the losses see them: time-major, with zeros in padding, and frames and states on the device."""

import math
from typing import Any, NamedTuple

from engram._extras import importing_extra
from engram.agents.ftw.losses.masks import row_mask, zero_padding
from engram.agents.ftw.networks import OAR, LSTMState, PeriodicRNNState
from engram.agents.ftw.networks.policy_network import CoreState, FtwNetwork
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array


class Trajectories(NamedTuple):
    """B sequences of T transitions; padding is zero. Row t is the one before transition t, row T the last.

    Attributes:
        oar: `[T + 1, B, ...]`.
        actions: int `[T, B]`, or `[T, B, G]` if decomposed.
        rewards: `[T, B]`, or events `[T, B, E]`.
        discounts: `[T, B]`, of the environment.
        logits: `[T, B, L]`, of the policy that acted.
        state: `[B, ...]`, of the core before row 0.
        valid: bool `[T, B]`, True for transitions; see `engram.agents.ftw.losses.masks`.
    """

    oar: OAR
    actions: Array
    rewards: Array
    discounts: Array
    logits: Array
    state: CoreState
    valid: Array


class Windows(NamedTuple):
    """A batch for reward prediction, as sampled: windows whose last reward is zero, and windows where it is not.

    Attributes:
        zero_frames: `[B // 2, K, ...]`, K observations each.
        nonzero_frames: `[B // 2, K, ...]`.
        nonzero_rewards: `[B // 2]` or `[B // 2, E]`, the last rewards of these.
    """

    zero_frames: Any
    nonzero_frames: Any
    nonzero_rewards: Any


class Batch(NamedTuple):
    """What a learner step learns from.

    Attributes:
        items: `MaskedStep` of arrays `[B, T + 1, ...]`, from the queue; see `to_trajectories`.
        pixel_control: The same from the table of pixel control; None if this task is off.
        windows: None if reward prediction is off.
        auxiliary_weight: f32 `[]`, weight of the auxiliary losses: 1, or 0 if their tables have no batch yet and what
            is here has another content.
    """

    items: Any
    pixel_control: Any
    windows: Windows | None
    auxiliary_weight: Any


def to_trajectories(items: Nest, policy: FtwNetwork) -> Trajectories:
    """Returns the trajectories of a batch of items.

    Args:
        items: `MaskedStep` of arrays `[B, T + 1, ...]`, as sampled, with extras "logits" and "core_state": a state of
            the policy's core `[B, 1, ...]`, or packed, `[B, 1, n]`.
        policy: The network whose states these are.
    """
    rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items._replace(extras=items.extras["logits"]))
    valid = rows.mask[:-1].astype(bool)
    transitions = jax.tree.map(lambda x: x[:-1], (rows.action, rows.reward, rows.discount, rows.extras))
    actions, rewards, discounts, logits = zero_padding(transitions, valid)
    return Trajectories(
        oar=OAR(*zero_padding(tuple(rows.observation), row_mask(valid))),
        actions=actions,
        rewards=rewards,
        discounts=discounts,
        logits=logits,
        state=_first_state(items.extras["core_state"], policy),
        valid=valid,
    )


def _first_state(stored: Nest, policy: FtwNetwork) -> CoreState:
    first = jax.tree.map(lambda x: x[:, 0], stored)
    return first if isinstance(first, LSTMState | PeriodicRNNState) else unpack_state(first, policy)


def pack_state(state: CoreState) -> tuple[Array, ...]:
    """Returns the leaves of a state `[B, ...]`, flattened and joined: one array `[B, n]` per dtype.

    Each array of a row costs time when it is written.
    """
    parts: dict[Any, list[Array]] = {}
    for leaf in jax.tree.leaves(state):
        parts.setdefault(leaf.dtype, []).append(leaf.reshape(len(leaf), -1))
    return tuple(jnp.concatenate(each, 1) for each in parts.values())


def unpack_state(packed: Nest, policy: FtwNetwork) -> CoreState:
    """Returns the state `[B, ...]` of a policy that `pack_state` packed."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda: policy.initial_state(1)))
    rest = dict(zip(dict.fromkeys(leaf.dtype for leaf in leaves), packed, strict=True))
    unpacked = []
    for leaf in leaves:
        part, rest[leaf.dtype] = jnp.split(rest[leaf.dtype], [math.prod(leaf.shape)], 1)
        unpacked.append(part.reshape(-1, *leaf.shape[1:]))
    state: CoreState = jax.tree.unflatten(structure, unpacked)
    return state
