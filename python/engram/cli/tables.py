"""Tables as a TOML file describes them.

    [replay]
    max_size = 1_000_000
    sampler = { kind = "prioritized", exponent = 0.6 }
    rate_limiter = { kind = "MinSize", min_size = 1_000 }

    [trajectories]
    like = "queue"
    max_size = 100

Keys are the arguments of `engram.Table`; selectors and limiters are a name, or a table with a `kind`.
"""

from __future__ import annotations

import inspect
import tomllib
from typing import TYPE_CHECKING, Any

import engram
from engram import rate_limiters, selectors
from engram.errors import EngramError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_SELECTORS = {
    kind.kind: kind
    for kind in (
        selectors.Uniform,
        selectors.Fifo,
        selectors.Lifo,
        selectors.Prioritized,
        selectors.MinHeap,
        selectors.MaxHeap,
    )
}
_LIMITERS = {
    kind.kind: kind
    for kind in (
        rate_limiters.MinSize,
        rate_limiters.SampleToInsertRatio,
        rate_limiters.Queue,
        rate_limiters.Stack,
        rate_limiters.RateLimiter,
    )
}

# Arguments of `engram.Table` that are no keys: the section's head, and what TOML cannot say.
_NOT_IN_A_FILE = {"name", "signature"}


def read_tables(path: Path) -> list[engram.Table]:
    """The tables of a file.

    Raises:
        InvalidArgumentError: It cannot be read, or a table in it makes no sense; the text names file, table and
            key, and what is allowed.
    """
    try:
        described = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"cannot read tables from `{path}`: {error}") from error
    if not described:
        raise InvalidArgumentError(f"`{path}` describes no tables; each is a section such as [replay]")
    tables = []
    for name, options in described.items():
        try:
            tables.append(_table(name, options))
        except EngramError as error:
            why = str(error).removeprefix(f"table `{name}`: ")
            raise InvalidArgumentError(f"table [{name}] of `{path}`: {why}") from error
    return tables


def _table(name: str, options: object) -> engram.Table:
    if not isinstance(options, dict):
        raise InvalidArgumentError(f"must be a section, such as [{name}]; got {options!r}")
    like = options.pop("like", None)
    if like not in (None, "queue", "stack"):
        raise InvalidArgumentError(f'`like` must be "queue" or "stack"; got {like!r}')
    make = {None: engram.Table, "queue": engram.Table.queue, "stack": engram.Table.stack}[like]
    _check_keys("a table" if like is None else f"a {like}", make, options)
    for role, kinds in (("sampler", _SELECTORS), ("remover", _SELECTORS), ("rate_limiter", _LIMITERS)):
        if role in options:
            options[role] = _chosen(role, options[role], kinds)
    return make(name, **options)


def _chosen(role: str, found: object, kinds: Mapping[str, Callable[..., object]]) -> object:
    arguments: dict[str, Any] = dict(found) if isinstance(found, dict) else {"kind": found}
    kind = arguments.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidArgumentError(f"the `kind` of `{role}` is {kind!r}; known are {_listed(kinds)}")
    about = f"`{role}`"
    _check_keys(f"{about}: {kind}", kinds[kind], arguments)
    if isinstance(arguments.get("error_buffer"), list):
        arguments["error_buffer"] = tuple(arguments["error_buffer"])
    try:
        return kinds[kind](**arguments)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{about}: {error}") from error


def _check_keys(what: str, make: Callable[..., object], given: Mapping[str, object]) -> None:
    """Refuses keys that are no arguments of `make`, and says which it lacks."""
    known = {name: each for name, each in inspect.signature(make).parameters.items() if name not in _NOT_IN_A_FILE}
    if unknown := given.keys() - known:
        allowed = f"known are {_listed(known)}" if known else "it has none"
        raise InvalidArgumentError(f"{what} has no key {_listed(unknown)}; {allowed}")
    if missing := [name for name, each in known.items() if each.default is each.empty and name not in given]:
        raise InvalidArgumentError(f"{what} needs {_listed(missing)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
