"""Messages: plain classes with the interface of protobuf messages, without protobuf."""

from typing import Any, ClassVar, Self, SupportsFloat

__all__ = ["Message"]


class Message:
    """A record with default values that knows which of its fields are set.

    A subclass lists its fields in `_fields`, each with its default or, for a submessage, its class. `_oneofs` lists
    groups of fields of which at most one is set.
    """

    _fields: ClassVar[dict[str, Any]] = {}
    _oneofs: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401, numbers, text and messages
        """Creates a message.

        Args:
            **fields: Field values by name. Fields that are None or omitted stay unset. An unset field reads as its
                default: 0, False, "" or an empty message.

        Raises:
            TypeError: A value does not have the type of its field.
            ValueError: A field is unknown.
        """
        self._set: dict[str, Any] = {}
        for name, value in fields.items():
            if name not in self._fields:
                raise ValueError(f"{type(self).__name__} has no field `{name}`; it has {_listed(self._fields)}")
            if value is not None:
                setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, numbers, text and messages
        if name.startswith("__") or name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field `{name}`; it has {_listed(self._fields)}")
        value = self._set.get(name)
        if value is not None:
            return value
        default = self._fields[name]
        return default() if isinstance(default, type) else default

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401, numbers, text and messages
        if name == "_set":
            super().__setattr__(name, value)
            return
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field `{name}`; it has {_listed(self._fields)}")
        for group in self._oneofs.values():
            if name in group:
                for other in group:
                    self._set.pop(other, None)
        default = self._fields[name]
        kind = default if isinstance(default, type) else type(default)
        if kind is float and isinstance(value, SupportsFloat):  # NumPy's scalars, too
            value = float(value)
        if not isinstance(value, kind):
            raise TypeError(f"{type(self).__name__}.{name} must be of type {kind.__name__}; got {value!r}")
        self._set[name] = value

    def HasField(self, name: str) -> bool:  # noqa: N802, protobuf's name
        """True if `name` is set: a submessage, a field of a oneof group, or a group, of which one field is set.

        Raises:
            ValueError: The field is unknown, or it is a plain number or text, for which presence is not recorded.
        """
        if name not in self._fields:
            if name in self._oneofs:
                return self.WhichOneof(name) is not None
            raise ValueError(f"{type(self).__name__} has no field `{name}`; it has {_listed(self._fields)}")
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

    def _shown_fields(self) -> dict[str, Any]:
        """The fields that `repr` and comparisons include: those that are set and differ from their defaults."""
        shown = {}
        for name, default in self._fields.items():
            value = self._set.get(name)
            in_oneof = any(name in group for group in self._oneofs.values())
            if value is not None and (isinstance(default, type) or in_oneof or value != default):
                shown[name] = value
        return shown

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._shown_fields() == other._shown_fields()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __copy__(self) -> Self:
        return type(self)(**self._set)

    def __repr__(self) -> str:
        return "".join(_lines(self, ""))

    def __reduce__(self) -> Any:  # noqa: ANN401, pickle's protocol
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


def _listed(names: Any) -> str:  # noqa: ANN401, a mapping
    return ", ".join(names) or "none"
