"""Messages: plain classes with the interface of protobuf messages, without protobuf."""

import copy
import operator
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, SupportsFloat

import numpy as np

__all__ = ["Message"]


class Message:
    """A record with default values that knows which of its fields are set.

    A subclass lists its fields in `_fields`, each with its default or, for a submessage or a list, its class. `_oneofs`
    lists groups of fields of which at most one is set, `_lists` the class of the elements of each list.

    An assignment to a field of a submessage sets the submessage: `condition.mod_eq.mod = 2` sets `condition.mod_eq`.
    """

    _fields: ClassVar[dict[str, Any]] = {}
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {}
    _lists: ClassVar[dict[str, type]] = {}
    _int_bits: ClassVar[int] = 64
    """Size of integers."""

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401, numbers, text and messages
        """Creates a message. Its fields can also be set one by one.

        Args:
            **fields: Field values by name. Fields that are None or omitted stay unset. An unset field reads as its
                default: 0, False, "", an empty list or an empty message.

        Raises:
            TypeError: A value does not have the type of its field.
            ValueError: A field is unknown, or an integer is too large for its field.
        """
        self._set: dict[str, Any] = {}
        # If this message was read from an unset field of another message: that message, and the name of the field. The
        # first assignment to a field of this message then sets the field of the other message.
        self._parent: tuple[Message, str] | None = None
        for name, value in fields.items():
            self._check_field(name, ValueError)
            if value is not None:
                setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, numbers, text and messages
        if name.startswith("_"):
            raise AttributeError(name)
        self._check_field(name, AttributeError)
        value = self._set.get(name)
        if value is not None:
            return value
        default = self._fields[name]
        value = default() if isinstance(default, type) else default
        if isinstance(value, list):
            self._set[name] = value
        elif isinstance(value, Message):
            value._parent = (self, name)  # noqa: SLF001, same class
        return value

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401, numbers, text and messages
        if name in {"_set", "_parent"}:
            super().__setattr__(name, value)
            return
        self._check_field(name, AttributeError)
        value = self._converted(name, value)
        for group in self._oneofs.values():
            if name in group:
                for other in group:
                    self._set.pop(other, None)
        self._set[name] = value
        if self._parent is not None:
            (parent, field), self._parent = self._parent, None
            setattr(parent, field, self)

    def _converted(self, name: str, value: Any) -> Any:  # noqa: ANN401, numbers, text and messages
        """Returns a value of a field in the field's type."""
        default = self._fields[name]
        kind = default if isinstance(default, type) else type(default)
        if kind is list and not isinstance(value, str | bytes | Mapping):
            value = list(value)
            for each in value:
                if not isinstance(each, self._lists[name]):
                    element = self._lists[name].__name__
                    raise TypeError(f"{type(self).__name__}.{name} must be a list of {element}; got {each!r}")
        elif kind is int:
            value = self._integer(name, value)
        elif kind is bool and value in (0, 1):
            value = bool(value)
        elif kind is float and isinstance(value, SupportsFloat):  # NumPy's scalars, too
            value = float(value)
        if not isinstance(value, kind):
            raise TypeError(f"{type(self).__name__}.{name} must be of type {kind.__name__}; got {value!r}")
        return value

    def _integer(self, name: str, value: object) -> int:
        try:
            # Python's bool is accepted, so NumPy's is, too.
            number = int(value) if isinstance(value, np.bool_) else operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{type(self).__name__}.{name} must be an integer; got {value!r}") from None
        if not -(2 ** (self._int_bits - 1)) <= number < 2 ** (self._int_bits - 1):
            raise ValueError(f"{type(self).__name__}.{name} must be a {self._int_bits}-bit integer; got {number}")
        return number

    def _check_field(self, name: str, kind: type[Exception]) -> None:
        if name not in self._fields:
            raise kind(f"{type(self).__name__} has no field `{name}`; it has {_listed(self._fields)}")

    def HasField(self, name: str) -> bool:  # noqa: N802, protobuf's name
        """True if `name` is set: a submessage, a field of a oneof group, or a group, of which one field is set.

        Raises:
            ValueError: The field is unknown, or it is a plain number or text, for which presence is not recorded.
        """
        if name in self._oneofs:
            return self.WhichOneof(name) is not None
        self._check_field(name, ValueError)
        if not isinstance(self._fields[name], type) and not any(name in group for group in self._oneofs.values()):
            raise ValueError(f"Field {type(self).__name__}.{name} does not have presence.")
        return name in self._set

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802, protobuf's name
        """Returns the name of the field of a oneof group, `group`, that is set; None if none is.

        Raises:
            ValueError: The group is unknown.
        """
        if group not in self._oneofs:
            raise ValueError(f"{type(self).__name__} has no group `{group}`; it has {_listed(self._oneofs)}")
        return next((name for name in self._oneofs[group] if name in self._set), None)

    def CopyFrom(self, other: Any) -> None:  # noqa: ANN401, N802, protobuf's name
        """Replaces all fields by a copy of those of `other`, a message of the same class.

        Raises:
            TypeError: `other` has another class. Nothing is changed.
        """
        if type(other) is not type(self):
            raise TypeError(f"`other` must be a {type(self).__name__}; got {type(other).__name__}")
        fields = copy.deepcopy(other._set)  # noqa: SLF001, same class
        self._set.clear()
        for name, value in fields.items():
            setattr(self, name, value)

    def ClearField(self, name: str) -> None:  # noqa: N802, protobuf's name
        """Unsets the field `name`, which then reads as its default.

        Raises:
            ValueError: The field is unknown.
        """
        self._check_field(name, ValueError)
        self._set.pop(name, None)

    def _shown_fields(self) -> dict[str, Any]:
        """The fields that `repr` and comparisons include: those that are set and differ from their defaults."""
        shown = {}
        for name, default in self._fields.items():
            value = self._set.get(name)
            in_oneof = any(name in group for group in self._oneofs.values())
            if value not in (None, []) and (isinstance(default, type) or in_oneof or value != default):
                shown[name] = value
        return shown

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._shown_fields() == other._shown_fields()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __copy__(self) -> Self:
        return type(self)(**self._set)

    def __repr__(self) -> str:
        return "".join(_lines(self, ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_create, (type(self), self._set))


def _create(kind: type[Message], fields: dict[str, Any]) -> Message:
    return kind(**fields)


def _lines(message: Message, indent: str) -> list[str]:
    """The fields in protobuf's text format."""
    lines = []
    for name, value in message._shown_fields().items():  # noqa: SLF001, same module
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                lines += [f"{indent}{name} {{\n", *_lines(each, f"{indent}  "), f"{indent}}}\n"]
            else:
                lines.append(f"{indent}{name}: {_text(each)}\n")
    return lines


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:  # noqa: PLR2004, larger floats are not exact integers in decimal
        return str(int(value))
    return repr(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
