"""`engram serve`: a server in the foreground."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import engram
from engram.cli.load_progress import load_progress
from engram.cli.program_name import program_name
from engram.cli.server_options import Token, exit_on_error
from engram.cli.tables import read_tables


class Durability(StrEnum):
    """What an acknowledged change outlives: nothing but checkpoints is kept; the process; the machine's power."""

    NONE = "none"
    PROCESS = "process"
    DISK = "disk"


_DEFAULT = (engram.Table("replay"),)
"""What is served where nothing is said."""

_CHECKPOINT_BYTES = 4 << 30
"""Bytes of the log after which a checkpoint is written, too."""


def serve(
    *,
    tables: Annotated[
        Path | None, typer.Option(help="TOML file with the tables; without it, one table `replay`, uniform.")
    ] = None,
    host: Annotated[str, typer.Option(help="Name or address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 7077,
    token: Token = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM file to show to clients; turns TLS on.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file with its private key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="PEM file with who must have signed clients' certificates.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the same host for Prometheus, path /metrics; 0: any free one.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen to other machines without a token.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the tables' random choices.")] = None,
    path: Annotated[
        Path | None, typer.Option(help="Directory in which the tables live; without it, in memory.")
    ] = None,
    durability: Annotated[
        Durability, typer.Option(help="What an acknowledged change outlives, with --path.")
    ] = Durability.PROCESS,
    checkpoint_interval: Annotated[
        float, typer.Option(help="Seconds between two checkpoints, with --path; 0: only those that are asked for.")
    ] = 600.0,
) -> None:
    """Serve tables until Ctrl-C or SIGTERM."""
    with exit_on_error(), _signalled() as stop:
        described = None if tables is None else read_tables(tables)
        if path is None:
            opened = engram.Store(_DEFAULT if described is None else described, seed=seed)
        else:
            with load_progress(path) as progress:
                opened = engram.Store.open(
                    path,
                    described or (),
                    durability=durability.value,
                    checkpoint_interval=checkpoint_interval or None,
                    checkpoint_bytes=_CHECKPOINT_BYTES if checkpoint_interval else None,
                    seed=seed,
                    progress=progress,
                )
            if described is None and not opened.tables:
                for table in _DEFAULT:
                    opened.create_table(table)
        with (
            opened as store,
            engram.Server(
                store,
                host=host,
                port=port,
                token=token,
                certificate=certificate,
                key=key,
                client_ca=client_ca,
                insecure=insecure,
                metrics_port=metrics_port,
            ) as server,
        ):
            for note in store.notes:
                typer.echo(f"note: {note}", err=True)
            names = ", ".join(server.store.tables)
            typer.echo(f"serving {names} at {server.address}; look with `{program_name()} top {server.address}`")
            if server.metrics_address is not None:
                scheme = "http" if certificate is None else "https"
                typer.echo(f"metrics at {scheme}://{server.metrics_address}/metrics")
            while not stop.wait(1.0):  # a wait without a timeout would not see signals everywhere
                pass
            typer.echo("stopping")


@contextmanager
def _signalled() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM. Begun before anything is served, so that none is missed."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
