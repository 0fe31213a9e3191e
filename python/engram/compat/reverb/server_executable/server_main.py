"""Serves tables that a text describes, until Ctrl-C or SIGTERM.

python -m engram.compat.reverb.server_executable.server_main --config='
    port: 8000
    tables {
      table_name: "replay"
      sampler { prioritized { priority_exponent: 0.8 } }
      remover { fifo: true }
      max_size: 100000
      rate_limiter { samples_per_insert: 1 min_size_to_sample: 100 min_diff: -1e9 max_diff: 1e9 }
    }'
"""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from engram.compat.reverb import item_selectors
from engram.compat.reverb.item_selectors import Selector
from engram.compat.reverb.rate_limiters import RateLimiter
from engram.compat.reverb.server import Server, Table
from engram.compat.reverb.server_executable._text_format import Fields, parsed

__all__ = ["main", "port_of", "tables_of"]

_SELECTORS: dict[str, Callable[[], Selector]] = {
    "fifo": item_selectors.Fifo,
    "lifo": item_selectors.Lifo,
    "uniform": item_selectors.Uniform,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the tables of `--config`, until Ctrl-C or SIGTERM.

    Once it serves, it says so on stderr, with the tables' names and the port.

    Args:
        arguments: Of the command line, without the program's name; None: those of the process.

    Raises:
        SystemExit: With the status 2 where `--config` is missing, with 1 where it cannot be served. stderr says why.
    """
    parser = argparse.ArgumentParser(prog="reverb_server", description="Serve tables for Reverb's clients.")
    parser.add_argument("--config", required=True, help="a ReverbServerConfig in protobuf's text format")
    given = parser.parse_args(arguments)
    try:
        fields = parsed(given.config)
        tables = tables_of(fields)
        server = Server(tables, port=port_of(fields))
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        parser.exit(1, f"error: {error}\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        names = ", ".join(table.name for table in tables)
        print(f"serving {names} on port {server.port}", file=sys.stderr, flush=True)  # noqa: T201, talk of a program
        server.wait()
    server.stop()


def port_of(fields: Fields) -> int:
    """The port of a configuration; 0 where it has none: any free one.

    Args:
        fields: Names and values, as of `tables_of`.

    Raises:
        ValueError: A field is unknown, the port is there twice, or no integer.
    """
    return _Message("config", fields, {"port": 0, "tables": None}, repeated="tables").integer("port")


def tables_of(fields: Fields) -> list[Table]:
    """The tables of a configuration.

    Args:
        fields: Names and values of a `ReverbServerConfig`: its `tables` are lists of such pairs, with the fields
            `table_name`, `sampler`, `remover`, `max_size`, `max_times_sampled` (0 if it is not there) and
            `rate_limiter`. Others than `tables` are not looked at.

    Raises:
        TypeError: `max_size` is above 2**31 - 1.
        ValueError: A field is unknown, twice there, of another type, or of a value that tables refuse.
        NotImplementedError: A table has no sampler, or no remover.
    """
    return [_table(value) for name, value in fields if name == "tables"]


class _Message:
    """Fields by their names; `defaults` has those there are, None for what is not there unless it is given."""

    def __init__(self, where: str, fields: Fields, defaults: Mapping[str, Any], repeated: str = "") -> None:
        if not isinstance(fields, list):
            raise ValueError(f"{where}: expected {{ ... }}; found {fields!r}")  # noqa: TRY004, a text is at fault
        self._where, self._found = where, dict(defaults)
        self.given = [name for name, _ in fields]
        for name, value in fields:
            if name not in defaults:
                raise ValueError(f"{where}: no field `{name}`; there are {', '.join(defaults)}")
            if self.given.count(name) > 1 and name != repeated:
                raise ValueError(f"{where}: `{name}` is there {self.given.count(name)} times")
            self._found[name] = value

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401, of any kind
        return self._found[name]

    def integer(self, name: str) -> int:
        value = self._found[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self._where}: `{name}` must be an integer; found {value!r}")  # noqa: TRY004
        return value

    def number(self, name: str) -> float:
        value = self._found[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self._where}: `{name}` must be a number; found {value!r}")  # noqa: TRY004
        return float(value)

    def text(self, name: str) -> str:
        value = self._found[name]
        if not isinstance(value, str):
            raise ValueError(f"{self._where}: `{name}` must be text; found {value!r}")  # noqa: TRY004
        return value

    def truth(self, name: str) -> bool:
        value = self._found[name]
        if not isinstance(value, bool):
            raise ValueError(f"{self._where}: `{name}` must be true or false; found {value!r}")  # noqa: TRY004
        return value


def _table(fields: Fields) -> Table:
    options = {"table_name": "", "max_size": 0, "max_times_sampled": 0}
    table = _Message("tables", fields, {**options, "sampler": None, "remover": None, "rate_limiter": None})
    where = f"table `{table.text('table_name')}`"
    limiter = table["rate_limiter"]
    if limiter is None:
        raise ValueError(f"{where}: no `rate_limiter`")
    return Table(
        name=table.text("table_name"),
        sampler=_selector(f"{where}: sampler", table["sampler"]),
        remover=_selector(f"{where}: remover", table["remover"]),
        max_size=table.integer("max_size"),
        max_times_sampled=table.integer("max_times_sampled"),
        rate_limiter=_limiter(f"{where}: rate_limiter", limiter),
    )


def _selector(where: str, fields: Fields | None) -> Selector:
    kinds = dict.fromkeys(("fifo", "lifo", "uniform", "prioritized", "heap", "is_deterministic"))
    options = _Message(where, [] if fields is None else fields, kinds)
    chosen = [name for name in options.given if name != "is_deterministic"]
    if not chosen:
        raise NotImplementedError(f"{where}: none is chosen; there are fifo, lifo, uniform, prioritized and heap")
    if len(chosen) > 1:
        raise ValueError(f"{where}: {' and '.join(chosen)} exclude each other")
    (kind,) = chosen
    said = options[kind]
    if kind == "prioritized" and said is not None:
        exponent = _Message(f"{where}: prioritized", said, {"priority_exponent": 0.0}).number("priority_exponent")
        return item_selectors.Prioritized(exponent)
    if kind == "heap" and said is not None:
        return item_selectors.HeapSelector(_Message(f"{where}: heap", said, {"min_heap": False}).truth("min_heap"))
    if said is not True:
        raise ValueError(f"{where}: `{kind}` must be true; found {said!r}")
    return _SELECTORS[kind]()


def _limiter(where: str, fields: Fields) -> RateLimiter:
    names = ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample")
    limiter = _Message(where, fields, dict.fromkeys(names, 0))
    return RateLimiter(
        samples_per_insert=limiter.number("samples_per_insert"),
        min_size_to_sample=limiter.integer("min_size_to_sample"),
        min_diff=limiter.number("min_diff"),
        max_diff=limiter.number("max_diff"),
    )


if __name__ == "__main__":
    main()
