"""`engram info`: the state of a server's tables."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group
from rich.table import Table

import engram
from engram._text import bytes_text
from engram.cli.output import stdout_console, text
from engram.cli.server_options import Address, Ca, Certificate, JsonFlag, Key, Token, exit_on_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engram import TableInfo


def info(
    address: Address,
    *,
    token: Token = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the sizes and rates of a server's tables, and why calls wait."""
    with exit_on_error():
        infos = engram.Client(address, token=token, ca=ca, certificate=certificate, key=key).info()
    if as_json:
        typer.echo(json.dumps({name: to_json(each) for name, each in infos.items()}, indent=2, allow_nan=False))
        return
    stdout_console().print(render(infos))


def to_json(info: TableInfo) -> dict[str, Any]:
    """Returns a table's state as JSON values.

    Selectors and the rate limiter become objects with their `kind`, the name of their class, and the arguments of the
    selector or the four parameters of the rate limiter; infinite parameters become null.
    """
    limiter: dict[str, str | float | None] = {"kind": type(info.rate_limiter).__name__}
    for name in ("samples_per_insert", "min_size", "min_diff", "max_diff"):
        value = getattr(info.rate_limiter, name)
        limiter[name] = value if math.isfinite(value) else None
    selectors = {
        role: {"kind": type(selector).__name__} | dataclasses.asdict(selector)
        for role, selector in (("sampler", info.sampler), ("remover", info.remover))
    }
    return dataclasses.asdict(info) | selectors | {"rate_limiter": limiter}


def render(infos: Mapping[str, TableInfo]) -> Group:
    """Returns a row for each table, then a line for each table that blocks calls and for each storage problem."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table", no_wrap=True)
    for heading in ("items", "bytes", "inserts/s", "samples/s", "per insert", "waiting"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in infos.values():
        table.add_row(
            text(each.name),
            f"{each.size:,}/{each.max_size:,}",
            bytes_text(each.bytes),
            f"{each.inserts_per_s:,.0f}",
            f"{each.samples_per_s:,.0f}",
            f"{each.samples_per_insert:.2f}",
            f"{each.waiting_inserts + each.waiting_samples:,}",
        )
    reasons = [each.blocked for each in infos.values() if each.blocked]
    # A problem concerns the whole store, so all tables report the same one.
    problems = dict.fromkeys(each.storage_problem for each in infos.values() if each.storage_problem)
    return Group(table, *map(text, [*reasons, *problems]))
