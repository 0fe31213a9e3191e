"""What adders write: steps and transitions, and how their nests are taken apart."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree

__all__ = ["DEFAULT_PRIORITY_TABLE", "MaskedStep", "Step", "Transition"]

DEFAULT_PRIORITY_TABLE = "priority_table"
"""The table that adders write to when they are told of none."""


class Step(NamedTuple):
    """One row of a sequence; as an item, its leaves are `[T, ...]`.

    The last row of an episode has the final observation, and zeros in place of what never came.

    Attributes:
        observation: What the agent saw, a nest.
        action: What it then did, a nest.
        reward: What it got for that, a number, an array or a nest.
        discount: Of what comes after: 0 where the episode terminated.
        start_of_episode: bool: the observation is the episode's first.
        extras: What else the agent wants to find again, a nest; `()`: nothing.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any = ()


class MaskedStep(NamedTuple):
    """A `Step` of a sequence that says which of its rows are transitions.

    Attributes:
        observation: As of `Step`, and so on.
        action: See there.
        reward: See there.
        discount: See there.
        start_of_episode: See there.
        extras: See there.
        mask: f32: 1 for a transition; 0 for an episode's final observation, and for padding.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any
    mask: Any


class Transition(NamedTuple):
    """From one observation to one `n` steps later.

    Attributes:
        observation: Where it began, a nest.
        action: What was done there, a nest.
        reward: Sum of the discounted rewards on the way.
        discount: Product of the discounts on the way.
        next_observation: Where it ended.
        extras: Those of where it began.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    extras: Any = ()


def each_leaf(function: Callable[[Any], Any], nest: Any) -> Any:  # noqa: ANN401, nests
    """A nest like `nest` with `function` of each leaf; None is a leaf."""
    return optree.tree_map(function, nest, none_is_leaf=True, namespace="engram")


def zeros_like(nest: Any) -> Any:  # noqa: ANN401, nests
    """Zeros of the same dtypes and shapes; empty strings for text; None stays."""
    return each_leaf(_zero, nest)


def _zero(leaf: object) -> Any:  # noqa: ANN401, an array
    if leaf is None:
        return None
    array = np.asarray(leaf)
    return np.full(array.shape, b"", object) if array.dtype.kind in "SUO" else np.zeros_like(array)


def final(observation: Any, like: Step) -> Step:  # noqa: ANN401, a nest
    """The row after the last transition: its observation, and zeros."""
    return like._replace(
        observation=observation,
        action=zeros_like(like.action),
        reward=zeros_like(like.reward),
        discount=zeros_like(like.discount),
        start_of_episode=False,
        extras=zeros_like(like.extras),
    )
