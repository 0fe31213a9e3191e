"""Functions that create configs of structured writers: patterns of a reference step, conditions, priorities."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb._configs import Condition as ConditionProto
from engram.compat.reverb._configs import Config, ModuloEq, PatternNode, PatternStructure, Priority
from engram.nests import Nest

__all__ = [
    "Condition",
    "Pattern",
    "PatternTransform",
    "ReferenceStep",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "pattern_from_transform",
    "td_error",
]

Pattern: TypeAlias = Any
"""A nest of `PatternNode`s: the columns of an item and their structure."""

ReferenceStep: TypeAlias = Any
"""A nest with the structure of a step; slicing its leaves creates `PatternNode`s."""

PatternTransform: TypeAlias = Callable[[ReferenceStep], Pattern]
"""Returns a pattern, given a reference step."""


class _ReferenceLeaf:
    """A leaf of a reference step: `leaf[-1]` selects one step, `leaf[-3:]` several.

    As in Reverb, a slice without a start is a single step: `leaf[:-2]` is `leaf[-2]`.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def __getitem__(self, key: object) -> PatternNode:
        if isinstance(key, int):
            return PatternNode(flat_source_index=self._index, stop=key)
        if not isinstance(key, slice):
            # Reverb raises a ValueError, too.
            raise ValueError(f"Key must be int or slice but got {key} (type {type(key)}).")  # noqa: TRY004
        # As in Reverb, a node without a start is the single step at `stop`, also if it was created by a slice.
        return PatternNode(flat_source_index=self._index, start=key.start, stop=key.stop, step=key.step)


def create_reference_step(step_structure: Nest) -> ReferenceStep:
    """Returns a nest whose leaves can be sliced to create a pattern: `reference["obs"][-2:]` is the last two steps.

    Steps count back from the newest, -1. A slice creates a column `[T, ...]`, an integer a column without a time axis,
    `[...]`. As in Reverb, a slice without a start means a single step: `reference["obs"][:-2]` is
    `reference["obs"][-2]`. Both return a `PatternNode`, which is checked only when a writer is created. Other index
    types raise a `ValueError`, as do integers that do not fit 32 bits. Slice bounds that are not integers raise a
    `TypeError`.

    Args:
        step_structure: A nest with the structure of a step. Its leaves are ignored and may be None.

    Returns:
        The nest, with leaves to slice.
    """
    return _numbered(step_structure, _ReferenceLeaf)


def pattern_from_transform(step_structure: Nest, transform: PatternTransform) -> Pattern:
    """Returns the pattern that a function creates from a reference step.

    Args:
        step_structure: A nest with the structure of a step. Its leaves are ignored.
        transform: Called with the reference step. Its errors are raised unchanged.

    Returns:
        The result of `transform`, a nest of `PatternNode`s.
    """
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Pattern, table: str, conditions: Sequence[ConditionProto] = (), priority: Priority | None = None
) -> Config:
    """Creates the config of a structured writer that creates items of a pattern.

    Args:
        pattern: A nest of slices of a reference step.
        table: Name of the table to insert the items into.
        conditions: An item is created at every step at which all conditions are true and enough steps were appended.
            Default: no conditions.
        priority: The result of `constant_priority_fn` or `td_error`. Default: a constant priority of 1.

    Raises:
        TypeError: A leaf of the pattern is not a slice of a reference step, `table` is not text, a condition is not a
            `ConditionProto`, or `priority` is not a `Priority`. Other mistakes are reported when a writer is created.
    """
    return Config(
        flat=_nest.flatten(pattern),
        pattern_structure=PatternStructure(_nest.map_structure(lambda _: None, pattern)),
        table=_arguments.text("table", table),
        priority=constant_priority_fn(1.0) if priority is None else priority,
        conditions=list(conditions),
    )


class _ConditionBuilder:
    """The left side of a condition. Comparing it, or its remainder `builder % m`, with an integer gives a condition."""

    def __init__(self, condition: ConditionProto) -> None:
        self._condition = condition

    def _with(self, **fields: Any) -> ConditionProto:  # noqa: ANN401, numbers
        result = copy.deepcopy(self._condition)
        for name, value in fields.items():
            setattr(result, name, value)
        return result

    def _is_modulo(self) -> bool:
        return self._condition.HasField("mod_eq")

    def __mod__(self, cmp: int) -> "_ConditionBuilder":
        return _ConditionBuilder(self._with(mod_eq=ModuloEq(mod=cmp)))

    def __eq__(self, cmp: object) -> ConditionProto:  # type: ignore[override]
        if self._is_modulo():
            return self._with(mod_eq=ModuloEq(mod=self._condition.mod_eq.mod, eq=cmp))
        return self._with(eq=cmp)

    def __ne__(self, cmp: object) -> ConditionProto:  # type: ignore[override]
        result = self == cmp
        result.inverse = True
        return result

    def __ge__(self, cmp: int) -> ConditionProto:
        if self._is_modulo():
            raise ValueError("a remainder can be compared with == and != only")
        return self._with(ge=cmp)

    def __gt__(self, cmp: int) -> ConditionProto:
        return self >= cmp + 1

    def __lt__(self, cmp: int) -> ConditionProto:
        result = self >= cmp
        result.inverse = True
        return result

    def __le__(self, cmp: int) -> ConditionProto:
        return self < cmp + 1

    __hash__ = None  # type: ignore[assignment]


class Condition:
    """The numbers that conditions can compare.

        conditions = [Condition.steps_since_applied() >= 4, Condition.step_index() % 2 == 0]

    Comparing the results of `step_index`, `steps_since_applied` and `data` with a 32-bit integer by `==`, `!=`, `>`,
    `>=`, `<` or `<=` creates a condition. A remainder can be compared by `==` and `!=` only; other operators raise a
    `ValueError`, as do larger integers. A comparison with another type raises a `TypeError`.
    """

    @staticmethod
    def step_index() -> _ConditionBuilder:
        """Number of the newest step in its episode, from 0."""
        return _ConditionBuilder(ConditionProto(step_index=True))

    @staticmethod
    def steps_since_applied() -> _ConditionBuilder:
        """Number of steps since the config last created an item, including the newest step; 1 at the first step."""
        return _ConditionBuilder(ConditionProto(steps_since_applied=True))

    @staticmethod
    def is_end_episode() -> ConditionProto:
        """A condition that is true when `end_episode` is called after the newest step."""
        return ConditionProto(is_end_episode=True, eq=1)

    @staticmethod
    def data(step_structure: Nest) -> Nest:
        """The newest values of a step's leaves. A value must be a single integer or bool; others fulfil no condition.

        Args:
            step_structure: A nest with the structure of a step. Its leaves are ignored.

        Returns:
            The nest, with leaves to compare: for example `Condition.data(step)["is_last"] == 1`.
        """
        return _numbered(step_structure, lambda index: _ConditionBuilder(ConditionProto(flat_source_index=index)))


def constant_priority_fn(value: float) -> Priority:
    """Returns a constant priority for all items, `value`.

    Raises:
        TypeError: `value` is not a number.
    """
    return Priority(constant_fn=Priority.ConstantPriorityFn(value=_number("value", value)))


def td_error(
    max_priority_weight: float, step_structure: Nest, get_field_from_step_fn: Callable[[Any], Any]
) -> Priority:
    """Returns the priority `w * max|x| + (1 - w) * mean|x|`, where `x` is the item's column of TD errors.

    See section 2.3 of Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (2019),
    where w is called eta and is 0.9.

    Args:
        max_priority_weight: w, a number from 0 to 1. The range is not checked.
        step_structure: A nest with the structure of a step. Its leaves are ignored.
        get_field_from_step_fn: Returns the leaf with the TD error, given a nest with the structure of a step. The leaf
            must be a float32, float64, int32 or int64 scalar; items with other leaves are rejected. If an item has
            several columns of the leaf, the last one is used; without any, the priority is 0. Errors of the function
            are raised unchanged.

    Raises:
        TypeError: `max_priority_weight` is not a number, or the function does not return a leaf.
    """
    index = get_field_from_step_fn(_numbered(step_structure, int))
    if not hasattr(index, "__index__"):
        raise TypeError(f"`get_field_from_step_fn` must return a leaf of the step; got {_arguments.describe(index)}")
    return Priority(
        td_error=Priority.TDError(
            max_priority_weight=_number("max_priority_weight", max_priority_weight),
            flat_source_index=index,
        )
    )


def _numbered(structure: Nest, make: Callable[[int], Any]) -> Nest:
    """Returns a nest with what `make` returns for the number of each leaf, from 0."""
    return _nest.unflatten_as(structure, [make(index) for index in range(len(_nest.flatten(structure)))])


def _number(name: str, value: object) -> float:
    """Returns a number as a float. Bools are accepted, as in Reverb's messages."""
    return _arguments.number(name, int(value) if isinstance(value, bool | np.bool_) else value)
