"""Configs of structured writers: plain classes with the interface of Reverb's protobuf messages."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from engram.compat.reverb import _nest
from engram.compat.reverb._message import Message
from engram.nests import Nest

__all__ = ["Condition", "Config", "ModuloEq", "PatternNode", "PatternStructure", "Priority", "check_configs"]


class _ConfigMessage(Message):
    _int_bits = 32


class PatternNode(_ConfigMessage):
    """The steps of a leaf that make up a column: the slice `[start:stop:step]`, or the single step at `stop`.

    Steps count back from the newest, -1. Slicing a reference step creates nodes, see `create_reference_step`. All
    fields are 32-bit integers.

    Attributes:
        flat_source_index: Number of the leaf in a flattened step, from 0.
        start: First step, below 0. If unset, the column is the single step at `stop`, without a time axis.
        stop: End of the slice, exclusive, at most 0. If unset while `start` is set, the slice ends with the newest
            step.
        step: Stride, above 0. If unset, 1.
    """

    _fields: ClassVar[dict[str, Any]] = {"flat_source_index": 0, "start": 0, "stop": 0, "step": 0}
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {f"optional_{name}": (name,) for name in ("start", "stop", "step")}

    def window(self) -> tuple[int, int, int, bool]:
        """Returns start, stop, step, and whether the column is a single step without a time axis."""
        if not self.HasField("start"):
            return self.stop, self.stop + 1, 1, True
        return self.start, self.stop, self.step or 1, False


class ModuloEq(_ConfigMessage):
    """A divisor and the remainder that is required. Both are 32-bit integers.

    Attributes:
        mod: Divisor, above 0.
        eq: Required remainder, at least 0.
    """

    _fields: ClassVar[dict[str, Any]] = {"mod": 0, "eq": 0}


class Condition(_ConfigMessage):
    """A condition under which a config creates an item: a number (the left side) and a comparison.

    `structured.Condition` creates these in fewer words. Exactly one of the first five fields, the left side, is set,
    and exactly one of `eq`, `ge` and `mod_eq`. Numbers are 32-bit integers.

    Attributes:
        step_index: bool: compare the number of the newest step in its episode, from 0.
        steps_since_applied: bool: compare the number of steps since the config last created an item, including the
            newest.
        buffer_length: bool: compare the number of steps that items can include, among them the newest. It grows up to
            the longest pattern of the writer.
        is_end_episode: bool: compare whether the episode has ended. Requires `eq=1` and no `inverse`.
        flat_source_index: Number of a leaf in a flattened step, from 0: compare the leaf's newest value. The condition
            is false, also with `inverse`, if the value is not a single integer or bool.
        eq: The left side must equal this.
        ge: The left side must be at least this.
        mod_eq: A `ModuloEq`: the left side must have this remainder.
        inverse: bool: negates the comparison.
    """

    _fields: ClassVar[dict[str, Any]] = {
        "step_index": False,
        "steps_since_applied": False,
        "buffer_length": False,
        "is_end_episode": False,
        "flat_source_index": 0,
        "eq": 0,
        "ge": 0,
        "mod_eq": ModuloEq,
        "inverse": False,
    }
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "left": ("step_index", "steps_since_applied", "buffer_length", "is_end_episode", "flat_source_index"),
        "cmp": ("eq", "ge", "mod_eq"),
    }


class Priority(_ConfigMessage):
    """How the priority of an item is computed. Exactly one field is set.

    Attributes:
        constant_fn: A message with `value`, a float: the priority of all items.
        td_error: A message with `max_priority_weight`, a float, and `flat_source_index`, an int; see `td_error`.
    """

    class ConstantPriorityFn(_ConfigMessage):
        """A constant priority.

        Attributes:
            value: float: the priority.
        """

        _fields: ClassVar[dict[str, Any]] = {"value": 0.0}

    class TDError(_ConfigMessage):
        """A priority computed from the item's column of a leaf, see `td_error`.

        Attributes:
            max_priority_weight: float: weight of the largest absolute error, from 0 to 1. The mean has the remaining
                weight.
            flat_source_index: int: number of the leaf in a flattened step, from 0.
        """

        _fields: ClassVar[dict[str, Any]] = {"max_priority_weight": 0.0, "flat_source_index": 0}

    _fields: ClassVar[dict[str, Any]] = {"constant_fn": ConstantPriorityFn, "td_error": TDError}
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {"priority_fn": ("constant_fn", "td_error")}


class PatternStructure:
    """The nest structure of an item's columns.

    Attributes:
        nest: A nest with None as leaves.
    """

    def __init__(self, nest: Nest | None = None) -> None:
        self.nest = nest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternStructure) and _outline(self.nest) == _outline(other.nest)

    __hash__ = None  # type: ignore[assignment]  # nests are not hashable

    def __repr__(self) -> str:
        return repr(self.nest)


def _outline(nest: Nest) -> Nest:
    children = _nest.children(nest)
    if children is None:
        return None
    kind = "mapping" if isinstance(nest, Mapping) else type(nest).__name__
    return (kind, [(key, _outline(child)) for key, child in children])


class Config(_ConfigMessage):
    """The items that a structured writer creates, and when. `create_config` creates configs.

    Attributes:
        flat: A list of `PatternNode`: the columns of an item.
        pattern_structure: The nest structure of the columns. If unset, the columns are a flat list.
        table: Name of the table that the items are inserted into.
        priority: A `Priority`: how an item's priority is computed.
        conditions: A list of `ConditionProto`. An item is created only if all are true.
    """

    _fields: ClassVar[dict[str, Any]] = {
        "flat": list,
        "pattern_structure": PatternStructure,
        "table": "",
        "priority": Priority,
        "conditions": list,
    }
    _lists: ClassVar[dict[str, type]] = {"flat": PatternNode, "conditions": Condition}


def check_configs(configs: Sequence[Config], *, with_priority: bool) -> None:
    """Raises a ValueError with the position, from 0, of an invalid config. `with_priority`: it must have a priority."""
    for number, config in enumerate(configs):
        problem = _config_problem(config)
        if problem is None and with_priority and config.priority.WhichOneof("priority_fn") is None:
            problem = "`priority` must set `constant_fn` or `td_error`."
        if problem is not None:
            raise ValueError(f"Invalid configuration at position {number}: {problem}")


def _config_problem(config: Config) -> str | None:
    if not isinstance(config, Config):
        return f"must be a Config; got {type(config).__name__}."
    if not config.flat:
        return "`flat` must not be empty."
    if not config.table:
        return "`table` must not be empty."
    problems = [_node_problem(node) for node in config.flat] + [_condition_problem(each) for each in config.conditions]
    return next((problem for problem in problems if problem is not None), None)


def _node_problem(node: PatternNode) -> str | None:  # noqa: PLR0911, one per rule
    has_start, has_stop, has_step = (node.HasField(name) for name in ("start", "stop", "step"))
    if node.flat_source_index < 0:
        return f"`flat_source_index` must be >= 0 but got {node.flat_source_index}."
    if not (has_start or has_stop):
        return "At least one of `start` and `stop` must be specified."
    if has_start and node.start >= 0:
        return f"`start` must be < 0 but got {node.start}."
    if has_stop and node.stop > 0:
        return f"`stop` must be <= 0 but got {node.stop}."
    if has_start and has_stop and node.stop <= node.start:
        return f"`stop` ({node.stop}) must be > `start` ({node.start}) when both are specified."
    if not has_start and node.stop >= 0:
        return f"`stop` must be < 0 when `start` isn't set but got {node.stop}."
    if has_step and node.step <= 0:
        return f"`step` must be > 0 but got {node.step}."
    if has_step and not has_start:
        return "`step` must only be set when `start` is set."
    return None


def _condition_problem(condition: Condition) -> str | None:  # noqa: PLR0911, one per rule
    left, comparison = condition.WhichOneof("left"), condition.WhichOneof("cmp")
    if left is None:
        return "Conditions must specify a value for `left`."
    if comparison is None:
        return "Conditions must specify a value for `cmp`."
    if left == "flat_source_index" and condition.flat_source_index < 0:
        return f"flat_source_index must be >= 0 but got {condition.flat_source_index}."
    if left == "is_end_episode" and (comparison != "eq" or condition.eq != 1 or condition.inverse):
        return "Condition must use `eq=1` when using `is_end_episode`."
    if comparison == "mod_eq":
        if condition.mod_eq.mod <= 0:
            return f"`mod_eq.mod` must be > 0 but got {condition.mod_eq.mod}."
        if condition.mod_eq.eq < 0:
            return f"`mod_eq.eq` must be >= 0 but got {condition.mod_eq.eq}."
    return None
