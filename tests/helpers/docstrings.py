"""Reads public names, their docstrings, and the errors that their source code raises."""

import ast
import builtins
import importlib
import inspect
import operator
import pkgutil
import re
import sys
import textwrap
from dataclasses import dataclass, field, is_dataclass
from types import FunctionType, ModuleType
from typing import Any

from engram import errors
from engram.compat.reverb import errors as compat_errors

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_OTHERS = re.compile(r"[Aa]rguments(?:\s+and\s+errors)?\s+are\s+those\s+of\s+(?:the\s+constructor|`([\w.]+)`)")
_ENTRY = re.compile(r"^ {4}\*{0,2}([A-Za-z_][\w.]*(?:, \*{0,2}[A-Za-z_][\w.]*)*):")


@dataclass(frozen=True)
class Name:
    """A public name: a module, a class, a function, or a property or method of a class."""

    path: str
    value: Any
    owner: type | None = None

    @property
    def function(self) -> FunctionType | None:
        """The function, or the getter of a property."""
        function = self.value
        function = function.fget if isinstance(function, property) else function
        function = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        function = inspect.unwrap(function) if callable(function) else function
        return function if isinstance(function, FunctionType) else None


_MEMBERS = FunctionType | property | staticmethod | classmethod


def modules(package: str) -> list[str]:
    """Names of a package and all its public modules."""
    module = importlib.import_module(package)
    inside = pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}.")
    return [package, *[each.name for each in inside if "._" not in each.name and not each.name.endswith("__main__")]]


def names_of(module: str) -> list[Name]:
    """Names of a module, its exports, and the members of its classes."""
    loaded = importlib.import_module(module)
    members = [Name(module, loaded)]
    for exported in getattr(loaded, "__all__", ()):
        value = getattr(loaded, exported)
        home = getattr(value, "__module__", "") or ""  # None for messages of protobuf
        if not (inspect.isclass(value) or isinstance(value, FunctionType)) or not home.startswith("engram"):
            continue  # a module, a number, a type alias, a functools.partial, or a name of another package
        path = f"{home}.{value.__qualname__}"
        members.append(Name(path, value))
        if inspect.isclass(value):
            members += _members(path, value)
    return members


def _members(path: str, cls: type) -> list[Name]:
    names: dict[str, Name] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("engram"):
            continue
        for member, value in vars(base).items():
            named = Name(f"{path}.{member}", value, cls)
            is_member = (
                isinstance(value, _MEMBERS) and named.function is not None and named.function.__module__ != "typing"
            )
            if is_member and (not member.startswith("_") or member == "__init__"):
                names.setdefault(member, named)
    return list(names.values())


# --- docstrings --------------------------------------------------------------------------------


@dataclass
class ParsedDocstring:
    """First line of a docstring, the names in its sections, and the text of each entry, by its last name."""

    first: str = ""
    sections: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Parses a Google-style docstring."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    parsed = ParsedDocstring(lines[0] if lines else "")
    section: list[str] | None = None
    for line in lines:
        heading = _SECTION.match(line)
        if heading:
            section = parsed.sections.setdefault(heading[1], [])
        elif line and not line.startswith(" "):
            section = None
        elif section is not None and (entry := _ENTRY.match(line)):
            section += entry[1].split(", ")
            parsed.texts[section[-1]] = line[entry.end() :]
        elif section:
            parsed.texts[section[-1]] += line
    return parsed


def referred_sections(name: Name) -> list[dict[str, list[str]]]:
    """Sections of the docstrings to which a docstring refers: "The other arguments and errors are those of `name`.".

    Also of the docstrings to which these refer.
    """
    texts = [name.value.__doc__ or "", (name.owner.__doc__ or "") if name.path.endswith("__init__") else ""]
    sections = []
    for path in _OTHERS.findall("\n".join(texts)):
        other = _referent(path, name) if path else Name("", name.owner)
        if inspect.isclass(other.value):
            sections.append(parse_docstring(other.value.__doc__).sections)
            other = Name(f"{path}.__init__", other.value.__init__, other.value)
        sections.append(parse_docstring(other.value.__doc__).sections)
        sections += referred_sections(other)
    return sections


def _referent(path: str, name: Name) -> Name:
    """What a docstring refers to: a member of the same class, a name of its module or package, or a path of Engram."""
    module = name.function.__module__
    places = [name.owner, *[sys.modules.get(each) for each in (module, module.rpartition(".")[0], "engram")]]
    path = path.removeprefix("engram.")
    place = next(each for each in places if hasattr(each, path.partition(".")[0]))
    parent, _, last = path.rpartition(".")
    owner = operator.attrgetter(parent)(place) if parent else place
    return Name(path, getattr(owner, last), owner if inspect.isclass(owner) else None)


def parameters(function: FunctionType) -> list[str]:
    """Names of a function's parameters."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def fields(cls: type) -> list[str]:
    """Names of the fields of a class."""
    if not inspect.isclass(cls):
        return []
    if is_dataclass(cls):
        names = list(cls.__dataclass_fields__)
    else:
        names = list(getattr(cls, "_fields", None) or getattr(cls, "__annotations__", ()))
    return [name for name in names if not name.startswith("_")]


def returns(function: FunctionType) -> bool:
    """True if the function returns a value."""
    annotation = inspect.signature(function).return_annotation
    return annotation not in (None, "None", inspect.Signature.empty)


# --- errors ------------------------------------------------------------------------------


class TensorFlowError(Exception):
    """In place of each class of `tf.errors`, because TensorFlow may be missing.

    It has no subclasses, so a docstring that lists one of `tf.errors` documents no other error by it.
    """


def kind_named(name: str, function: FunctionType) -> type[BaseException] | None:
    """Class of an error named in a docstring; `TensorFlowError` for TensorFlow's; None if unknown."""
    if name.startswith("tf.errors."):
        return TensorFlowError
    for namespace in (function.__globals__, vars(compat_errors), vars(errors), vars(builtins)):
        value = namespace.get(name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            return value
    return None


def raised(function: FunctionType, owner: type | None = None) -> dict[type[BaseException], str]:
    """Classes of errors that a function raises, directly or through functions that it calls by name, and where.

    Errors of the native engine and of functions passed as values are not found.
    """
    return _raised(function, owner, frozenset(), ("engram", function.__module__))


def _raised(
    function: FunctionType, owner: type | None, above: frozenset[Any], prefixes: tuple[str, ...]
) -> dict[type[BaseException], str]:
    """Like `raised`. `above` are the callers; `prefixes` are the module prefixes to follow."""
    if function in above or not function.__module__.startswith(prefixes):
        return {}
    if is_dataclass(owner) and function.__name__ == "__init__" and hasattr(owner, "__post_init__"):
        return _raised(owner.__post_init__, owner, above, prefixes)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except OSError:  # generated code
        return {}
    reader = _Reader(function, owner, above | {function}, prefixes)
    reader.visit_all(getattr(tree, "body", []))
    return reader.found


class _Reader(ast.NodeVisitor):
    """Collects errors from a function's body, except for those that it catches."""

    def __init__(
        self, function: FunctionType, owner: type | None, above: frozenset[Any], prefixes: tuple[str, ...]
    ) -> None:
        self.found: dict[type[BaseException], str] = {}
        self._function, self._owner, self._above, self._prefixes = function, owner, above, prefixes
        self._caught: list[tuple[type[BaseException], ...]] = []
        self._local: dict[str, Any] = {}  # local imports

    def visit_all(self, nodes: list[Any]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_FunctionDef(self, _node: Any) -> None:
        """Skips nested functions."""

    def visit_Lambda(self, _node: Any) -> None:
        """Skips lambdas."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").startswith("engram"):
            loaded = importlib.import_module(node.module)
            self._local |= {each.asname or each.name: getattr(loaded, each.name) for each in node.names}

    def visit_Try(self, node: ast.Try) -> None:
        self._caught.append(tuple(kind for handler in node.handlers for kind in self._handled(handler)))
        self.visit_all(node.body)
        self._caught.pop()
        self.visit_all([*node.handlers, *node.orelse, *node.finalbody])

    def _handled(self, handler: ast.ExceptHandler) -> list[type[BaseException]]:
        """Classes that a handler catches and does not raise again."""
        again = any(isinstance(each, ast.Raise) and each.exc is None for each in ast.walk(handler))
        if again or handler.type is None:
            return []
        listed = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        values = [self._value(each) for each in listed]
        return [kind for kind in values if inspect.isclass(kind) and issubclass(kind, BaseException)]

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        kind = self._value(error) if error is not None else None
        if isinstance(kind, FunctionType):  # a function that creates the error
            kind = kind.__annotations__.get("return")
            kind = kind_named(kind, self._function) if isinstance(kind, str) else kind
        if inspect.isclass(kind) and issubclass(kind, BaseException):
            self._note(kind, self._function.__qualname__)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called, owner = self._value(node.func), None
        if inspect.isclass(called):
            called, owner = vars(called).get("__init__"), called
        elif isinstance(node.func, ast.Attribute) and _name(node.func.value) in ("self", "cls", "super"):
            owner = self._owner
        # `translated` raises no errors of its own.
        if isinstance(called, FunctionType) and called.__name__ != "translated":
            for kind, where in _raised(called, owner, self._above, self._prefixes).items():
                self._note(kind, where)

    def _note(self, kind: type[BaseException], where: str) -> None:
        if not any(issubclass(kind, caught) for group in self._caught for caught in group):
            self.found.setdefault(kind, where)

    def _value(self, node: Any) -> Any:
        """Value of a name or attribute; None if it is only known at run time."""
        if isinstance(node, ast.Name):
            if node.id in ("self", "cls"):
                return self._owner
            for namespace in (self._local, self._function.__globals__, vars(builtins)):
                if node.id in namespace:
                    return namespace[node.id]
        if not isinstance(node, ast.Attribute):
            return None
        if isinstance(node.value, ast.Call) and _name(node.value.func) == "super" and self._owner is not None:
            return self._inherited(node.attr)
        value = self._value(node.value)
        if isinstance(value, ModuleType):
            return getattr(value, node.attr, None)
        member = inspect.getattr_static(value, node.attr, None) if inspect.isclass(value) else None
        return member.__func__ if isinstance(member, staticmethod | classmethod) else member

    def _inherited(self, member: str) -> Any:
        mro = [] if self._owner is None else self._owner.__mro__
        defined = self._function.__qualname__.rpartition(".")[0]
        position = next((index for index, base in enumerate(mro) if base.__qualname__ == defined), -1)
        return next((vars(base)[member] for base in mro[position + 1 :] if member in vars(base)), None)


def _name(node: Any) -> str:
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
