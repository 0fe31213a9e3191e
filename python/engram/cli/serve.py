"""`engram serve`: a server in the foreground."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

import engram
from engram.cli.remote import Token, failures
from engram.cli.tables import read_tables


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
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen to other machines without a token.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the tables' random choices.")] = None,
    checkpoint_dir: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve tables until Ctrl-C or SIGTERM."""
    with failures():
        if checkpoint_dir is not None:
            raise engram.errors.InvalidArgumentError("--checkpoint-dir is not available yet")
        described = [engram.Table("replay")] if tables is None else read_tables(tables)
        with engram.Server(
            described,
            host=host,
            port=port,
            token=token,
            certificate=certificate,
            key=key,
            client_ca=client_ca,
            insecure=insecure,
            seed=seed,
        ) as server:
            names = ", ".join(server.store.tables)
            typer.echo(f"serving {names} at {server.address}; look with `engram top {server.address}`")
            _wait_for_a_signal()
            typer.echo("stopping")


def _wait_for_a_signal() -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(1.0):  # a wait without a timeout would not see signals everywhere
        pass
