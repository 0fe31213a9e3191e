"""`engram info`: what a server's tables say of themselves, once."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from engram.cli.remote import Address, Ca, JsonFlag, Token, connect, failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engram import TableInfo


KIBI = 1024


def info(address: Address, *, token: Token = None, ca: Ca = None, as_json: JsonFlag = False) -> None:
    """Print sizes, rates, and why calls wait."""
    with failures():
        infos = connect(address, token, ca).info()
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(each) for name, each in infos.items()}, indent=2))
        return
    Console().print(overview(infos))


def overview(infos: Mapping[str, TableInfo]) -> Group:
    """A row per table, then a line for each reason to wait."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table", no_wrap=True)
    for heading in ("items", "bytes", "inserts/s", "samples/s", "per insert", "waiting"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in infos.values():
        table.add_row(
            each.name,
            f"{each.size:,}/{each.max_size:,}",
            _bytes(each.bytes),
            f"{each.inserts_per_s:,.0f}",
            f"{each.samples_per_s:,.0f}",
            f"{each.samples_per_insert:.2f}",
            f"{each.waiting_inserts + each.waiting_samples:,}",
        )
    reasons = [Text(each.blocked) for each in infos.values() if each.blocked]
    return Group(table, *reasons)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < KIBI:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= KIBI
    return f"{count:,.1f} TiB"
