"""Patterns: which items a writer makes by itself, declared once.

    Pattern("replay", lambda s: {"obs": s["obs"][-2:], "action": s["action"][-1]}, when=[step_index() % 4 == 0])

The function gets a nest like a step, whose leaves stand for the column's history: `[-2:]` is the
last two steps, `[-1]` the last one without a time axis. It runs once, not per step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engram import _checks, _engram
from engram.errors import InvalidArgumentError

__all__ = [
    "Condition",
    "Pattern",
    "Subject",
    "TdError",
    "column",
    "end_of_episode",
    "history_length",
    "step_index",
    "steps_since_applied",
    "td_error",
]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must hold for a pattern to make an item; made by comparing a `Subject`."""

    subject: "Subject"
    comparison: str
    operands: tuple[int, int] = (0, 0)
    inverse: bool = False

    def __invert__(self) -> "Condition":
        """The opposite: `~end_of_episode()`."""
        return Condition(self.subject, self.comparison, self.operands, not self.inverse)

    def __bool__(self) -> bool:
        raise InvalidArgumentError("a condition has no truth value of its own; list conditions in `when`")


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What a condition looks at: compare it with an integer, or its remainder.

    `==`, `!=`, `<`, `<=`, `>`, `>=` with an integer, and `% m == r`, `% m != r`.
    """

    kind: str
    source: Callable[[Any], "_Leaf"] | None = None

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return Condition(self, "eq", (_operand(other), 0))

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return ~(self == other)

    def __ge__(self, other: int) -> Condition:
        return Condition(self, "ge", (_operand(other), 0))

    def __lt__(self, other: int) -> Condition:
        return ~(self >= other)

    def __gt__(self, other: int) -> Condition:
        return self >= _operand(other) + 1

    def __le__(self, other: int) -> Condition:
        return ~(self > other)

    def __mod__(self, divisor: int) -> "_Remainder":
        return _Remainder(self, _checks.integer("the divisor of a condition", divisor))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class _Remainder:
    subject: Subject
    divisor: int

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        remainder = _checks.integer("the remainder of a condition", other, low=0)
        return Condition(self.subject, "mod", (self.divisor, remainder))

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]


def _operand(value: object) -> int:
    return _checks.integer("what a condition compares with", value, low=-_checks.MAX_I64)


def step_index() -> Subject:
    """Number of the step in its episode, from 0."""
    return Subject("step_index")


def steps_since_applied() -> Subject:
    """Steps since the pattern last made an item, this one included: 1 on the first step."""
    return Subject("steps_since_applied")


def history_length() -> Subject:
    """Steps that items can reach back to, this one included: 1 on the first step of an episode.

    It goes up to the number of steps that the furthest of the writer's patterns looks back, and begins anew after an
    episode, unless that ended with `clear=False`.
    """
    return Subject("history_length")


def column(source: Callable[[Any], Any]) -> Subject:
    """The newest value of a column: a single integer or bool; anything else never holds.

    Args:
        source: Picks the column from a nest like a step: `lambda s: s["life_lost"]`.
    """
    return Subject("column", source)


def end_of_episode() -> Condition:
    """Holds when the episode ends after this step: the pattern is tried once more then."""
    return Subject("end_of_episode") == 1


@dataclass(frozen=True, slots=True)
class TdError:
    """How TD errors in an item make its priority; from `td_error`."""

    source: Callable[[Any], Any]
    max_weight: float


def td_error(source: Callable[[Any], Any], *, max_weight: float = 0.9) -> TdError:
    """The priority `max_weight * max|x| + (1 - max_weight) * mean|x|` of the TD errors x in an item.

    Args:
        source: Picks their column from a nest like a step: `lambda s: s["td_error"]`. It holds one float32, float64,
            int32 or int64 per step; x are those in the item's last column that is made of it.
        max_weight: From 0, the mean alone, to 1, the largest alone. The default is R2D2's.

    Raises:
        InvalidArgumentError: `source` is no function, or `max_weight` is no number from 0 to 1.
    """
    if not callable(source):
        raise InvalidArgumentError(f"the source of TD errors must be a function of a step; got {source!r}")
    return TdError(source, _checks.fraction("`max_weight`", max_weight))


class _Slice(NamedTuple):
    leaf: int
    start: int
    stop: int
    step: int
    squeeze: bool


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Stands for a column in the function of a pattern."""

    index: int
    name: str

    def __getitem__(self, key: int | slice) -> "_Window":
        asked = f"`{self.name}[{_show(key)}]`"
        if isinstance(key, slice):
            step = 1 if key.step is None else _checks.integer(f"the step of {asked}", key.step)
            if key.start is None:
                raise InvalidArgumentError(f"{asked} has no start; a pattern counts back from the newest step: [-2:]")
            low = -_checks.MAX_I64
            start = _checks.integer(f"the start of {asked}", key.start, low=low)
            stop = 0 if key.stop is None else _checks.integer(f"the stop of {asked}", key.stop, low=low)
            if start >= 0 or stop > 0 or stop <= start:
                raise InvalidArgumentError(
                    f"{asked} must start before 0 and stop after its start, at most at 0 (the newest step): "
                    "[-3:] or [-3:-1]"
                )
            return _Window(_Slice(self.index, start, stop, step, squeeze=False))
        at = _checks.integer(f"the index of {asked}", key, low=-_checks.MAX_I64)
        if at >= 0:
            raise InvalidArgumentError(f"{asked} must be negative: a pattern counts back from the newest step, [-1]")
        return _Window(_Slice(self.index, at, at + 1, 1, squeeze=True))


@dataclass(frozen=True, slots=True)
class _Window:
    """A slice of a column; not a tuple, so that it is one leaf of an item."""

    slice: _Slice


def _show(key: object) -> str:
    if not isinstance(key, slice):
        return str(key)
    parts = ["" if part is None else str(part) for part in (key.start, key.stop)]
    return ":".join(parts if key.step is None else [*parts, str(key.step)])


@dataclass(frozen=True, slots=True)
class Pattern:
    """Makes an item for a table at every step where the conditions hold and the steps exist.

    Attributes:
        table: Name of the table.
        trajectory: From a nest like a step to the nest of an item. Its leaves are slices of columns.
            None: all columns of the last `num_steps` steps.
        num_steps: See `trajectory`; exactly one of the two is given.
        when: All of these must hold.
        priority: Of every item it makes: a number, or how it is found, see `td_error`.
    """

    table: str
    trajectory: Callable[[Any], Any] | None = None
    num_steps: int | None = None
    when: Sequence[Condition] = ()
    priority: float | TdError = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.table, str):
            raise InvalidArgumentError(f"`table` must be the name of a table; got {self.table!r}")
        about = f"pattern for table `{self.table}`: "
        if (self.trajectory is None) == (self.num_steps is None):
            raise InvalidArgumentError(f"{about}give either `trajectory` or `num_steps`")
        if self.num_steps is not None:
            object.__setattr__(self, "num_steps", _checks.integer(f"{about}`num_steps`", self.num_steps))
        elif not callable(self.trajectory):
            raise InvalidArgumentError(f"{about}`trajectory` must be a function of a step; got {self.trajectory!r}")
        if not isinstance(self.priority, TdError):
            object.__setattr__(self, "priority", _checks.number(f"{about}`priority`", self.priority))
        if isinstance(self.when, Condition | Subject | _Remainder):
            raise InvalidArgumentError(f"{about}`when` must be a list of conditions; got a single one")
        object.__setattr__(self, "when", tuple(self.when))
        for condition in self.when:
            _checks.instance_of(
                f"{about}each of `when`", condition, Condition, "a comparison such as step_index() % 4 == 0"
            )

    def _compile(self, structure: str, names: Sequence[str]) -> "_Compiled":
        leaves = [_Leaf(index, name) for index, name in enumerate(names)]
        step = _engram.unflatten(structure, leaves)
        if self.trajectory is None:
            window = slice(-(self.num_steps or 1), None)
            item = _engram.unflatten(structure, [leaf[window] for leaf in leaves])
        else:
            item = self._ask(self.trajectory, step, names)
        windows, item_names, item_structure = _engram.flatten(item)
        for window, name in zip(windows, item_names, strict=True):
            if not isinstance(window, _Window):
                raise InvalidArgumentError(
                    f"pattern for table `{self.table}`: `{name or 'the item'}` is a {_describe(window)}; each leaf "
                    'must be a slice of a column, such as s["obs"][-2:]'
                )
        conditions = []
        for condition in self.when:
            subject = condition.subject
            source = 0 if subject.source is None else self._pick(subject.source, step, names, "a column condition")
            conditions.append((subject.kind, source, condition.comparison, *condition.operands, condition.inverse))
        columns = [tuple(window.slice) for window in windows]
        priority: float | tuple[int, float]
        if isinstance(self.priority, TdError):
            leaf = self._pick(self.priority.source, step, names, "a priority of TD errors")
            made_of_it = [number for number, window in enumerate(windows) if window.slice.leaf == leaf]
            if not made_of_it:
                raise InvalidArgumentError(
                    f"pattern for table `{self.table}`: its priority is found in `{names[leaf]}`, of which its items "
                    "have no column"
                )
            priority = (made_of_it[-1], self.priority.max_weight)
        else:
            priority = self.priority
        return _Compiled(self.table, item_names, item_structure, columns, conditions, priority)

    def _pick(self, source: Callable[[Any], Any], step: Any, names: Sequence[str], who: str) -> int:  # noqa: ANN401, a nest
        leaf = self._ask(source, step, names)
        if not isinstance(leaf, _Leaf):
            raise InvalidArgumentError(f'{who} must pick one column, such as s["x"]; got a {_describe(leaf)}')
        return leaf.index

    def _ask(self, function: Callable[[Any], Any], step: Any, names: Sequence[str]) -> Any:  # noqa: ANN401, nests
        try:
            return function(step)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            columns = ", ".join(f"`{name}`" for name in names)
            raise InvalidArgumentError(
                f"pattern for table `{self.table}`: its function failed with {error!r} on a step with the columns "
                f"{columns}"
            ) from error


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What the native side reads, attribute by attribute."""

    table: str
    names: list[str]
    structure: str
    columns: list[tuple[int, int, int, int, bool]]
    conditions: list[tuple[str, int, str, int, int, bool]]
    priority: float | tuple[int, float]
    """The item's column of TD errors and the weight of their largest, where it is found."""


def _describe(value: object) -> str:
    return "whole column" if isinstance(value, _Leaf) else type(value).__name__


def checked_patterns(patterns: Iterable[Pattern]) -> list[Pattern]:
    """The patterns of a writer, checked."""
    if isinstance(patterns, Pattern):
        raise InvalidArgumentError("`patterns` must be a sequence of patterns; got a single one")
    chosen = list(patterns)
    if not chosen:
        raise InvalidArgumentError("`patterns` is empty; a writer without patterns makes no items")
    for pattern in chosen:
        _checks.instance_of("each of `patterns`", pattern, Pattern, "an engram.Pattern")
    return chosen


def pattern_compiler(patterns: Sequence[Pattern]) -> Callable[[str], list[_Compiled]]:
    """Compiles the patterns once a writer's first step has shown the structure."""

    def compile_all(structure: str) -> list[_Compiled]:
        names = _engram.names(structure)
        return [pattern._compile(structure, names) for pattern in patterns]  # noqa: SLF001, this module's own

    return compile_all
