"""What is computed from the steps of a replay buffer when they are sampled."""

from collections.abc import Sequence
from typing import TypeAlias

from engram import _checks
from engram.buffers.frame_stack import FrameStack
from engram.buffers.hindsight import HER
from engram.errors import InvalidArgumentError

__all__ = ["Transform", "checked_transforms"]

Transform: TypeAlias = FrameStack | HER
"""The kinds of transforms."""


def checked_transforms(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Returns the transforms, after checking that each column has at most one."""
    kinds = "engram.buffers.FrameStack(...) or HER(...)"
    _checks.instance_of("`transforms`", transforms, Sequence, f"a sequence of {kinds}")
    for transform in transforms:
        _checks.instance_of("each of `transforms`", transform, Transform, kinds)
    stacked = [transform.column for transform in transforms if isinstance(transform, FrameStack)]
    for number, column in enumerate(stacked):
        for other in stacked[:number]:
            if _overlap(column, other):
                raise InvalidArgumentError(
                    f"`transforms` must stack each column at most once; got FrameStack for `{other}` and `{column}`"
                )
    goals = [transform for transform in transforms if isinstance(transform, HER)]
    if len(goals) > 1:
        raise InvalidArgumentError(f"`transforms` must have at most one HER; got {len(goals)}")
    for column in stacked:
        for goal in goals[0]._columns if goals else ():  # noqa: SLF001, this package's own
            if _overlap(column, goal) or _overlap(f"next_{column}", goal):
                raise InvalidArgumentError(
                    f"`transforms` must not stack the goals of HER; got FrameStack for `{column}`, and HER for `{goal}`"
                )
    return tuple(transforms)


def _overlap(column: str, other: str) -> bool:
    """True if one of two entries of a step is the other one, or within it."""
    return f"{column}/".startswith(f"{other}/") or f"{other}/".startswith(f"{column}/")
