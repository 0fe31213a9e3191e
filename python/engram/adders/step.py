"""What adders write: steps and transitions, and how their nests are taken apart."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree

__all__ = [
    "DEFAULT_PRIORITY_TABLE",
    "MaskedStep",
    "Step",
    "Transition",
    "copy_leaf",
    "final_row",
    "flatten",
    "is_text",
    "map_leaves",
    "zeros_like",
]

DEFAULT_PRIORITY_TABLE = "priority_table"
"""The table that adders write to when they are told of none."""


class Step(NamedTuple):
    """One row of a sequence. As an item of `T` rows, its leaves are `[T, ...]`, in the dtypes that were added.

    An episode's last row has the final observation, and zeros in place of what never came.

    Attributes:
        observation: What the agent saw, a nest of `[...]`.
        action: What it then did, a nest of `[...]`.
        reward: What it got for that, a number, an array `[...]` or a nest.
        discount: Of what comes after, a number or an array `[...]`: 0 where the episode terminated.
        start_of_episode: bool `[]`: the observation is the episode's first.
        extras: What else the agent wants to find again, a nest of `[...]`; `()`: nothing.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any = ()


class MaskedStep(NamedTuple):
    """A `Step` that says whether it is a transition.

    Attributes:
        observation: As of `Step`, like all but `mask`.
        action: What the agent then did.
        reward: What it got for that.
        discount: Of what comes after.
        start_of_episode: bool `[]`: the observation is the episode's first.
        extras: What else the agent wants to find again.
        mask: f32 `[]`: 1 for a transition; 0 for an episode's final observation, and for padding.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any
    mask: Any


class Transition(NamedTuple):
    """From one observation to one `n` steps later; no leaf has a time axis.

    Attributes:
        observation: Where it began, a nest of `[...]`, in the dtypes that were added.
        action: What was done there, a nest likewise.
        reward: Sum of the discounted rewards on the way, a number, an array `[...]` or a nest.
        discount: Product of the discounts on the way, a number or an array `[...]`; which, its adder says.
        next_observation: Where it ended, a nest like `observation`.
        extras: Those of where it began, a nest of `[...]`; `()`: nothing.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    extras: Any = ()


def map_leaves(function: Callable[[Any], Any], nest: Any) -> Any:  # noqa: ANN401, nests
    """A nest like `nest` with `function` of each leaf; None is a leaf."""
    return optree.tree_map(function, nest, none_is_leaf=True, namespace="engram")


def flatten(nest: Any) -> tuple[list[Any], Any]:  # noqa: ANN401, a nest
    """Leaves, and how they nest."""
    return optree.tree_flatten(nest, none_is_leaf=True, namespace="engram")


def zeros_like(nest: Any) -> Any:  # noqa: ANN401, nests
    """Zeros of the same dtypes and shapes; empty strings for text; None stays."""
    return map_leaves(_zero, nest)


_UNCHANGING = (str, bytes, np.generic, bool, int, float, type(None))


def copy_leaf(leaf: Any) -> Any:  # noqa: ANN401, a leaf
    """A copy of what may be written into; NumPy would cut zeros off the end of text."""
    return leaf if isinstance(leaf, _UNCHANGING) else np.array(leaf)


def is_text(array: np.ndarray[Any, Any]) -> bool:
    """Whether its elements are strings."""
    return array.dtype.kind in "SUOT"


def _zero(leaf: object) -> Any:  # noqa: ANN401, an array
    if leaf is None:
        return None
    array = np.asarray(leaf)
    # NumPy's zeros of objects are numbers.
    return np.full(array.shape, b"", object) if array.dtype == object else np.zeros_like(array)


def final_row(observation: Any, like: Step) -> Step:  # noqa: ANN401, a nest
    """The row after the last transition: its observation, and zeros."""
    return like._replace(
        observation=observation,
        action=zeros_like(like.action),
        reward=zeros_like(like.reward),
        discount=zeros_like(like.discount),
        start_of_episode=False,
        extras=zeros_like(like.extras),
    )
