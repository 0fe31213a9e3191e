"""Protobuf's text format, as far as configurations of servers use it: `name: value` and `name { ... }`."""

import ast
import re
from typing import Any, TypeAlias

__all__ = ["Fields", "parsed"]

Fields: TypeAlias = list[tuple[str, Any]]
"""Names and values: numbers, text, truth values, and fields."""

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf(?:inity)?\b|nan\b)f?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign>[{}<>:;,\[\]])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}
_WORDS = {"true": True, "t": True, "True": True, "false": False, "f": False, "False": False}


def parsed(text: str) -> Fields:
    """The fields of a message, in their order; a message in it is such a list, too.

    Raises:
        ValueError: The text is none of that format; says where.
    """
    reader = _Reader(text)
    fields = reader.fields("")
    if reader.kind:
        raise reader.wrong("a field")
    return fields


class _Reader:
    """A text and the token that comes next."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._begin = 0
        self.kind = self.word = ""
        self.advance()

    def advance(self) -> str:
        """Goes on to the next token; returns the one before."""
        before = self.word
        while True:
            self._begin = self._end
            if self._begin == len(self._text):
                self.kind = self.word = ""
                return before
            found = _TOKEN.match(self._text, self._begin)
            if found is None:
                raise self.wrong("a name, a value or a bracket")
            self._end = found.end()
            if found.lastgroup != "space":
                self.kind, self.word = str(found.lastgroup), found.group()
                return before

    def wrong(self, expected: str) -> ValueError:
        """What is wrong at the next token."""
        line = self._text.count("\n", 0, self._begin) + 1
        column = self._begin - (self._text.rfind("\n", 0, self._begin) + 1) + 1
        rest = self._text[self._begin : self._begin + 20].split("\n")[0] or "the end"
        return ValueError(f"line {line}, column {column}: expected {expected}; found {rest!r}")

    def fields(self, closing: str) -> Fields:
        """Fields up to a closing bracket, or the end."""
        found: Fields = []
        while self.word != closing:
            if self.kind != "name":
                raise self.wrong("the name of a field")
            name = self.advance()
            colon = self.word == ":"
            if colon:
                self.advance()
            if self.word == "[":
                found += [(name, value) for value in self._list()]
            elif colon or self.word in _CLOSING:
                found.append((name, self._value()))
            else:
                raise self.wrong(f"`:` or `{{` after `{name}`")
            if self.word in (",", ";"):
                self.advance()
        return found

    def _list(self) -> list[Any]:
        values: list[Any] = []
        while self.advance() != "]":
            if self.word == "]":
                continue
            values.append(self._value())
            if self.word not in (",", "]"):
                raise self.wrong("`,` or `]`")
        return values

    def _value(self) -> Any:  # noqa: ANN401, of any kind
        if self.word in _CLOSING:
            closing = _CLOSING[self.advance()]
            fields = self.fields(closing)
            if not self.word:
                raise self.wrong(f"`{closing}`")
            self.advance()
            return fields
        if self.kind == "text":
            made = ""
            while self.kind == "text":
                made += ast.literal_eval(self.advance())
            return made
        if self.kind == "number":
            token = self.advance()
            try:
                return int(token, 0)
            except ValueError:
                return float(token.removesuffix("f") if "inf" not in token.lower() else token)
        if self.word in _WORDS:
            return _WORDS[self.advance()]
        raise self.wrong("a value")
