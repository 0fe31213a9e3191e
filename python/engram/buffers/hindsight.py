"""Hindsight experience replay: goals are replaced by those that were achieved."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram._text import columns_text
from engram.buffers.items import CompiledItems, Items, OutputColumn, Steps, Transitions
from engram.errors import InvalidArgumentError, SignatureError
from engram.specs import ArraySpec

__all__ = ["HER", "GoalStrategy"]

GoalStrategy: TypeAlias = Literal["future", "final", "episode"]
"""Which step of the episode has achieved the new goal of an item; see `HER`."""


@dataclass(frozen=True, slots=True)
class HER:
    """Replaces the goals of some items by goals that their episode has achieved (hindsight experience replay).

        env = gymnasium.make("FetchReach-v4")
        her = HER(lambda achieved, goal: env.unwrapped.compute_reward(achieved, goal, {}))
        buffer = ReplayBuffer(100_000, items=Transitions(discount=0.98), transforms=[her])

    An agent that pursues a goal rarely reaches it at first. In hindsight, each step is also a good example for a goal
    that its episode did reach (Andrychowicz et al. 2017, "Hindsight Experience Replay", section 4).

    The defaults of `goal` and `achieved` are for goal environments of Gymnasium-Robotics, whose observations have the
    entries `observation`, `desired_goal` and `achieved_goal`, and are stored as `obs` and `next_obs`, as
    `engram.gymnasium.BufferWriter` does.

    When an item is sampled, it gets another goal with probability `relabel`: the `achieved` entry of one of the stored
    steps of its episode, according to `strategy`:

    - `"future"`: the item's own step or a later one, all equally likely.
    - `"final"`: the last one.
    - `"episode"`: any, all equally likely.

    The last stored step of an episode that has not ended yet is its newest one. The reward of such an item is computed
    with its new goal; those of the other items stay as they were stored. `batch.info.relabeled` states which items got
    another goal.

    Items must be `Steps()` or `Transitions(n_step=1)`, and steps must have the entries `reward`, `terminated` and
    `truncated`. The functions must return the same results for the same arguments, and must not change these. If one
    raises an error, `sample` raises it.

    Attributes:
        reward: Called with the entries `achieved` and `goal` of all items of a batch, arrays `[B, ...]`, as
            `reward(achieved, goal)`. Returns their rewards, numbers `[B]`.
        strategy: `"future"`, `"final"` or `"episode"`.
        relabel: Probability with which an item gets another goal, from 0 to 1. The default, 0.8, corresponds to four
            new goals for each original one, k = 4 in the paper.
        goal: Entry of a step that is replaced. If the step has a corresponding entry for the next observation, it is
            replaced, too: `next_obs/desired_goal` for `obs/desired_goal`, `next_goal` for `goal`.
        achieved: Entry of a step with the goal that is achieved after its action, with the structure, dtypes and shapes
            of `goal`.
        terminated: Called like `reward`; returns bools `[B]`: True if the episode terminates with a step that achieves
            its goal. It determines `discount` of `Transitions` and `terminated` of `Steps`, for the items that got
            another goal. Default: these do not depend on the goal.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    reward: Callable[[Any, Any], npt.ArrayLike]
    _: KW_ONLY
    strategy: GoalStrategy = "future"
    relabel: float = 0.8
    goal: str = "obs/desired_goal"
    achieved: str = "next_obs/achieved_goal"
    terminated: Callable[[Any, Any], npt.ArrayLike] | None = None

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise InvalidArgumentError(
                f"HER: `reward` must be a function of `achieved` and `goal`; got {_checks.short_repr(self.reward)}"
            )
        _checks.choice("HER: `strategy`", self.strategy, ("future", "final", "episode"))
        object.__setattr__(self, "relabel", _checks.fraction("HER: `relabel`", self.relabel))
        _checks.text("HER: `goal`", self.goal)
        _checks.text("HER: `achieved`", self.achieved)
        if self.achieved in {self.goal, f"next_{self.goal}"}:
            raise InvalidArgumentError(
                f"HER: `achieved` must be an entry that is not replaced; got {self.achieved!r}, and {self.goal!r} as "
                "`goal`"
            )
        _checks.function("HER: `terminated`", self.terminated)

    @property
    def _columns(self) -> tuple[str, ...]:
        """The entries of a step that this transform reads or replaces."""
        return self.goal, f"next_{self.goal}", self.achieved

    @property
    def _lookback(self) -> int:
        """Number of steps before an item that must be stored."""
        return 0

    def _check_items(self, items: Items) -> None:
        """Checks that goals of these items can be replaced."""
        if not (isinstance(items, Steps) or (isinstance(items, Transitions) and items.n_step == 1)):
            raise InvalidArgumentError(
                f"HER needs items of single steps: items=Steps() or Transitions(n_step=1, ...); got {items!r}"
            )

    def _apply(self, items: CompiledItems, signature: Any) -> CompiledItems:  # noqa: ANN401, a nest
        """Returns items whose goals are replaced."""
        specs, names, _ = _engram.flatten(signature)
        goals, achieved = (_entry(entry, names) for entry in (self.goal, self.achieved))
        if [name for name, _ in goals] != [name for name, _ in achieved]:
            raise SignatureError(
                f"HER: `{self.goal}` and `{self.achieved}` of a step must have the same structure; got the columns "
                f"{_listed(names, goals)} and {_listed(names, achieved)}"
            )
        replaced = {}
        for (_, column), (_, source) in zip(goals, achieved, strict=True):
            following = f"next_{names[column]}"
            for target in (column, names.index(following)) if following in names else (column,):
                _check_same(names[target], specs[target], names[source], specs[source])
                replaced[target] = source
        outputs = [
            OutputColumn("goal", output.column, achieved=replaced[output.column])
            if output.source in {"first", "last"} and output.column in replaced
            else output
            for output in items.columns
        ]
        reward = [specs[column] for _, column in _entry("reward", names)]
        if len(reward) > 1 or reward[0].shape != ():
            got = "a nest" if len(reward) > 1 else _described(reward[0])
            raise SignatureError(f"HER: column `reward` must be one number per step; got {got}")
        return items._replace(columns=outputs, hindsight=(self.strategy, self.relabel))

    def _set_rewards(self, batch: Any, relabeled: npt.NDArray[np.bool_], items: Items) -> None:  # noqa: ANN401, a nest
        """Sets the rewards of the items of a batch that got another goal, and whether their episodes terminated."""
        if not relabeled.any():
            return
        goals = _at(batch, self.achieved), _at(batch, self.goal)
        target = batch["reward"]
        _write("reward", self.reward(*goals), relabeled, target)
        if self.terminated is None:
            return
        terminated = _array("terminated", self.terminated(*goals), relabeled.shape)
        if terminated.dtype != np.bool_:
            raise InvalidArgumentError(f"HER: `terminated` must return bools; it returned {terminated.dtype}")
        if isinstance(items, Transitions):
            _write("terminated", np.where(terminated, 0.0, items.discount), relabeled, batch["discount"])
        else:
            _write("terminated", terminated, relabeled, batch["terminated"])


def _entry(entry: str, names: list[str]) -> list[tuple[str, int]]:
    """Returns the columns of an entry: the rest of their names, and their numbers."""
    columns = [
        (name.removeprefix(entry), number)
        for number, name in enumerate(names)
        if name == entry or name.startswith(f"{entry}/")
    ]
    if not columns:
        raise SignatureError(f"HER: steps have no entry `{entry}`; got {columns_text(names)}")
    return columns


def _listed(names: list[str], columns: list[tuple[str, int]]) -> str:
    return ", ".join(f"`{names[number]}`" for _, number in columns)


def _check_same(name: str, spec: ArraySpec, achieved: str, other: ArraySpec) -> None:
    """Checks that a goal and an achieved goal have the same dtype and shape."""
    given, expected = _described(spec), _described(other)
    if given != expected:
        raise SignatureError(
            f"HER: columns `{name}` and `{achieved}` must have one dtype and shape; got {given} and {expected}"
        )


def _described(spec: ArraySpec) -> str:
    return f"{np.dtype(spec.dtype)}{list(spec.shape)}"


def _at(data: Any, entry: str) -> Any:  # noqa: ANN401, nests
    """Returns an entry of a nest."""
    for key in entry.split("/"):
        data = data[key] if isinstance(data, Mapping) else data[int(key)]
    return data


def _array(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Returns what the function of this name returned as an array, after checking that it has one value per item."""
    if isinstance(values, np.ma.MaskedArray):
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


def _write(name: str, values: npt.ArrayLike, where: npt.NDArray[np.bool_], target: npt.NDArray[Any]) -> None:
    """Writes what the function of this name returned to the items that `where` selects."""
    array = _array(name, values, where.shape)
    if not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise InvalidArgumentError(
            f"HER: `{name}` must return {target.dtype} or values of the same kind; it returned {array.dtype}"
        )
    np.copyto(target, array, casting="same_kind", where=where)
