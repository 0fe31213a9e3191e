"""Configs of structured writers, made in Python: patterns of a reference step, conditions, priorities."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb._configs import Condition as ConditionProto
from engram.compat.reverb._configs import Config, ModuloEq, PatternNode, PatternStructure, Priority

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
"""A nest of `PatternNode`s: what the columns of an item are made of, and how they nest."""

ReferenceStep: TypeAlias = Any
"""A nest like a step, to make patterns of."""

PatternTransform: TypeAlias = Callable[[ReferenceStep], Pattern]
"""Makes a pattern of a reference step."""


class _ReferenceLeaf:
    """Stands for a leaf of a step while a pattern is written: `leaf[-1]` is a step of it, `leaf[-3:]` are several."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __getitem__(self, key: Any) -> PatternNode:  # noqa: ANN401, checked here
        if isinstance(key, int):
            return PatternNode(flat_source_index=self._index, stop=key)
        if not isinstance(key, slice):
            # A ValueError, as Reverb's.
            raise ValueError(f"Key must be int or slice but got {key} (type {type(key)}).")  # noqa: TRY004
        return PatternNode(flat_source_index=self._index, start=key.start, stop=key.stop, step=key.step)


def create_reference_step(step_structure: Any) -> ReferenceStep:  # noqa: ANN401, nests
    """A nest like a step, to make patterns of: `reference["obs"][-2:]` stands for the last two of them.

    Steps are counted from the newest, -1. A slice makes a column `[T, ...]`, an integer one without a time axis,
    `[...]`. Both are `PatternNode`s, and not checked before a writer is made of them. Other indices raise a
    `ValueError`, as do integers of more than 32 bits; slices of anything but integers a `TypeError`.

    Args:
        step_structure: A nest like a step; its leaves may be anything, such as None.

    Returns:
        The nest, with leaves to slice.
    """
    return _nest.unflatten_as(
        step_structure, [_ReferenceLeaf(index) for index in range(len(_nest.flatten(step_structure)))]
    )


def pattern_from_transform(step_structure: Any, transform: PatternTransform) -> Pattern:  # noqa: ANN401, nests
    """The pattern that a function makes of a reference step.

    Args:
        step_structure: A nest like a step; its leaves may be anything.
        transform: Given the reference step. What it raises is passed on.

    Returns:
        What it returns, a nest of `PatternNode`s.
    """
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Pattern,
    table: str,
    conditions: Sequence[ConditionProto] = (),
    priority: Priority | None = None,
) -> Config:
    """What a structured writer needs to make items of a pattern.

    Args:
        pattern: A nest of slices of a reference step.
        table: Where its items go.
        conditions: All must hold for an item to be made; none: it is made at every step, once there are enough.
        priority: How its priority is found, `constant_priority_fn` or `td_error`; None: it is 1.

    Raises:
        TypeError: A leaf of the pattern is no slice of a reference step, `table` no text, a condition no
            `ConditionProto`, or `priority` no `Priority`. What else may be wrong is found when a writer is made of it.
    """
    return Config(
        flat=_nest.flatten(pattern),
        pattern_structure=PatternStructure(_nest.map_structure(lambda _: None, pattern)),
        table=_arguments.text("table", table),
        priority=constant_priority_fn(1.0) if priority is None else priority,
        conditions=list(conditions),
    )


class _ConditionBuilder:
    """What a condition looks at: compare it with an integer, or its remainder: `builder % m == r`."""

    def __init__(self, condition: ConditionProto) -> None:
        self._condition = condition

    def _with(self, **fields: Any) -> ConditionProto:  # noqa: ANN401, numbers
        made = copy.deepcopy(self._condition)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def _is_modulo(self) -> bool:
        return self._condition.HasField("mod_eq")

    def __mod__(self, cmp: int) -> "_ConditionBuilder":
        return _ConditionBuilder(self._with(mod_eq=ModuloEq(mod=cmp)))

    def __eq__(self, cmp: object) -> ConditionProto:  # type: ignore[override]
        if self._is_modulo():
            return self._with(mod_eq=ModuloEq(mod=self._condition.mod_eq.mod, eq=cmp))
        return self._with(eq=cmp)

    def __ne__(self, cmp: object) -> ConditionProto:  # type: ignore[override]
        made = self == cmp
        made.inverse = True
        return made

    def __ge__(self, cmp: int) -> ConditionProto:
        if self._is_modulo():
            raise ValueError("a remainder can be compared with == and != only")
        return self._with(ge=cmp)

    def __gt__(self, cmp: int) -> ConditionProto:
        return self >= cmp + 1

    def __lt__(self, cmp: int) -> ConditionProto:
        made = self >= cmp
        made.inverse = True
        return made

    def __le__(self, cmp: int) -> ConditionProto:
        return self < cmp + 1

    __hash__ = None  # type: ignore[assignment]


class Condition:
    """What conditions can look at.

        conditions = [Condition.steps_since_applied() >= 4, Condition.step_index() % 2 == 0]

    What `step_index`, `steps_since_applied` and `data` return becomes a condition when it is compared with an integer
    of 32 bits, by `==`, `!=`, `>`, `>=`, `<` or `<=`; or its remainder, by `==` or `!=`. A comparison with anything
    else is a `TypeError`, with another integer a `ValueError`, as is one of a remainder by another operator.
    """

    @staticmethod
    def step_index() -> _ConditionBuilder:
        """Number of the newest step in its episode, from 0: compare it."""
        return _ConditionBuilder(ConditionProto(step_index=True))

    @staticmethod
    def steps_since_applied() -> _ConditionBuilder:
        """Steps since the config last made an item, this one included, 1 on the first step: compare it."""
        return _ConditionBuilder(ConditionProto(steps_since_applied=True))

    @staticmethod
    def is_end_episode() -> ConditionProto:
        """A condition that holds when the episode ends after this step: the config is tried once more then."""
        return ConditionProto(is_end_episode=True, eq=1)

    @staticmethod
    def data(step_structure: Any) -> Any:  # noqa: ANN401, nests
        """The newest value of each leaf: compare one. It must be a single integer or bool; anything else never holds.

        Args:
            step_structure: A nest like a step; its leaves may be anything.

        Returns:
            The nest, with leaves to compare, such as `Condition.data(step)["is_last"] == 1`.
        """
        count = len(_nest.flatten(step_structure))
        made = [_ConditionBuilder(ConditionProto(flat_source_index=index)) for index in range(count)]
        return _nest.unflatten_as(step_structure, made)


def constant_priority_fn(value: float) -> Priority:
    """The same priority for all items.

    Args:
        value: The priority, a number.

    Raises:
        TypeError: It is no number.
    """
    return Priority(constant_fn=Priority.ConstantPriorityFn(value=_checked_set("value", value)))


def td_error(
    max_priority_weight: float,
    step_structure: Any,  # noqa: ANN401, a nest
    get_field_from_step_fn: Callable[[Any], Any],
) -> Priority:
    """The priority `w * max|x| + (1 - w) * mean|x|` of an item, over its column `x` of a leaf of the step.

    This is section 2.3 of Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning"
    (2019), where w is called eta, and is 0.9.

    Args:
        max_priority_weight: w, a number from 0 to 1, which is not checked.
        step_structure: A nest like a step; its leaves may be anything.
        get_field_from_step_fn: Picks the leaf, the TD error: a float32, float64, int32 or int64 scalar per step; an
            item of another one is refused. The last column made of it counts; an item without one has the priority 0.
            What it raises is passed on.

    Raises:
        TypeError: w is no number, or what is picked is no leaf.
    """
    indices = _nest.unflatten_as(step_structure, list(range(len(_nest.flatten(step_structure)))))
    index = get_field_from_step_fn(indices)
    return Priority(
        td_error=Priority.TDError(
            max_priority_weight=_checked_set("max_priority_weight", max_priority_weight),
            flat_source_index=_checked_set("get_field_from_step_fn(step)", index),
        )
    )


def _checked_set(name: str, value: Any) -> Any:  # noqa: ANN401, a number
    """What is not None, which a message takes for nothing given."""
    if value is None:
        raise TypeError(f"`{name}` must be a number; got None")
    return value
