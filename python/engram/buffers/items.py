"""What a replay buffer samples: steps, n-step transitions, sequences or episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from engram import Nest, _checks, _engram
from engram.errors import SignatureError

__all__ = [
    "AtEnd",
    "CompiledItems",
    "CompiledSampler",
    "Episodes",
    "Items",
    "OutputColumn",
    "Sequences",
    "Steps",
    "Transitions",
    "episode_columns",
]

AtEnd: TypeAlias = Literal["pad", "continue"]
"""What follows the last step of an episode in a sequence; see `Sequences`."""


class OutputColumn(NamedTuple):
    """A column of an item, as the native engine expects it."""

    source: Literal["first", "last", "all", "goal", "return", "discount", "num_steps", "valid", "learning", "is_first"]
    column: int = 0  # number of the column in a step, for the first four sources
    frames: int = 0  # number of stacked frames; 0 without a stack
    earlier: int = 0  # number of the column with the frames before the last one
    achieved: int = 0  # number of the column with the goals that steps achieved, for the source `goal`


class CompiledItems(NamedTuple):
    """Items as the native engine reads them."""

    kind: Literal["steps", "transitions", "sequences", "episodes"]
    structure: str  # the nest of an item
    columns: list[OutputColumn]  # those of the nest, then hidden ones
    names: list[str]
    length: int = 1  # n_step of transitions, max_length of episodes
    burn_in: int = 0
    at_end: AtEnd = "pad"
    discount: float = 1.0
    episode_columns: tuple[int, int] | None = None  # numbers of the columns `terminated` and `truncated` in a step
    reward_column: int | None = None
    hindsight: tuple[str, float] | None = None  # strategy, and probability with which goals are replaced

    def with_hidden(self, columns: Sequence[int], names: Sequence[str]) -> Self:
        """Returns items with these columns of their first step, out of `names`, which are not part of their nest."""
        hidden = [OutputColumn("first", column) for column in columns]
        return self._replace(
            columns=[*self.columns, *hidden], names=[*self.names, *(names[column] for column in columns)]
        )


class CompiledSampler(NamedTuple):
    """How items are chosen, as the native engine reads it."""

    exponent: float | None = None  # of priorities
    recent: tuple[float, int] | None = None  # part of a batch that is from the newest items, and their number per env


class _Marker:
    """Stands for a column in the nest of an item. It is not a tuple, so that it is a single leaf."""

    def __init__(self, source: Any, column: int = 0) -> None:  # noqa: ANN401, a literal
        self.column = OutputColumn(source, column)


@dataclass(frozen=True, slots=True)
class Steps:
    """Single steps, as they were added: any nest of arrays and numbers.

    Choose this if each step is a complete transition, with `obs`, `action`, `reward`, `next_obs` and `terminated`. Then
    nothing is computed when it is sampled.
    """

    @property
    def _max_steps(self) -> int:
        """Maximum number of consecutive steps of an item."""
        return 1

    def _compile(self, structure: str) -> CompiledItems:
        """Returns the items for steps of this structure."""
        names = _engram.names(structure)
        columns = [OutputColumn("first", column) for column in range(len(names))]
        return CompiledItems("steps", structure, columns, names)


@dataclass(frozen=True, slots=True)
class Transitions:
    """The up to `n_step` steps that begin with the chosen one, combined into one transition.

    Steps must be dicts with at least these entries:

    - `reward`: a number, the reward for the step's action;
    - `next_obs`: the observation after the action; at the end of an episode its last one, not the first of the next;
    - `terminated` and `truncated`: bools, True at the step that ended the episode.

    With rewards `r`, and `k` the smaller of `n_step` and the number of steps to the end of the episode, an item has

    - `reward`: `r_1 + discount * r_2 + ... + discount**(k-1) * r_k`, float32 `[B]`;
    - `discount`: `discount**k`, or 0 if the episode terminated within the `k` steps, float32 `[B]`;
    - `num_steps`: `k`, int32 `[B]`;
    - `next_obs`: that of the `k`-th step;
    - all other entries of the first step, except `terminated` and `truncated`.

    The learner's target is `reward + discount * V(next_obs)`. A truncated episode does not have discount 0, so the
    target includes the value of its last observation.

    A step cannot be sampled before it and the `n_step - 1` steps after it have been added, or the end of its episode.

    Attributes:
        n_step: Maximum number of steps of an item, at most 10,000.
        discount: Discount per step, from 0 to 1.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    _: KW_ONLY
    n_step: int = 1
    discount: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_step", _checks.integer("Transitions: `n_step`", self.n_step, high=_MAX_N_STEP))
        object.__setattr__(self, "discount", _checks.fraction("Transitions: `discount`", self.discount))

    @property
    def _max_steps(self) -> int:
        """Maximum number of consecutive steps of an item."""
        return self.n_step

    def _compile(self, structure: str) -> CompiledItems:
        """Returns the items for steps of this structure."""
        step = _step_of_markers("items=Transitions(...)", structure, ("next_obs", "reward", "terminated", "truncated"))
        _check_added("Transitions", step, ("discount", "num_steps"))
        item = step | {
            "reward": _Marker("return"),
            "discount": _Marker("discount"),
            "num_steps": _Marker("num_steps"),
            "next_obs": _markers(step["next_obs"], "last"),
        }
        del item["terminated"], item["truncated"]
        reward = step["reward"].column.column
        compiled = _compiled("transitions", step, item)
        return compiled._replace(length=self.n_step, discount=self.discount, reward_column=reward)


@dataclass(frozen=True, slots=True)
class Sequences:
    """`length` consecutive steps that begin with the chosen one, and up to `burn_in` steps before it.

    Steps must be dicts with at least the entries `terminated` and `truncated`: bools, True at the step that ended the
    episode. With `T = burn_in + length`, an item has all entries of its steps, with a time axis: `[B, T, ...]`; and,
    bool `[B, T]`,

    - `valid`: False in padding;
    - `learning`: True for the last `length` steps, except padding: a loss is computed from these;
    - `is_first`: True for the first step of an episode, where a recurrent network starts with its initial state.

    The first `burn_in` steps precede the step that was chosen, and are only there to compute a recurrent state. They
    belong to the same episode. If the episode has fewer steps before the chosen one, copies of its first step fill the
    sequence on the left, with `is_first` True and `valid` False: a network that returns to its initial state wherever
    `is_first` is True computes the same as without these copies.

    After the end of an episode, a sequence is continued according to `at_end`:

    - `"pad"`: zeros follow, with `valid` False.
    - `"continue"`: the next episode of the environment follows; its first step has `is_first` True.

    A sequence never contains steps of two environments, and never continues from the newest step with the oldest. A
    step cannot be sampled before it and the `length - 1` steps after it have been added, or with `"pad"` the end of its
    episode; nor when its burn-in has been overwritten.

    Attributes:
        length: Number of steps from which a loss is computed.
        burn_in: Number of steps before them.
        at_end: `"pad"` or `"continue"`.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    _: KW_ONLY
    length: int
    burn_in: int = 0
    at_end: AtEnd = "pad"

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _checks.integer("Sequences: `length`", self.length, high=_checks.MAX_I32))
        burn_in = _checks.integer("Sequences: `burn_in`", self.burn_in, low=0, high=_checks.MAX_I32)
        object.__setattr__(self, "burn_in", burn_in)
        _checks.choice("Sequences: `at_end`", self.at_end, ("pad", "continue"))

    @property
    def _max_steps(self) -> int:
        """Maximum number of consecutive steps of an item."""
        return self.burn_in + self.length

    def _compile(self, structure: str) -> CompiledItems:
        """Returns the items for steps of this structure."""
        compiled = _compiled_with_time_axis("sequences", structure, ("valid", "learning", "is_first"))
        return compiled._replace(length=self.length, burn_in=self.burn_in, at_end=self.at_end)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Whole episodes, from their first step on, that have ended.

    Steps must be dicts with at least the entries `terminated` and `truncated`: bools, True at the step that ended the
    episode. An item has all entries of its steps, with a time axis: `[B, max_length, ...]`; and, bool `[B,
    max_length]`,

    - `valid`: True for the steps of the episode, False for the zeros that follow them. `valid.sum(axis=1)` is their
      number;
    - `is_first`: True for the first step of an episode.

    All episodes are equally likely with `selectors.Uniform()`, whatever their environment and the number of their
    steps. With `selectors.Prioritized`, the priority of an episode is that of its first step.

    An episode longer than `max_length` becomes several items: each but the last has `max_length` steps, and
    `is_first[:, 0]` is True only for the first. Where an episode was ended by `add_episode` or `end_episodes`, its last
    step may have neither `terminated` nor `truncated` True.

    An item can be sampled from its last step on, until its first step is overwritten. `capacity` must be at least `2 *
    max_length - 1` for each environment, so that an item is stored until the next one is complete.

    Attributes:
        max_length: Maximum number of steps of an item, and length of the time axis.

    Raises:
        InvalidArgumentError: `max_length` is invalid.
    """

    _: KW_ONLY
    max_length: int

    def __post_init__(self) -> None:
        max_length = _checks.integer("Episodes: `max_length`", self.max_length, high=_checks.MAX_I32)
        object.__setattr__(self, "max_length", max_length)

    @property
    def _max_steps(self) -> int:
        """Maximum number of consecutive steps of an item."""
        return self.max_length

    def _compile(self, structure: str) -> CompiledItems:
        """Returns the items for steps of this structure."""
        compiled = _compiled_with_time_axis("episodes", structure, ("valid", "is_first"))
        return compiled._replace(length=self.max_length)


Items: TypeAlias = Steps | Transitions | Sequences | Episodes
"""The kinds of items."""

_MAX_N_STEP = 10_000
"""Maximum of `n_step`: the time that sampling takes grows with it."""


def episode_columns(what: str, structure: str) -> tuple[int, int]:
    """Returns the numbers of the columns `terminated` and `truncated`, after checking that steps have them."""
    return _episode_columns(_step_of_markers(what, structure, ("terminated", "truncated")))


def _episode_columns(step: Mapping[str, Any]) -> tuple[int, int]:
    return step["terminated"].column.column, step["truncated"].column.column


def _step_of_markers(what: str, structure: str, required: Sequence[str]) -> dict[str, Any]:
    """Returns a step whose leaves are markers, after checking that it has the entries that `what` needs."""
    names = _engram.names(structure)
    step = _engram.unflatten(structure, [_Marker("first", column) for column in range(len(names))])
    needed = ", ".join(f"`{name}`" for name in required)
    if not isinstance(step, Mapping):
        got = "single array" if isinstance(step, _Marker) else type(step).__name__
        raise SignatureError(f"{what} needs steps that are dicts with {needed}; got a {got}")
    missing = ", ".join(f"`{name}`" for name in required if name not in step)
    if missing:
        given = ", ".join(f"`{name}`" for name in step)
        raise SignatureError(f"{what} needs steps with {needed}; {missing} missing; got {given}")
    for name in required:
        if name != "next_obs" and not isinstance(step[name], _Marker):
            raise SignatureError(f"{what}: `{name}` of a step must be a single value; got a nest")
    return dict(step)


def _check_added(kind: str, step: Mapping[str, Any], added: Sequence[str]) -> None:
    """Checks that a step has none of the entries that are added to an item."""
    for name in added:
        if name in step:
            raise SignatureError(
                f"items={kind}(...) adds `{name}` to each item, so steps must not have an entry of that name; rename it"
            )


def _markers(entry: Nest, source: Literal["last", "all"]) -> Nest:
    """Returns a nest of markers for the same columns as those in `entry`, with another source."""
    markers, _, structure = _engram.flatten(entry)
    return _engram.unflatten(structure, [_Marker(source, marker.column.column) for marker in markers])


def _compiled_with_time_axis(
    kind: Literal["sequences", "episodes"], structure: str, added: Sequence[str]
) -> CompiledItems:
    """Returns items with all entries of their steps, and the entries `added`, one value per step."""
    step = _step_of_markers(f"items={kind.capitalize()}(...)", structure, ("terminated", "truncated"))
    _check_added(kind.capitalize(), step, added)
    item = {name: _markers(entry, "all") for name, entry in step.items()} | {name: _Marker(name) for name in added}
    return _compiled(kind, step, item)


def _compiled(
    kind: Literal["transitions", "sequences", "episodes"], step: Mapping[str, Any], item: Mapping[str, Any]
) -> CompiledItems:
    """Returns the items whose nest of markers is `item`, for steps whose markers are `step`."""
    markers, names, structure = _engram.flatten(item)
    columns = [marker.column for marker in markers]
    return CompiledItems(kind, structure, columns, names, episode_columns=_episode_columns(step))
