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

import dataclasses
import tomllib
from typing import TYPE_CHECKING, Any

import engram
from engram import rate_limiters, selectors
from engram.errors import EngramError, InvalidArgumentError

if TYPE_CHECKING:
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


def read_tables(path: Path) -> list[engram.Table]:
    """The tables of a file.

    Raises:
        InvalidArgumentError: It cannot be read, or a table in it makes no sense; the text names file and table.
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
        except (EngramError, TypeError) as error:
            raise InvalidArgumentError(f"table [{name}] of `{path}`: {error}") from error
    return tables


def _table(name: str, options: object) -> engram.Table:
    if not isinstance(options, dict):
        raise InvalidArgumentError(f"must be a section, such as [{name}]; got {options!r}")
    like = options.pop("like", None)
    if like not in (None, "queue", "stack"):
        raise InvalidArgumentError(f'`like` must be "queue" or "stack"; got {like!r}')
    for role in ("sampler", "remover"):
        if role in options:
            options[role] = _chosen(role, options[role], _SELECTORS)
    if "rate_limiter" in options:
        options["rate_limiter"] = _chosen("rate_limiter", options["rate_limiter"], _LIMITERS)
    allowed = {field.name for field in dataclasses.fields(engram.Table)} - {"name", "signature"}
    if unknown := sorted(options.keys() - allowed):
        raise InvalidArgumentError(f"unknown keys {', '.join(unknown)}; known are {', '.join(sorted(allowed))}")
    make = {None: engram.Table, "queue": engram.Table.queue, "stack": engram.Table.stack}[like]
    return make(name, **options)


def _chosen(role: str, found: object, kinds: dict[str, Any]) -> object:
    arguments: dict[str, Any] = dict(found) if isinstance(found, dict) else {"kind": found}
    kind = arguments.pop("kind", None)
    if kind not in kinds:
        raise InvalidArgumentError(f"`{role}` is {kind!r}; known are {', '.join(kinds)}")
    buffer = arguments.get("error_buffer")
    if isinstance(buffer, list):
        arguments["error_buffer"] = tuple(buffer)
    return kinds[kind](**arguments)
