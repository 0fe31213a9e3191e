"""Patterns: declarations of the items that a writer creates by itself.

    Pattern("replay", lambda s: {"obs": s["obs"][-2:], "action": s["action"][-1]}, when=[step_index() % 4 == 0])

The function receives a nest with the structure of a step, whose leaves represent the histories of the columns: `[-2:]`
selects the last two steps, `[-1]` the last one without a time axis. The function runs once, not once per step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engram import Nest, _checks, _engram
from engram._text import columns_text
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
    """Condition under which a pattern creates an item, such as `step_index() % 4 == 0`.

    Attributes:
        subject: Value that the condition compares.
        comparison: `"eq"`, `"ge"` or `"mod"`.
        operands: Number to compare with, and 0; for `"mod"`, divisor and remainder.
        inverse: True if the comparison must be false.
    """

    subject: "Subject"
    comparison: str
    operands: tuple[int, int] = (0, 0)
    inverse: bool = False

    def __invert__(self) -> "Condition":
        """Returns the opposite condition, such as `~end_of_episode()`."""
        return Condition(self.subject, self.comparison, self.operands, not self.inverse)

    def __bool__(self) -> bool:
        raise InvalidArgumentError(
            "a condition has no truth value, so `and`, `or`, `not` and chained comparisons are not possible: `when` is "
            "a list of conditions that must all be true, and `~` negates one; instead of `a or b`, use two patterns, "
            "with `when=[a]` and `when=[~a, b]`"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """Value that a condition compares; it is computed at each step.

    Compare it with an integer by `==`, `!=`, `<`, `<=`, `>` or `>=`, or its remainder by `% m == r` or `% m != r`.

    Attributes:
        kind: Name of the function that returned the subject: `"step_index"`, `"column"` and so on.
        source: For `column`, the function that selects the column from a nest like a step; otherwise None.
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
    return _checks.integer("the operand of a condition", value, low=-_checks.MAX_I64)


def step_index() -> Subject:
    """Returns a subject for the index of the step in its episode, from 0."""
    return Subject("step_index")


def steps_since_applied() -> Subject:
    """Returns a subject for the number of steps since the pattern last created an item, counted across episodes.

    Before the pattern's first item, it is the number of the writer's steps so far: 1 at the first step.
    """
    return Subject("steps_since_applied")


def history_length() -> Subject:
    """Returns a subject for the number of steps that items can refer to: 1 at the first step of an episode.

    It grows up to the largest number of steps that any of the writer's patterns refers to. It restarts after an
    episode, unless that ended with `clear=False`.
    """
    return Subject("history_length")


def column(source: Callable[[Any], Any]) -> Subject:
    """Returns a subject for the newest value of a column, a single integer or bool.

    If the column has no value at this step, or another kind of value, no condition on it is true, not even a negated
    one.

    Args:
        source: Function that selects the column from a nest like a step: `lambda s: s["life_lost"]`.
    """
    return Subject("column", source)


def end_of_episode() -> Condition:
    """Returns a condition that is true only when an episode ends: in `end_episode`, not yet in the last `append`.

    All patterns are then applied once more to the last step, except those that have created an item for it. With a
    `BatchedWriter`, this happens after the steps whose `episode_ends` is True.
    """
    return Subject("end_of_episode") == 1


@dataclass(frozen=True, slots=True)
class TdError:
    """Priority computed from the TD errors in an item; created by `td_error`.

    Attributes:
        source: Function that selects the column of TD errors from a nest like a step.
        max_weight: Weight of the largest TD error; the mean has the rest.
    """

    source: Callable[[Any], Any]
    max_weight: float


def td_error(source: Callable[[Any], Any], *, max_weight: float = 0.9) -> TdError:
    """Returns a priority `max_weight * max|x| + (1 - max_weight) * mean|x|` for the TD errors x in an item.

    Args:
        source: Function that selects the column of TD errors from a nest like a step: `lambda s: s["td_error"]`. The
            column has one float32, float64, int32 or int64 per step, and the item must contain a slice of it. If the
            item contains several slices of it, x are the values of the last one.
        max_weight: From 0 (the mean only) to 1 (the maximum only). The default is that of R2D2.

    Raises:
        InvalidArgumentError: `source` is not a function, or `max_weight` is not a number from 0 to 1.
    """
    if not callable(source):
        raise InvalidArgumentError(
            f"`source` of TD errors must be a function of a step; got {_checks.short_repr(source)}"
        )
    return TdError(source, _checks.fraction("`max_weight`", max_weight))


class _Slice(NamedTuple):
    """Steps of one column, as the native engine expects them.

    Attributes:
        column: Number of the column in a step.
        start: First step, below 0: steps count back from the newest, -1.
        stop: End of the slice, exclusive; 0 is the end of the newest step.
        step: Stride, above 0.
        squeeze: True if it is a single step without a time axis.
    """

    column: int
    start: int
    stop: int
    step: int
    squeeze: bool


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Represents a column of a step in the functions that a pattern has."""

    index: int  # number of the column
    name: str  # for error texts

    def __getitem__(self, key: int | slice) -> "_SliceMarker":
        expression = f"`{self.name}[{_show(key)}]`"
        if isinstance(key, slice):
            step = 1 if key.step is None else _checks.integer(f"the step of {expression}", key.step)
            if key.start is None:
                raise InvalidArgumentError(
                    f"{expression} needs a start that counts back from the newest step, such as [-2:]"
                )
            low = -_checks.MAX_I64
            start = _checks.integer(f"the start of {expression}", key.start, low=low)
            stop = 0 if key.stop is None else _checks.integer(f"the stop of {expression}", key.stop, low=low)
            if start >= 0 or stop > 0 or stop <= start:
                raise InvalidArgumentError(
                    f"{expression} must start before 0 and stop after its start, "
                    "at most at 0 (the end of the newest step), such as "
                    "[-3:] or [-3:-1]"
                )
            return _SliceMarker(_Slice(self.index, start, stop, step, squeeze=False))
        try:
            index = _checks.integer("", key, low=-_checks.MAX_I64)
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"the index of {expression} must be a negative integer or a slice of steps, such as [-1] or [-2:]"
            ) from None
        if index >= 0:
            raise InvalidArgumentError(
                f"the index of {expression} must be negative: it counts back from the newest step, such as [-1]"
            )
        return _SliceMarker(_Slice(self.index, index, index + 1, 1, squeeze=True))


@dataclass(frozen=True, slots=True)
class _SliceMarker:
    """Stands for a slice in the nest of an item. It is not a tuple, so that it is a single leaf."""

    slice: _Slice


def _show(key: object) -> str:
    if isinstance(key, tuple):
        return ", ".join(map(_show, key))
    if not isinstance(key, slice):
        return str(key)
    parts = ["" if part is None else str(part) for part in (key.start, key.stop)]
    return ":".join(parts if key.step is None else [*parts, str(key.step)])


@dataclass(frozen=True, slots=True)
class Pattern:
    """Declares an item that is created at every step at which all conditions are true and its slices have values.

    Exactly one of `trajectory` and `num_steps` is required.

    A pattern of `n + 1` steps makes n-step items. It stores rewards and discounts unchanged, so the learner multiplies
    each of the `n` discounts by gamma, also the last one: the target is
    `r_1 + gamma d_1 (r_2 + gamma d_2 (... (r_n + gamma d_n V(last observation))))`.

    Attributes:
        table: Name of the table.
        trajectory: Function that receives a nest like a step and returns the nest of an item, whose leaves are slices
            of columns.
        num_steps: The item has all columns of this many most recent steps.
        when: Conditions, all of which must be true. Default: none, so the pattern applies at every step.
        priority: Priority of the items: a number, or the result of `td_error`.
    """

    table: str
    trajectory: Callable[[Any], Any] | None = None
    num_steps: int | None = None
    when: Sequence[Condition] = ()
    priority: float | TdError = 1.0

    def __post_init__(self) -> None:
        _checks.table_name("`table`", self.table)
        about = f"pattern for table `{self.table}`: "
        if (self.trajectory is None) == (self.num_steps is None):
            raise InvalidArgumentError(f"{about}needs exactly one of `trajectory` and `num_steps`")
        if self.num_steps is not None:
            object.__setattr__(self, "num_steps", _checks.integer(f"{about}`num_steps`", self.num_steps))
        elif not callable(self.trajectory):
            raise InvalidArgumentError(
                f"{about}`trajectory` must be a function of a step; got {_checks.short_repr(self.trajectory)}"
            )
        if not isinstance(self.priority, TdError):
            object.__setattr__(self, "priority", _checks.number(f"{about}`priority`", self.priority))
        if isinstance(self.when, Condition):
            raise InvalidArgumentError(f"{about}`when` must be a list of conditions; got a single condition")
        if isinstance(self.when, Subject | _Remainder):
            raise InvalidArgumentError(
                f"{about}`when` must be a list of conditions, such as [step_index() % 4 == 0]; got a value that is not "
                "compared with anything"
            )
        object.__setattr__(self, "when", tuple(self.when))
        for condition in self.when:
            _checks.instance_of(
                f"{about}each of `when`", condition, Condition, "a comparison such as step_index() % 4 == 0"
            )

    def _compile(self, structure: str, names: Sequence[str]) -> "_CompiledPattern":
        leaves = [_Leaf(index, name) for index, name in enumerate(names)]
        step = _engram.unflatten(structure, leaves)
        if self.trajectory is None:
            newest = slice(-(self.num_steps or 1), None)
            item = _engram.unflatten(structure, [leaf[newest] for leaf in leaves])
        else:
            item = self._call(self.trajectory, step, names, "`trajectory`")
        markers, item_names, item_structure = _engram.flatten(item)
        for marker, name in zip(markers, item_names, strict=True):
            if not isinstance(marker, _SliceMarker):
                raise InvalidArgumentError(
                    f"pattern for table `{self.table}`: each leaf of the item must be a slice of a column, such as "
                    f's["obs"][-2:]; got {_describe(marker)}' + (f" for `{name}`" if name else "")
                )
        conditions = []
        for condition in self.when:
            subject = condition.subject
            column_number = (
                0
                if subject.source is None
                else self._select(subject.source, step, names, "the function of a `column` condition")
            )
            conditions.append(
                (subject.kind, column_number, condition.comparison, *condition.operands, condition.inverse)
            )
        slices = [tuple(marker.slice) for marker in markers]
        priority: float | tuple[int, float]
        if isinstance(self.priority, TdError):
            td_errors = self._select(self.priority.source, step, names, "`source` of TD errors")
            item_columns = [index for index, marker in enumerate(markers) if marker.slice.column == td_errors]
            if not item_columns:
                raise InvalidArgumentError(
                    f"pattern for table `{self.table}`: its priority needs the column `{names[td_errors]}`, which its "
                    "items do not contain; add a slice of it to the item"
                )
            priority = (item_columns[-1], self.priority.max_weight)
        else:
            priority = self.priority
        return _CompiledPattern(self.table, item_names, item_structure, slices, conditions, priority)

    def _select(self, source: Callable[[Any], Any], step: Nest, names: Sequence[str], what: str) -> int:
        leaf = self._call(source, step, names, what)
        if not isinstance(leaf, _Leaf):
            raise InvalidArgumentError(
                f'pattern for table `{self.table}`: {what} must select one column, such as s["x"]; '
                f"got {_describe(leaf)}"
            )
        return leaf.index

    def _call(self, function: Callable[[Any], Any], step: Nest, names: Sequence[str], what: str) -> Nest:
        try:
            return function(step)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            given = columns_text(names)
            if any(each.__name__ in str(error) for each in (_Leaf, _SliceMarker)):
                raise InvalidArgumentError(
                    f"pattern for table `{self.table}`: for a step with {given}, {what} can only select columns and "
                    'slices of them, such as s["obs"][-2:]; it cannot compute with them or read their attributes: '
                    "compute before `append`, or after sampling"
                ) from error
            raise InvalidArgumentError(
                f"pattern for table `{self.table}`: {what} raised {error!r} for a step with {given}"
            ) from error


@dataclass(frozen=True, slots=True)
class _CompiledPattern:
    """A pattern as the native engine reads it."""

    table: str
    names: list[str]
    """Names of the item's columns."""
    structure: str
    """The item's nest, as the engine encodes it."""
    columns: list[tuple[int, int, int, int, bool]]
    """For each column of the item, the fields of a `_Slice`."""
    conditions: list[tuple[str, int, str, int, int, bool]]
    """Kind of the subject, number of its column in a step (0 if it has none), comparison, operands, inverse."""
    priority: float | tuple[int, float]
    """A number; or the number of the item's column of TD errors, and `TdError.max_weight`."""


def _describe(value: object) -> str:
    if isinstance(value, _Leaf):
        return f"the whole column `{value.name}`" if value.name else "a whole column"
    if isinstance(value, _SliceMarker):
        return "a slice of a column"
    return type(value).__name__


def checked_patterns(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Returns the patterns of a writer, after checking them."""
    if isinstance(patterns, Pattern):
        raise InvalidArgumentError("`patterns` must be a sequence of patterns; got a single pattern")
    checked = _checks.elements("`patterns`", patterns, "a sequence of patterns")
    if not checked:
        raise InvalidArgumentError("`patterns` must contain at least one pattern; got none")
    for pattern in checked:
        _checks.instance_of("each of `patterns`", pattern, Pattern, "an engram.Pattern")
    return checked


def pattern_compiler(patterns: Sequence[Pattern]) -> Callable[[str], list[_CompiledPattern]]:
    """Returns a function that compiles the patterns for the structure of a writer's first step."""

    def compile_all(structure: str) -> list[_CompiledPattern]:
        names = _engram.names(structure)
        return [pattern._compile(structure, names) for pattern in patterns]  # noqa: SLF001, this module's own

    return compile_all
