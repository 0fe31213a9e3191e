"""The items that a `VectorWriter` creates: n-step transitions, sequences and episodes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from engram import Nest, _checks, _engram
from engram.errors import InvalidArgumentError
from engram.specs import ArraySpec

__all__ = ["AtEnd", "CompiledItems", "Episodes", "Items", "Sequences", "Transitions", "checked_items", "space_specs"]

MAX_N_STEP = 10_000
"""Maximum of `n_step`."""

AtEnd: TypeAlias = Literal["pad", "cut", "drop"]
"""How a sequence that reaches the end of its episode before it is full is stored; see `Sequences`."""


class _Column(NamedTuple):
    """A column of an item, as the native engine expects it."""

    source: str  # "observation"; "step", for columns of the action and the extras; or the name of a single column
    leaf: int  # number of the column in its source, where the extras follow the action; 0 for a single column
    part: Literal["first", "last", "all"]


class _Marker:
    """Stands for a column in the nest of an item. It is not a tuple, so that it is a single leaf."""

    def __init__(self, source: str, leaf: int = 0, part: Literal["first", "last", "all"] = "all") -> None:
        self.column = _Column(source, leaf, part)


@dataclass(frozen=True, slots=True)
class CompiledItems:
    """Items as the native engine reads them."""

    table: str
    priority: float
    names: list[str]
    """Names of the item's columns."""
    structure: str
    """The item's nest, as the engine encodes it."""
    columns: list[_Column]
    discount: float | None
    """None for sequences."""
    length: int
    """Maximum number of transitions of an item."""
    period: int
    at_end: str


class _Nests(NamedTuple):
    """Structures of a step's observations, actions and extras, as the engine encodes them."""

    obs: str
    action: str
    extras: str | None

    def markers(self, name: str, part: Literal["first", "last", "all"]) -> Nest:
        """Returns the nest `name`, a field of this tuple, with a marker for each column.

        The engine has the action and the extras as one source, "step": the extras follow the columns of the action.
        """
        structure = getattr(self, name)
        offset = len(_engram.names(self.action)) if name == "extras" else 0
        source = "observation" if name == "obs" else "step"
        columns = range(len(_engram.names(structure)))
        return _engram.unflatten(structure, [_Marker(source, offset + column, part) for column in columns])


class _ItemKind(ABC):
    """What all kinds of items share."""

    table: str
    priority: float

    def _compile(self, obs: str, action: str, extras: str | None) -> CompiledItems:
        """Returns the items for these structures of the observations, actions and extras of a step."""
        markers, names, structure = _engram.flatten(self._item(_Nests(obs, action, extras)))
        discount, length, period, at_end = self._form()
        columns = [marker.column for marker in markers]
        return CompiledItems(self.table, self.priority, names, structure, columns, discount, length, period, at_end)

    def signature(self, envs: Any, extras: Nest | None = None) -> dict[str, Any]:  # noqa: ANN401, a vector environment
        """Returns the signature of the items, for `Table`. Time axes have any size if the items differ in length.

        Args:
            envs: Gymnasium vector environment, whose `single_observation_space` and `single_action_space` are used.
            extras: Nest of `ArraySpec`, one environment's part of the extras, without a time axis. Default: none.

        Raises:
            InvalidArgumentError: `envs` lacks these spaces, or a space has no fixed shape and dtype.
        """
        return self._signature(*_environment_specs(envs), extras)

    def _declared(self, signature: Nest | None, name: str) -> Nest | None:
        """Returns the specs of one environment's part of an argument, as the table's signature has them; or None."""
        if not isinstance(signature, Mapping) or name not in signature:
            return None
        has_time_axis = self._form()[0] is None
        return _without_time_axis(signature[name]) if has_time_axis else signature[name]

    @abstractmethod
    def _signature(self, obs: Nest, action: Nest, extras: Nest) -> dict[str, Any]:
        """Returns the signature for the specs of an observation, an action and the extras of one environment."""

    @abstractmethod
    def _item(self, nests: _Nests) -> Nest:
        """Returns the nest of an item, whose leaves are markers."""

    @abstractmethod
    def _form(self) -> tuple[float | None, int, int, str]:
        """Returns the discount (None for sequences), the length, the period and `at_end`."""

    def _check(self) -> str:
        """Checks `table` and `priority`, which all kinds of items have; returns the beginning of error texts."""
        _checks.table_name("`table`", self.table)
        about = f"{type(self).__name__} for table `{self.table}`: "
        object.__setattr__(self, "priority", _checks.number(f"{about}`priority`", self.priority))
        return about


@dataclass(frozen=True, slots=True)
class Transitions(_ItemKind):
    """An item for each step: the up to `n_step` transitions that begin with it, combined into one.

    With rewards `r`, and `k` the smaller of `n_step` and the number of steps to the end of the episode, the columns are

    - `obs`: the observation, and `action`: the action taken on it;
    - `reward`: `r_1 + discount * r_2 + ... + discount**(k-1) * r_k`, float32;
    - `discount`: `discount**k`, or 0 if the episode terminated within the `k` steps, float32;
    - `next_obs`: the observation after the `k` steps, which is the last one of the episode at its end;
    - `extras`, if the writer is given any: those of the first step.

    The learner's target is `reward + discount * V(next_obs)`. A truncated episode does not have discount 0, so the
    target includes the value of its last observation.

    Attributes:
        table: Name of the table.
        n_step: Maximum number of steps of an item, at most 10,000. The larger it is, the more time and memory the
            writer needs per step.
        discount: Discount per step, from 0 to 1.
        priority: Priority of the items.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    table: str
    _: KW_ONLY
    n_step: int = 1
    discount: float
    priority: float = 1.0

    def __post_init__(self) -> None:
        about = self._check()
        object.__setattr__(self, "n_step", _checks.integer(f"{about}`n_step`", self.n_step, high=MAX_N_STEP))
        object.__setattr__(self, "discount", _checks.fraction(f"{about}`discount`", self.discount))

    def _signature(self, obs: Nest, action: Nest, extras: Nest) -> dict[str, Any]:
        scalar = ArraySpec((), "float32")
        columns = {"obs": obs, "action": action, "reward": scalar, "discount": scalar, "next_obs": obs}
        return columns if extras is None else {**columns, "extras": extras}

    def _item(self, nests: _Nests) -> Nest:
        item = {
            "obs": nests.markers("obs", "first"),
            "action": nests.markers("action", "first"),
            "reward": _Marker("return", part="last"),
            "discount": _Marker("discount", part="last"),
            "next_obs": nests.markers("obs", "last"),
        }
        return item if nests.extras is None else {**item, "extras": nests.markers("extras", "first")}

    def _form(self) -> tuple[float | None, int, int, str]:
        return self.discount, self.n_step, 1, "cut"


class _SequenceItems(_ItemKind):
    """What sequences and episodes share."""

    def _signature(self, obs: Nest, action: Nest, extras: Nest) -> dict[str, Any]:
        _, full_length, _, at_end = self._form()
        length = None if at_end == "cut" else full_length
        obs_length = None if length is None else length + 1
        flag = ArraySpec((length,), "bool")
        columns = {
            "obs": _with_time_axis(obs, obs_length),
            "action": _with_time_axis(action, length),
            "reward": ArraySpec((length,), "float32"),
            "terminated": flag,
            "truncated": flag,
            "valid": flag,
        }
        return columns if extras is None else {**columns, "extras": _with_time_axis(extras, length)}

    def _item(self, nests: _Nests) -> Nest:
        item = {name: nests.markers(name, "all") for name in ("obs", "action")}
        item |= {name: _Marker(name) for name in ("reward", "terminated", "truncated", "valid")}
        return item if nests.extras is None else {**item, "extras": nests.markers("extras", "all")}


@dataclass(frozen=True, slots=True)
class Sequences(_SequenceItems):
    """Items of `length` consecutive steps of an episode.

    With `T = length`, the columns are

    - `obs` `[T + 1, ...]`: the observations before each step, and the one after the last step;
    - `action` and, if the writer is given any, `extras` `[T, ...]`;
    - `reward` `[T]`, float32;
    - `terminated` and `truncated` `[T]`: True at the step that ended the episode;
    - `valid` `[T]`: False in padding.

    Sequences never cross the end of an episode. They begin every `period` steps from its start. At its end, the first
    sequence that does not fit is treated according to `at_end`, unless its steps are in a sequence of full length
    already:

    - `"pad"`: zeros follow the last step and the last observation. These steps have `valid` False.
    - `"cut"`: the item is shorter. `Store.sample(..., pad=True)` pads it to the longest of the batch; `valid` is False
      there.
    - `"drop"`: there is no item. Episodes shorter than `length` are not stored at all.

    Attributes:
        table: Name of the table.
        length: Number of steps of an item.
        period: Number of steps from the start of a sequence to the start of the next. Default: `length`.
        at_end: `"pad"`, `"cut"` or `"drop"`.
        priority: Priority of the items.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    table: str
    _: KW_ONLY
    length: int
    period: int | None = None
    at_end: AtEnd = "pad"
    priority: float = 1.0

    def __post_init__(self) -> None:
        about = self._check()
        object.__setattr__(self, "length", _checks.integer(f"{about}`length`", self.length, high=_checks.MAX_I32))
        if self.period is not None:
            object.__setattr__(self, "period", _checks.integer(f"{about}`period`", self.period, high=_checks.MAX_I32))
        _checks.choice(f"{about}`at_end`", self.at_end, ("pad", "cut", "drop"))

    def _form(self) -> tuple[float | None, int, int, str]:
        return None, self.length, self.period or self.length, self.at_end


@dataclass(frozen=True, slots=True)
class Episodes(_SequenceItems):
    """An item for each episode, with the columns of `Sequences`, whose `T` is the number of steps of the episode.

    An episode longer than `max_length` becomes several items: each but the last has `max_length` steps, and only the
    last one ends with `terminated` or `truncated` True.

    Attributes:
        table: Name of the table.
        max_length: Maximum number of steps of an item. The writer keeps this many steps of each environment in memory.
        priority: Priority of the items.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    table: str
    _: KW_ONLY
    max_length: int
    priority: float = 1.0

    def __post_init__(self) -> None:
        about = self._check()
        length = _checks.integer(f"{about}`max_length`", self.max_length, high=_checks.MAX_I32)
        object.__setattr__(self, "max_length", length)

    def _form(self) -> tuple[float | None, int, int, str]:
        return None, self.max_length, self.max_length, "cut"


Items: TypeAlias = Transitions | Sequences | Episodes
"""The kinds of items."""


def checked_items(items: Iterable[Items]) -> list[Items]:
    """Returns the items of a writer, after checking them."""
    if isinstance(items, Items):
        raise InvalidArgumentError(
            f"`items` must be a sequence, such as [{type(items).__name__}(...)]; got a single one"
        )
    checked = _checks.elements(
        "`items`", items, "a sequence of Transitions, Sequences and Episodes of engram.gymnasium"
    )
    if not checked:
        raise InvalidArgumentError("`items` must contain at least one of Transitions, Sequences and Episodes; got none")
    for each in checked:
        hint = "a Transitions, Sequences or Episodes of engram.gymnasium"
        if type(each).__module__.startswith("engram.buffers"):
            hint += ", which has a `table`, and not of engram.buffers"
        _checks.instance_of("each of `items`", each, Items, hint)
    return checked


def _environment_specs(envs: Any) -> tuple[Any, Any]:  # noqa: ANN401, an environment and nests
    """Returns the specs of the observations and actions of one environment."""
    try:
        obs, action = envs.single_observation_space, envs.single_action_space
    except AttributeError:
        raise InvalidArgumentError(
            "`envs` must be a vector environment with `single_observation_space` and `single_action_space`; got "
            f"{_checks.short_repr(envs)}"
        ) from None
    return space_specs(obs), space_specs(action)


def space_specs(space: Any) -> Nest:  # noqa: ANN401, a space
    """Returns the specs of the values of a Gymnasium space."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: space_specs(part) for key, part in parts.items()}
    if isinstance(parts, tuple):
        return tuple(space_specs(part) for part in parts)
    if parts is not None or space.shape is None or space.dtype is None:
        raise InvalidArgumentError(
            f"the space {_checks.short_repr(space)} has no fixed shape and dtype; declare the signature with ArraySpec"
        )
    return ArraySpec(tuple(space.shape), space.dtype)


def _with_time_axis(specs: Nest, length: int | None) -> Nest:
    """Returns specs with a time axis."""
    leaves, _, structure = _engram.flatten(specs)
    return _engram.unflatten(structure, [ArraySpec((length, *spec.shape), spec.dtype, spec.name) for spec in leaves])


def _without_time_axis(specs: Nest) -> Nest:
    """Returns specs without their time axis."""
    leaves, _, structure = _engram.flatten(specs)
    return _engram.unflatten(structure, [ArraySpec(spec.shape[1:], spec.dtype, spec.name) for spec in leaves])
