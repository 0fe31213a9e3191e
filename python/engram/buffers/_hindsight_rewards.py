"""The rewards of items that got another goal."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._casts import cast, is_same_kind
from engram.errors import InvalidArgumentError

__all__ = ["GoalFunction", "HindsightRewards", "Path", "path_of"]

GoalFunction: TypeAlias = Callable[[Any, Any], npt.ArrayLike]
"""A function of the achieved goals and the goals of all items of a batch."""

Path: TypeAlias = tuple[Any, ...]
"""Keys and indices that lead from a nest to an entry of it."""


class HindsightRewards(NamedTuple):
    """Computes rewards, and whether episodes terminate, for the items of a batch that got another goal."""

    reward: GoalFunction
    terminated: GoalFunction | None
    goal: Path
    achieved: Path
    goal_structure: str
    discount: float | None  # that of `Transitions`; None for `Steps`

    def write(self, data: Nest, relabeled: npt.NDArray[np.bool_], stored_goals: list[npt.NDArray[Any]]) -> None:
        """Writes them to the batch. `stored_goals` are the columns of the goals that all items had before."""
        achieved, goal = _at(data, self.achieved), _at(data, self.goal)
        target = data["reward"]
        rewards = _array("reward", self.reward(achieved, goal), relabeled.shape)
        if not is_same_kind(rewards.dtype, target.dtype):
            raise InvalidArgumentError(
                f"HER: `reward` must return {target.dtype} or values of the same kind; it returned {rewards.dtype}"
            )
        rewards = cast(rewards, target.dtype, "HER: `reward` returned", InvalidArgumentError)
        np.copyto(target, rewards, where=relabeled)
        if self.terminated is None:
            return
        terminated = self._terminated(self.terminated, achieved, goal, relabeled.shape)
        stored = data["terminated"] if self.discount is None else data["discount"] == 0
        for_other_reasons = relabeled & stored
        if for_other_reasons.any():
            stored_goal = _engram.unflatten(self.goal_structure, stored_goals)
            for_other_reasons &= ~self._terminated(self.terminated, achieved, stored_goal, relabeled.shape)
        terminated = terminated | for_other_reasons
        if self.discount is None:
            np.copyto(data["terminated"], terminated, where=relabeled)
        else:
            discount = np.where(terminated, 0, self.discount)
            np.copyto(data["discount"], discount, casting="same_kind", where=relabeled)

    @staticmethod
    def _terminated(
        function: GoalFunction, achieved: Nest, goal: Nest, shape: tuple[int, ...]
    ) -> npt.NDArray[np.bool_]:
        terminated = _array("terminated", function(achieved, goal), shape)
        if terminated.dtype != np.bool_:
            raise InvalidArgumentError(f"HER: `terminated` must return bools; it returned {terminated.dtype}")
        return terminated


def path_of(nest: Nest, entry: str) -> Path:
    """Returns the path of an entry that the nest has, given its name as in the names of columns."""
    keys: dict[str, Any]
    if isinstance(nest, Mapping):
        keys = {_engram.flatten({key: 0})[1][0]: key for key in nest}  # names escape some characters of keys
    else:
        fields = getattr(nest, "_fields", map(str, range(len(nest))))
        keys = {field: index for index, field in enumerate(fields)}
    if entry in keys:
        return (keys[entry],)
    name = next(name for name in keys if entry.startswith(f"{name}/"))
    return keys[name], *path_of(nest[keys[name]], entry.removeprefix(f"{name}/"))


def _at(nest: Nest, path: Path) -> Nest:
    """Returns an entry of a nest."""
    for key in path:
        nest = nest[key]
    return nest


def _array(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Returns what the function of this name returned as an array, after checking that it has one value per item."""
    if _checks.has_mask(values):
        raise InvalidArgumentError(f"HER: `{name}` must return a value for each item; it returned a masked array")
    try:
        array = np.asarray(values)
    except ValueError:  # such as lists of different lengths
        array = np.asarray(None)
    if array.shape != shape:
        got = _checks.short_repr(values) if array.dtype == object else list(array.shape)
        raise InvalidArgumentError(
            f"HER: `{name}` must return one value per item, shape {list(shape)}; it returned {got}; it is called once "
            "for all items of a batch"
        )
    return array
