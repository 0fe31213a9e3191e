"""Serves the tables of a text config until Ctrl-C or SIGTERM.

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
from engram.compat.reverb.server_executable._text_format import Fields, parse

__all__ = ["main", "port_of", "tables_of"]

_SELECTORS: dict[str, Callable[[], Selector]] = {
    "fifo": item_selectors.Fifo,
    "lifo": item_selectors.Lifo,
    "uniform": item_selectors.Uniform,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the tables of `--config` until Ctrl-C or SIGTERM.

    Prints the table names and the port to stderr once it serves.

    Args:
        arguments: Command-line arguments without the program's name. Default: those of the process.

    Raises:
        SystemExit: Status 2 if `--config` is missing, 1 if the config cannot be served. stderr states the reason.
    """
    parser = argparse.ArgumentParser(prog="reverb_server", description="Serve tables for Reverb's clients.")
    parser.add_argument("--config", required=True, help="a ReverbServerConfig in protobuf's text format")
    options = parser.parse_args(arguments)
    try:
        fields = parse(options.config)
        tables = tables_of(fields)
        server = Server(tables, port=port_of(fields))
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        parser.exit(1, f"error: {error}\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        names = ", ".join(table.name for table in tables)
        print(f"serving {names} on port {server.port}", file=sys.stderr, flush=True)  # noqa: T201, a command-line program
        server.wait()
    server.stop()


def port_of(fields: Fields) -> int:
    """Returns the port of a config; 0, which means any free port, if the config has none.

    Args:
        fields: Fields of a config, as for `tables_of`.

    Raises:
        ValueError: A field is unknown, or the port is set twice or is not an integer.
    """
    return _Message("config", fields, {"port": 0, "tables": None}, repeated="tables").integer("port")


def tables_of(fields: Fields) -> list[Table]:
    """Returns the tables of a config.

    Args:
        fields: Pairs of name and value of a `ReverbServerConfig`. Each `tables` value is again a list of pairs, with
            the names `table_name`, `sampler`, `remover`, `max_size`, `max_times_sampled` (default: 0) and
            `rate_limiter`. Fields other than `tables` are ignored.

    Raises:
        TypeError: `max_size` is above 2**31 - 1.
        ValueError: A field is unknown, set twice, of the wrong type, or has a value that `Table` rejects.
        NotImplementedError: A table has no sampler or no remover.
    """
    return [_table(value) for name, value in fields if name == "tables"]


class _Message:
    """The fields of a message by name. `defaults` lists all known fields; None for fields without a default."""

    def __init__(self, where: str, fields: Fields, defaults: Mapping[str, Any], repeated: str = "") -> None:
        if not isinstance(fields, list):
            raise ValueError(f"{where}: expected {{ ... }}; got {fields!r}")  # noqa: TRY004, the text is invalid
        self._where, self._values = where, dict(defaults)
        self.set_fields = [name for name, _ in fields]
        for name, value in fields:
            if name not in defaults:
                raise ValueError(f"{where}: unknown field `{name}`; known fields: {', '.join(defaults)}")
            if self.set_fields.count(name) > 1 and name != repeated:
                raise ValueError(f"{where}: `{name}` is set {self.set_fields.count(name)} times")
            self._values[name] = value

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401, of any kind
        return self._values[name]

    def integer(self, name: str) -> int:
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self._where}: `{name}` must be an integer; got {value!r}")  # noqa: TRY004
        return value

    def number(self, name: str) -> float:
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self._where}: `{name}` must be a number; got {value!r}")  # noqa: TRY004
        return float(value)

    def text(self, name: str) -> str:
        value = self._values[name]
        if not isinstance(value, str):
            raise ValueError(f"{self._where}: `{name}` must be text; got {value!r}")  # noqa: TRY004
        return value

    def boolean(self, name: str) -> bool:
        value = self._values[name]
        if not isinstance(value, bool):
            raise ValueError(f"{self._where}: `{name}` must be true or false; got {value!r}")  # noqa: TRY004
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
    selected = [name for name in options.set_fields if name != "is_deterministic"]
    if not selected:
        raise NotImplementedError(f"{where}: no selector is set; set one of fifo, lifo, uniform, prioritized, heap")
    if len(selected) > 1:
        raise ValueError(f"{where}: {' and '.join(selected)} exclude each other")
    (kind,) = selected
    value = options[kind]
    if kind == "prioritized" and value is not None:
        exponent = _Message(f"{where}: prioritized", value, {"priority_exponent": 0.0}).number("priority_exponent")
        return item_selectors.Prioritized(exponent)
    if kind == "heap" and value is not None:
        return item_selectors.HeapSelector(_Message(f"{where}: heap", value, {"min_heap": False}).boolean("min_heap"))
    if value is not True:
        raise ValueError(f"{where}: `{kind}` must be true; got {value!r}")
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
