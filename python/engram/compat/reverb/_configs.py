"""What a structured writer is configured with: records that are used like Reverb's protobuf messages."""

import copy
import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from engram.compat.reverb import _nest
from engram.compat.reverb._message import Message

__all__ = ["Condition", "Config", "ModuloEq", "PatternNode", "PatternStructure", "Priority", "config_problem"]

_MAX_INT32 = 2**31 - 1


class _ConfigMessage(Message):
    """A message whose parts may be written to before they are set, as `condition.mod_eq.mod = 2`; with lists."""

    _lists: ClassVar[dict[str, type]] = {}

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401, numbers, text and messages
        """Makes a message, whose fields can be set one by one, too.

        Args:
            **fields: Values by the names of fields. Those that are None, or not given, are not set: asking for one
                gives its default, which is 0, False, "", an empty list or an empty message.

        Raises:
            TypeError: A value has another type than its field.
            ValueError: There is no such field, or an integer has more than 32 bits.
        """
        object.__setattr__(self, "_parent", None)
        super().__init__(**fields)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, numbers, text and messages
        if name.startswith("_"):
            raise AttributeError(name)
        found = super().__getattr__(name)
        if name not in self._set:
            if isinstance(found, list):
                self._set[name] = found
            elif isinstance(found, _ConfigMessage):
                object.__setattr__(found, "_parent", (self, name))
        return found

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401, numbers, text and messages
        if name == "_set":
            object.__setattr__(self, name, value)
            return
        default = self._fields.get(name)
        if default is list and not isinstance(value, str | bytes | Mapping):
            value = list(value)
            for each in value:
                if not isinstance(each, self._lists[name]):
                    kind = self._lists[name].__name__
                    raise TypeError(f"{type(self).__name__}.{name} must be a list of {kind}; got {each!r}")
        elif type(default) is int:
            value = self._int32(name, value)
        elif type(default) is bool and value in (0, 1):
            value = bool(value)
        super().__setattr__(name, value)
        if self._parent is not None:
            parent, place = self._parent
            object.__setattr__(self, "_parent", None)
            setattr(parent, place, self)

    def _int32(self, name: str, value: object) -> int:
        try:
            if isinstance(value, np.bool_):
                return int(value)  # as True is 1
            found = operator.index(value)  # type: ignore[arg-type]  # what it is for
        except TypeError:
            raise TypeError(f"{type(self).__name__}.{name} must be an integer; got {value!r}") from None
        if not -_MAX_INT32 - 1 <= found <= _MAX_INT32:
            raise ValueError(f"{type(self).__name__}.{name} must be an integer of 32 bits; got {found}")
        return found

    def CopyFrom(self, other: Any) -> None:  # noqa: ANN401, N802, protobuf's name
        """Becomes a copy of another one.

        Args:
            other: A message of the same class.

        Raises:
            TypeError: It is of another class. This one is as it was.
        """
        if type(other) is not type(self):
            raise TypeError(f"a {type(self).__name__} cannot become a {type(other).__name__}")
        fields = copy.deepcopy(other._set)  # noqa: SLF001, of the same class
        self._set.clear()
        for name, value in fields.items():
            setattr(self, name, value)

    def ClearField(self, name: str) -> None:  # noqa: N802, protobuf's name
        """Unsets a field: it has its default again.

        Args:
            name: Of the field.

        Raises:
            ValueError: There is no such field.
        """
        if name not in self._fields:
            raise ValueError(f"{type(self).__name__} has no field `{name}`; it has {', '.join(self._fields)}")
        self._set.pop(name, None)

    def _shown_fields(self) -> dict[str, Any]:
        return {name: value for name, value in super()._shown_fields().items() if value != []}

    def __repr__(self) -> str:
        return "".join(_lines(self, ""))


def _lines(record: Message, indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in record._shown_fields().items():  # noqa: SLF001, this module's
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                lines += [f"{indent}{name} {{\n", *_lines(each, f"{indent}  "), f"{indent}}}\n"]
            else:
                plain = Message.__repr__(type(record)(**{name: each}))
                lines.append(f"{indent}{plain}")
    return lines


class PatternNode(_ConfigMessage):
    """Which steps of a leaf a column is made of, counted from the newest: `[start:stop:step]`, or the one at `stop`.

    Slices of a reference step make them, see `create_reference_step`. All fields are integers of 32 bits.

    Attributes:
        flat_source_index: Which leaf of a step, from 0, in the order in which a step is flattened.
        start: First step, below 0: -1 is the newest. Not set: the column is the step at `stop` alone, and has no time
            axis.
        stop: Where it ends, the step there not included: 0 or less. Not set, with `start`: at the newest step, that
            included.
        step: Distance of its steps, above 0; not set: 1.
    """

    _fields: ClassVar[dict[str, Any]] = {"flat_source_index": 0, "start": 0, "stop": 0, "step": 0}
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {f"optional_{name}": (name,) for name in ("start", "stop", "step")}

    def window(self) -> tuple[int, int, int, bool]:
        """Start, stop, step, and whether it is one step without a time axis."""
        if not self.HasField("start"):
            return self.stop, self.stop + 1, 1, True
        return self.start, self.stop, self.step or 1, False


class ModuloEq(_ConfigMessage):
    """A remainder. Its fields are integers of 32 bits.

    Attributes:
        mod: What is divided by, above 0.
        eq: What must remain, from 0.
    """

    _fields: ClassVar[dict[str, Any]] = {"mod": 0, "eq": 0}


class Condition(_ConfigMessage):
    """What must hold for a config to be applied: one number, and what it is compared with.

    `Condition` of the structured writer makes them in fewer words. Of the first five fields exactly one is set, and of
    `eq`, `ge` and `mod_eq` likewise. Numbers are integers of 32 bits.

    Attributes:
        step_index: bool: look at the number of the newest step in its episode, from 0.
        steps_since_applied: bool: look at the steps since the config last made an item, the newest included.
        buffer_length: bool: look at the steps that can be reached back to, the newest included.
        is_end_episode: bool: look at whether the episode has ended, with `eq` 1.
        flat_source_index: Look at the newest value of this leaf of a step, from 0: a single integer or bool.
        eq: It must be this.
        ge: It must be this or more.
        mod_eq: A `ModuloEq`: what must remain of it.
        inverse: bool: the opposite must hold.
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


class _ConstantPriorityFn(_ConfigMessage):
    """Always the same.

    Attributes:
        value: float: the priority.
    """

    _fields: ClassVar[dict[str, Any]] = {"value": 0.0}


class _TDError(_ConfigMessage):
    """From the item's column of a leaf, see `td_error`.

    Attributes:
        max_priority_weight: float: what the greatest error counts, from 0 to 1; the mean counts the rest.
        flat_source_index: int: which leaf of a step, from 0.
    """

    _fields: ClassVar[dict[str, Any]] = {"max_priority_weight": 0.0, "flat_source_index": 0}


class Priority(_ConfigMessage):
    """How the priority of an item is found. One of its fields is set.

    Attributes:
        constant_fn: A message whose `value` is a float: all items have this priority.
        td_error: A message with `max_priority_weight`, a float, and `flat_source_index`, an int; see `td_error`.
    """

    ConstantPriorityFn = _ConstantPriorityFn
    TDError = _TDError
    _fields: ClassVar[dict[str, Any]] = {"constant_fn": _ConstantPriorityFn, "td_error": _TDError}
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {"priority_fn": ("constant_fn", "td_error")}


class PatternStructure:
    """How the columns of an item nest.

    Attributes:
        nest: The nest, its leaves None.
    """

    def __init__(self, nest: Any = None) -> None:  # noqa: ANN401, a nest
        self.nest = nest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternStructure) and _outline(self.nest) == _outline(other.nest)

    __hash__ = None  # type: ignore[assignment]  # nests have none

    def __repr__(self) -> str:
        return repr(self.nest)


def _outline(nest: Any) -> Any:  # noqa: ANN401, nests
    if isinstance(nest, Mapping):
        return ("mapping", [(key, _outline(nest[key])) for key in sorted(nest)])
    if _nest.is_namedtuple(nest):
        return (type(nest).__name__, nest._fields, [_outline(each) for each in nest])
    if isinstance(nest, list | tuple):
        return (type(nest).__name__, [_outline(each) for each in nest])
    return None


class Config(_ConfigMessage):
    """What items a structured writer makes, and when. `create_config` makes them.

    Attributes:
        flat: A list of `PatternNode`: the columns of an item.
        pattern_structure: How they nest; not set: as a flat list.
        table: Where the items go.
        priority: A `Priority`: how an item's priority is found.
        conditions: A list of `ConditionProto`: all must hold for an item to be made.
    """

    _fields: ClassVar[dict[str, Any]] = {
        "flat": list,
        "pattern_structure": PatternStructure,
        "table": "",
        "priority": Priority,
        "conditions": list,
    }
    _lists: ClassVar[dict[str, type]] = {"flat": PatternNode, "conditions": Condition}


def config_problem(config: Config) -> str | None:
    """Why a config cannot be used, or None."""
    if not isinstance(config, Config):
        return f"it is a {type(config).__name__}, not a Config."
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
