"""Specs of an environment, in the form of Acme's."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from engram import _checks
from engram.agents.ftw.actions import NumActions
from engram.errors import InvalidArgumentError

__all__ = ["EnvironmentSpec", "make_environment_spec"]

EnvironmentSpecLike: TypeAlias = Any
"""An `EnvironmentSpec`, or another object with these attributes, such as Acme's."""


class EnvironmentSpec(NamedTuple):
    """Specs of dm_env, or others with `shape` and `dtype`. Acme's `EnvironmentSpec` works, too.

    Attributes:
        observations: Of observations: a triple of observation, action and reward (OAR).
        actions: Of actions.
        rewards: Of rewards.
        discounts: Of discounts.
    """

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any


def make_environment_spec(environment: Any) -> EnvironmentSpec:  # noqa: ANN401, a dm_env.Environment
    """Returns the specs of `environment`, an environment of dm_env."""
    return EnvironmentSpec(
        environment.observation_spec(),
        environment.action_spec(),
        environment.reward_spec(),
        environment.discount_spec(),
    )


def checked_frame(environment_spec: EnvironmentSpecLike, num_events: int) -> tuple[int, ...]:
    """Returns the shape of a frame, (H, W, C).

    Args:
        environment_spec: Specs of an environment.
        num_events: Number of events that its rewards must have; 1: they must be scalars.

    Raises:
        InvalidArgumentError: Observations are no triple, rewards have another shape, or `num_events` is below 1.
    """
    _checks.integer("`num_environment_events`", num_events)
    observations = environment_spec.observations
    if not isinstance(observations, tuple) or len(observations) != 3:  # noqa: PLR2004, observation, action and reward
        raise InvalidArgumentError(
            "`environment_spec.observations` must be a triple of observation, action and reward, as those of"
            f" engram.envs.ObservationActionReward; got {_checks.short_repr(observations)}"
        )
    expected = () if num_events == 1 else (num_events,)
    if tuple(observations[2].shape) != expected:
        raise InvalidArgumentError(
            f"`num_environment_events` is {num_events}, but rewards have the shape {tuple(observations[2].shape)};"
            f" expected {expected}"
        )
    return tuple(observations[0].shape)


def num_actions_of(actions: Any) -> NumActions:  # noqa: ANN401, a spec
    """Returns the number of actions of a spec, or that of each group.

    Args:
        actions: A spec with `num_values`; or with `minimum` 0 and `maximum`, of integers `[G]`.

    Raises:
        InvalidArgumentError: Another spec.
    """
    if hasattr(actions, "num_values"):
        return _checks.integer("`actions.num_values`", actions.num_values)
    maximum = getattr(actions, "maximum", None)
    if (
        maximum is None
        or len(actions.shape) != 1
        or np.dtype(actions.dtype).kind not in "iu"
        or np.any(actions.minimum)
    ):
        raise InvalidArgumentError(
            "`environment_spec.actions` must have `num_values`, or be bounded integers [G] from 0 on; got"
            f" {_checks.short_repr(actions)}"
        )
    return tuple(int(each) + 1 for each in np.broadcast_to(maximum, actions.shape))
