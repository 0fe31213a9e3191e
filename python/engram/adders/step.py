"""The rows and transitions that adders write, and helpers for their nests."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import optree

from engram import _engram
from engram.nests import Nest

__all__ = [
    "DEFAULT_PRIORITY_TABLE",
    "MaskedStep",
    "Step",
    "Transition",
    "check_not_masked",
    "copy_leaf",
    "final_row",
    "flatten",
    "is_plain",
    "is_text",
    "map_leaves",
    "zeros_like",
]

DEFAULT_PRIORITY_TABLE = "priority_table"
"""The table that adders write to if `priority_fns` is None."""


class Step(NamedTuple):
    """One row of a sequence. In items of `T` rows, its leaves are `[T, ...]`, in the dtypes that were added.

    The last row of an episode has the final observation, and zeros in all other fields.

    Attributes:
        observation: What the agent observed, a nest of `[...]`.
        action: The agent's action, a nest of `[...]`.
        reward: The reward for the action: a number, an array `[...]` or a nest.
        discount: The environment's discount after the action, a number or an array `[...]`; 0 if the episode
            terminated.
        start_of_episode: bool `[]`, True for the first row of an episode.
        extras: Other data of the agent, a nest of `[...]`; `()` if there is none.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any = ()


class MaskedStep(NamedTuple):
    """A `Step` with a mask that marks real transitions.

    Attributes:
        observation: See `Step`.
        action: See `Step`.
        reward: See `Step`.
        discount: See `Step`.
        start_of_episode: bool `[]`, True for the first row of an episode.
        extras: See `Step`.
        mask: f32 `[]`, 1 for a transition; 0 for the final observation of an episode and for padding.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any
    mask: Any


class Transition(NamedTuple):
    """A transition over `n` steps; its leaves have no time axis.

    Attributes:
        observation: The first observation, a nest of `[...]`, in the dtypes that were added.
        action: The action at the first observation, a nest of `[...]`.
        reward: Discounted sum of the rewards: a number, an array `[...]` or a nest.
        discount: Product of the environment's discounts and the adder's, a number or an array `[...]`. The learner
            multiplies it by the adder's discount once more; see `NStepTransitionAdder`.
        next_observation: The last observation, a nest like `observation`.
        extras: The extras of the first step, a nest of `[...]`; `()` if there are none.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    extras: Any = ()


def map_leaves(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """Returns the nest with `function` applied to each leaf; None is a leaf."""
    return optree.tree_map(function, nest, none_is_leaf=True, namespace="engram")


def flatten(nest: Nest) -> tuple[list[Any], Any]:
    """Returns the leaves of a nest and its structure, an optree PyTreeSpec; None is a leaf."""
    return optree.tree_flatten(nest, none_is_leaf=True, namespace="engram")


def check_not_masked(name: str, nest: Nest) -> None:
    """Rejects masked arrays, tables and missing values before they are copied. `name` is that of the field of a row."""
    leaves, names, _ = _engram.flatten({name: nest})
    for leaf, column in zip(leaves, names, strict=True):
        if not is_plain(leaf):
            _engram.as_array(leaf, column)


def zeros_like(nest: Nest) -> Nest:
    """Returns zeros of the same dtypes and shapes; text becomes empty text, and None stays None."""
    return map_leaves(_zero, nest)


def is_plain(leaf: object) -> bool:
    """True for a number, text or an array without a subclass: its copy has all that it has."""
    return type(leaf) is np.ndarray or isinstance(leaf, _IMMUTABLE)


# Includes `bytes`: an array of them would lose trailing zeros.
_IMMUTABLE = (str, bytes, np.generic, bool, int, float, type(None))


def copy_leaf(leaf: Any) -> Any:  # noqa: ANN401, a leaf
    """Returns an array with a copy of a leaf, or the leaf itself if it is immutable."""
    return leaf if isinstance(leaf, _IMMUTABLE) else np.array(leaf)


def is_text(array: np.ndarray[Any, Any]) -> bool:
    """True if the elements of an array are text or bytes; arrays of objects count as such."""
    return array.dtype.kind in "SUOT"


def _zero(leaf: object) -> npt.NDArray[Any] | None:
    if leaf is None:
        return None
    array = np.asarray(leaf)
    if array.dtype != object:
        return np.zeros_like(array)
    # For dtype object, `zeros_like` would return the integer 0.
    empty = "" if any(isinstance(element, str) for element in array.flat) else b""
    return np.full(array.shape, empty, object)


def final_row(observation: Nest, last: Step) -> Step:
    """Returns the row after an episode's last transition: the final observation, and zeros in all other fields.

    Args:
        observation: The final observation.
        last: The row of the episode's last transition.
    """
    return last._replace(
        observation=observation,
        action=zeros_like(last.action),
        reward=zeros_like(last.reward),
        discount=zeros_like(last.discount),
        start_of_episode=False,
        extras=zeros_like(last.extras),
    )
