"""Hindsight experience replay: goals are replaced by those that were achieved."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias

from engram import Nest, _checks, _engram
from engram._text import columns_text
from engram.buffers._hindsight_rewards import GoalFunction, HindsightRewards, path_of
from engram.buffers._steps import check_same_spec, spec_text
from engram.buffers.items import CompiledItems, Items, OutputColumn, Steps, Transitions
from engram.errors import InvalidArgumentError, SignatureError

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

    The last stored step of an episode that has not ended yet is its newest one; if the environments are reset when a
    buffer is restored, call `end_episodes` then. The reward of an item with a new goal is computed from that; those of
    the other items stay as they were stored. `batch.info.relabeled` states which items got another goal. `scan` returns
    the goals as they were stored.

    Items must be `Steps()` or `Transitions(n_step=1)`, and steps must have the entries `reward`, `terminated` and
    `truncated`. The functions must return the same results for the same arguments, and must not change these. If one
    raises an error, `sample` raises it, and arrays that were passed as `out` have undefined contents; an iterator of
    `epoch` ends.

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
        terminated: Called like `reward`; returns bools `[B]`: True if the episode terminates because the step achieves
            its goal. It determines `discount` of `Transitions` and `terminated` of `Steps`, for the items that got
            another goal. A stored termination for another reason, such as a fall, is kept: one for which the function
            returns False with the goal that the step had. Default: no termination depends on the goal, so that all stay
            as they were stored. This is wrong if episodes terminate when they achieve their goal: their last steps
            would also terminate with other goals.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    reward: GoalFunction
    _: KW_ONLY
    strategy: GoalStrategy = "future"
    relabel: float = 0.8
    goal: str = "obs/desired_goal"
    achieved: str = "next_obs/achieved_goal"
    terminated: GoalFunction | None = None

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
                f"HER: `achieved` must not be the `goal` {self.goal!r} or its entry of the next step, "
                f"{f'next_{self.goal}'!r}, which HER replaces; got {self.achieved!r}"
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

    def _apply(self, items: CompiledItems, signature: Nest) -> CompiledItems:
        """Returns items whose goals are replaced."""
        specs, names, _ = _engram.flatten(signature)
        goals, achieved = (_entry(entry, names) for entry in (self.goal, self.achieved))
        if [name for name, _ in goals] != [name for name, _ in achieved]:
            raise SignatureError(
                f"HER: `{self.goal}` and `{self.achieved}` of a step must have the same structure; got the columns "
                f"{_listed(names, goals)} and {_listed(names, achieved)}"
            )
        following = f"next_{self.achieved}"
        if any(f"{name}/".startswith(f"{following}/") for name in names):
            raise SignatureError(
                f"HER: `achieved` must be the goal that is achieved after the step's action; got `{self.achieved}`, "
                f"but steps also have `{following}`; use that"
            )
        replaced = {}
        for (_, column), (_, source) in zip(goals, achieved, strict=True):
            following = f"next_{names[column]}"
            for target in (column, names.index(following)) if following in names else (column,):
                check_same_spec("HER", names, specs, target, source)
                replaced[target] = source
        outputs = [
            OutputColumn("goal", output.column, achieved=replaced[output.column])
            if output.source in {"first", "last"} and output.column in replaced
            else output
            for output in items.columns
        ]
        (rest, reward), *others = _entry("reward", names)
        if rest or others or specs[reward].shape != ():
            got = "a nest" if rest or others else spec_text(specs[reward])
            raise SignatureError(f"HER: column `reward` must be one number per step; got {got}")
        items = items._replace(columns=outputs, hindsight=(self.strategy, self.relabel))
        return items if self.terminated is None else items.with_hidden([column for _, column in goals], names)

    def _rewards(self, items: Items, signature: Nest) -> HindsightRewards | None:
        """Returns how the rewards of batches are computed, for steps that `_apply` has accepted; None if none are."""
        if self.relabel == 0:
            return None
        goal = path_of(signature, self.goal)
        nest = signature
        for key in goal:
            nest = nest[key]
        discount = items.discount if isinstance(items, Transitions) else None
        achieved, structure = path_of(signature, self.achieved), _engram.flatten(nest)[2]
        return HindsightRewards(self.reward, self.terminated, goal, achieved, structure, discount)


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
