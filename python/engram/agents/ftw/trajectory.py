"""Batches as the losses see them: time-major, with zeros in padding, and frames and states on the device."""

from typing import Any, NamedTuple

from engram._extras import importing_extra
from engram.agents.ftw.losses.masks import row_mask, zero_padding
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.networks.policy_network import CoreState, FtwNetwork

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


def to_trajectories(items: Any, policy: FtwNetwork) -> Trajectories:  # noqa: ANN401, see Args
    """Returns the trajectories of a batch of items.

    Args:
        items: `MaskedStep` of arrays `[B, T + 1, ...]`, as sampled, with extras "logits" and "core_state", whose leaves
            are `[B, 1, ...]`.
        policy: The network whose states these are.
    """
    rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items._replace(extras=items.extras["logits"]))
    observation, action, reward = rows.observation
    transitions = (rows.action, rows.reward, rows.discount, rows.extras)
    valid = rows.mask[:-1].astype(bool)
    return Trajectories(
        zero_padding(OAR(observation, action, reward), row_mask(valid)),
        *zero_padding(jax.tree.map(lambda x: x[:-1], transitions), valid),
        state=to_state(items.extras["core_state"], policy),
        valid=valid,
    )


def to_state(leaves: Any, policy: FtwNetwork) -> CoreState:  # noqa: ANN401, a nest of arrays
    """Returns the state `[B, ...]` of a policy, given the leaves `[B, 1, ...]` that items have."""
    structure = jax.tree.structure(jax.eval_shape(lambda: policy.initial_state(1)))
    state: CoreState = jax.tree.unflatten(structure, [leaf[:, 0] for leaf in jax.tree.leaves(leaves)])
    return state
