"""Internal rewards: how much each of the environment's events is worth to an agent (Jaderberg et al. 2019).

The reward of a step is `sum_e w_e event_e`. The weights `w` evolve; gradients do not change them.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks
from engram.agents.ftw.hyperparameters import (
    MAX_PCT_CHANGE,
    Hyperparameter,
    Range,
    draw_log_uniform,
    python_fraction,
    scale,
)
from engram.agents.ftw.seeds import Seed, generator
from engram.errors import InvalidArgumentError

Array = TypeVar("Array", bound=Any)
"""An array of NumPy or JAX."""


def internal_reward(weights: Nest, events: Array) -> Array:
    """Returns the weighted rewards.

    Args:
        weights: `[E]`.
        events: With one weight, rewards `[...]`, which are multiplied by it; otherwise events `[..., E]`.

    Returns:
        `[...]`.

    Raises:
        InvalidArgumentError: The last axis of `events` does not have E elements.
    """
    (num_events,) = weights.shape
    if num_events == 1:
        return events * weights[0]  # type: ignore[no-any-return]  # an array
    if events.ndim == 0 or events.shape[-1] != num_events:
        raise InvalidArgumentError(
            f"`events`: the last axis must have {num_events} elements, one per internal reward; got the shape"
            f" {events.shape}"
        )
    return (events * weights).sum(-1)  # type: ignore[no-any-return]  # an array


def numbers_of(value: object) -> npt.NDArray[np.float64]:
    """Returns a new array of the numbers, f64 `[...]`; if they are no numbers, one of the shape `(0, 0)`."""
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError):
        return np.empty((0, 0))


def learner_reward(weights: Nest, events: Array, max_abs_reward: Nest) -> Array:
    """Returns the rewards that the losses use, `[...]`: `internal_reward`, then clipped to +-`max_abs_reward`."""
    return internal_reward(weights, events).clip(-max_abs_reward, max_abs_reward)  # type: ignore[no-any-return]  # an array


class InternalRewards(Hyperparameter):
    """The weights of an agent's events."""

    def __init__(
        self,
        num_events: int,
        init_value_or_range: Range,
        perturb_probability: float = 1.0,
        perturb_max_pct_change: float = MAX_PCT_CHANGE,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Draws the weights.

        Args:
            num_events: E, the number of events.
            init_value_or_range: The exact value of all weights, or the bounds of a log-uniform distribution.
            perturb_probability: With which `perturb` changes each weight.
            perturb_max_pct_change: Largest relative change by `perturb`.
            seed: See `engram.agents.ftw.seeds`.

        Raises:
            InvalidArgumentError: An argument has the wrong type or is out of its range.
        """
        self._probability = python_fraction("`perturb_probability`", perturb_probability)
        self._max_pct_change = python_fraction("`perturb_max_pct_change`", perturb_max_pct_change)
        self._rng = generator(seed)
        size = _checks.integer("`num_events`", num_events)
        self._weights: npt.NDArray[np.float64] = draw_log_uniform(init_value_or_range, self._rng, size)

    def get(self) -> npt.NDArray[np.float64]:
        """Returns a copy of the weights, f64 `[E]`."""
        return self._weights.copy()

    def set(self, value: npt.ArrayLike) -> None:
        """Replaces the weights.

        Raises:
            InvalidArgumentError: The value is not finite numbers `[E]`.
        """
        weights = numbers_of(value)
        if weights.shape != self._weights.shape or not np.isfinite(weights).all():
            raise InvalidArgumentError(
                f"`value` must be finite numbers of the shape {self._weights.shape}; got {_checks.short_repr(value)}"
            )
        self._weights = weights

    def perturb(self) -> None:
        """Changes each weight at random, independently."""
        self._weights = scale(
            self._weights, self._rng, probability=self._probability, max_pct_change=self._max_pct_change
        )

    def reward(self, events: npt.ArrayLike) -> Nest:
        """Returns the weighted rewards; see `internal_reward`."""
        return internal_reward(self._weights, events if hasattr(events, "shape") else np.asarray(events))


def initialize_internal_rewards(
    num_events: int = 1,
    init_value_or_range: Range = (0.1, 1.0),
    *,
    perturb_probability: float = 1.0,
    seed: Seed | None = None,
) -> InternalRewards:
    """Draws the weights of the events; the arguments are those of `InternalRewards`."""
    return InternalRewards(num_events, init_value_or_range, perturb_probability, seed=seed)
