"""Tables from a TOML file.

    [replay]
    max_size = 1_000_000
    sampler = { kind = "Prioritized", exponent = 0.6 }
    rate_limiter = { kind = "MinSize", min_size = 1_000 }

    [trajectories]
    like = "queue"
    max_size = 100
    signature = { observation = "float32[?,4]", action = "int64[?]" }

Keys are the arguments of `engram.Table`, or of `engram.Table.queue` or `.stack` for tables with `like`. Selectors and
rate limiters are the name of their class, or a TOML table with this name as `kind` and their arguments.
`signatures.py` describes signatures; `reverb_signature` is the signature that dm-reverb's clients check.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from typing import TYPE_CHECKING, Any, get_args

import engram
from engram import rate_limiters, selectors
from engram.cli.signatures import read_reverb_signature, read_signature
from engram.errors import EngramError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

_SELECTORS = {selector.__name__: selector for selector in get_args(selectors.Selector)}
_LIMITERS = {limiter.__name__: limiter for limiter in get_args(rate_limiters.AnyRateLimiter)}

_REVERB_SIGNATURE = "reverb_signature"


def read_tables(path: Path) -> list[engram.Table]:
    """Returns the tables of a file.

    Raises:
        InvalidArgumentError: The file cannot be read, or a table is not valid; the text names file, table and key, and
            what is allowed.
    """
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read tables from `{path}`: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"cannot read tables from `{path}`: {error}") from error
    if not sections:
        raise InvalidArgumentError(f"`{path}` has no tables; each table is a section, for example [replay]")
    tables = []
    for name, options in sections.items():
        if not isinstance(options, dict):
            raise InvalidArgumentError(
                f"`{path}`: the key `{name}` is outside of a table; each table is a section, for example [replay]; got "
                f"{options!r}"
            )
        try:
            tables.append(_table(name, options))
        except EngramError as error:
            reason = str(error).removeprefix(f"table `{name}`: ")
            raise InvalidArgumentError(f"table [{name}] of `{path}`: {reason}") from error
    return tables


def _table(name: str, options: dict[str, Any]) -> engram.Table:
    like = options.pop("like", None)
    if like not in (None, "queue", "stack"):
        raise InvalidArgumentError(f'`like` must be "queue" or "stack"; got {like!r}')
    make = {None: engram.Table, "queue": engram.Table.queue, "stack": engram.Table.stack}[like]
    keys = options.keys()
    _check_keys("a table" if like is None else f"a {like}", make, keys, extra=[_REVERB_SIGNATURE])
    for other in ("signature", "note"):
        if {other, _REVERB_SIGNATURE} <= keys:
            raise InvalidArgumentError(f"`{other}` and `{_REVERB_SIGNATURE}` must not be given together")
    has_reverb_signature = _REVERB_SIGNATURE in keys
    reverb_signature = options.pop(_REVERB_SIGNATURE, None)
    if "signature" in options:
        options["signature"] = read_signature(options["signature"])
    for role, kinds in (("sampler", _SELECTORS), ("remover", _SELECTORS), ("rate_limiter", _LIMITERS)):
        if role in options:
            options[role] = _selector_or_limiter(role, options[role], kinds)
    table = make(name, **options)
    if not has_reverb_signature:
        return table
    return dataclasses.replace(table, note=read_reverb_signature(reverb_signature, table.max_times_sampled))


def _selector_or_limiter(role: str, value: object, kinds: Mapping[str, Callable[..., object]]) -> object:
    """Returns the selector or rate limiter that `value` describes; `kinds` are the allowed classes, by name."""
    arguments: dict[str, Any] = dict(value) if isinstance(value, dict) else {"kind": value}
    kind = arguments.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidArgumentError(f"the `kind` of `{role}` must be one of {_listed(kinds)}; got {kind!r}")
    _check_keys(f"`{role}`: {kind}", kinds[kind], arguments)
    try:
        return kinds[kind](**arguments)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"`{role}`: {error}") from error


def _check_keys(what: str, make: Callable[..., object], keys: Collection[str], extra: Sequence[str] = ()) -> None:
    """Raises an error if a key is neither a parameter of `make` nor in `extra`, or if a required key is missing."""
    # A table's `name` is the heading of its section, not a key.
    parameters = {name: each for name, each in inspect.signature(make).parameters.items() if name != "name"}
    if unknown := set(keys) - parameters.keys() - set(extra):
        allowed_keys = [*parameters, *extra]
        allowed = f"its keys are {_listed(allowed_keys)}" if allowed_keys else "it has no keys"
        raise InvalidArgumentError(
            f"{what} has no {'key' if len(unknown) == 1 else 'keys'} {_listed(unknown)}; {allowed}"
        )
    if missing := [name for name, each in parameters.items() if each.default is each.empty and name not in keys]:
        raise InvalidArgumentError(f"{what} requires {_listed(missing)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
