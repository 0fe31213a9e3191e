"""A parser for the part of protobuf's text format that server configs use: `name: value` and `name { ... }`."""

import ast
import re
from typing import Any, TypeAlias

__all__ = ["Fields", "parse"]

Fields: TypeAlias = list[tuple[str, Any]]
"""Pairs of a field name and a value: a number, text, a bool, or the fields of a submessage."""

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf(?:inity)?\b|nan\b)f?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign>[{}<>:;,\[\]])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}
_BOOLS = {"true": True, "t": True, "True": True, "false": False, "f": False, "False": False}


def parse(text: str) -> Fields:
    """Parses a message and returns its fields in order.

    Raises:
        ValueError: The text is not in this format. The message states line and column.
    """
    parser = _Parser(text)
    fields = parser.fields("")
    if parser.kind:
        raise parser.error("a field")
    return fields


class _Parser:
    """A text and its next token: `word`, of the group `kind` of `_TOKEN`; both are empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._begin = 0
        self.kind = self.word = ""
        self.advance()

    def advance(self) -> str:
        """Moves to the next token and returns the current one."""
        current = self.word
        while True:
            self._begin = self._end
            if self._begin == len(self._text):
                self.kind = self.word = ""
                return current
            match = _TOKEN.match(self._text, self._begin)
            if match is None:
                raise self.error("a name, a value or a bracket")
            self._end = match.end()
            if match.lastgroup != "space":
                self.kind, self.word = str(match.lastgroup), match.group()
                return current

    def error(self, expected: str) -> ValueError:
        """Returns the error for an unexpected token at the current position."""
        line = self._text.count("\n", 0, self._begin) + 1
        column = self._begin - (self._text.rfind("\n", 0, self._begin) + 1) + 1
        rest = self._text[self._begin : self._begin + 20].split("\n")[0] or "the end"
        return ValueError(f"line {line}, column {column}: expected {expected}; got {rest!r}")

    def fields(self, closing: str) -> Fields:
        """Parses fields up to the closing bracket, or to the end if `closing` is ""."""
        fields: Fields = []
        while self.word != closing:
            if self.kind != "name":
                raise self.error("the name of a field")
            name = self.advance()
            colon = self.word == ":"
            if colon:
                self.advance()
            if self.word == "[":
                fields += [(name, value) for value in self._list()]
            elif colon or self.word in _CLOSING:
                fields.append((name, self._value()))
            else:
                raise self.error(f"`:` or `{{` after `{name}`")
            if self.word in (",", ";"):
                self.advance()
        return fields

    def _list(self) -> list[Any]:
        values: list[Any] = []
        while self.advance() != "]":
            if self.word == "]":
                continue
            values.append(self._value())
            if self.word not in (",", "]"):
                raise self.error("`,` or `]`")
        return values

    def _value(self) -> Any:  # noqa: ANN401, of any kind
        if self.word in _CLOSING:
            closing = _CLOSING[self.advance()]
            fields = self.fields(closing)
            if not self.word:
                raise self.error(f"`{closing}`")
            self.advance()
            return fields
        if self.kind == "text":
            text = ""  # adjacent strings are concatenated
            while self.kind == "text":
                text += ast.literal_eval(self.advance())
            return text
        if self.kind == "number":
            token = self.advance()
            try:
                return int(token, 0)
            except ValueError:
                return float(token.removesuffix("f") if "inf" not in token.lower() else token)
        if self.word in _BOOLS:
            return _BOOLS[self.advance()]
        raise self.error("a value")
