"""`engram serve`: runs a server in the foreground."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import engram
from engram.cli.directory import directory
from engram.cli.load_progress import load_progress
from engram.cli.output import echo
from engram.cli.program_name import program_name
from engram.cli.reverb_config import read_reverb_config
from engram.cli.serve_page import check_page, server_page
from engram.cli.server_options import Token, exit_on_error
from engram.cli.tables import read_tables
from engram.errors import InvalidArgumentError


class Durability(StrEnum):
    """The failure after which acknowledged changes are still there; with `none`, only those in checkpoints are."""

    NONE = "none"
    PROCESS = "process"
    DISK = "disk"


_DEFAULT_TABLES = (engram.Table("replay"),)
"""The tables of a new store without `--tables`."""

_DEFAULT_PORT = 7077

_CHECKPOINT_BYTES = 4 << 30
"""Bytes logged after the last checkpoint that cause a checkpoint before `--checkpoint-interval` has passed."""


def serve(
    *,
    tables: Annotated[
        Path | None,
        typer.Option(
            help="TOML file that describes the tables. Default: the tables in --path, otherwise one uniform table "
            "`replay`."
        ),
    ] = None,
    reverb_config: Annotated[
        Path | None,
        typer.Option(
            help="In place of --tables, a file with a ReverbServerConfig in protobuf's text format, the text that "
            "Reverb's server takes as --config. Default: none."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Host name or IP address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to listen on; 0 for any free port. Default: the port in --reverb-config, otherwise 7077.",
            show_default=False,
        ),
    ] = None,
    token: Token = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the server's certificate; enables TLS, which is off by default.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="PEM file of the private key of --certificate. Default: none.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the certificate authority; clients must then present a certificate that it "
            "issued. Default: none."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Port for Prometheus metrics, path /metrics; 0 for any free port. Default: no metrics."),
    ] = None,
    dashboard_port: Annotated[
        int | None,
        typer.Option(
            help="Port of a live page of this server on 127.0.0.1; 0 for any free port. Needs the extra `dashboard`. "
            "The page requires --token, if given. Default: no page.",
            min=0,
            max=65_535,
            show_default=False,
        ),
    ] = None,
    shard_id: Annotated[
        int | None,
        typer.Option(help="Number of this server among those of a ShardedClient, from 1 to 1023. Default: none."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept connections from other machines without a token.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the tables' random choices. Default: random.")] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="PATH",
            help="Directory that stores the tables. Default: tables are in memory only.",
        ),
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(
            help="What an acknowledged change survives: none (only checkpoints are kept), process (a crash of the "
            "process) or disk (a power failure). Needs --path. Default: process.",
        ),
    ] = None,
    checkpoint_interval: Annotated[
        float | None,
        typer.Option(
            help="Seconds between two checkpoints; 0 for checkpoints on request only. Needs --path. Default: 600.",
        ),
    ] = None,
) -> None:
    """Serve tables until Ctrl-C or SIGTERM."""
    if path is None:
        _exit_if_given("--durability", durability)
        _exit_if_given("--checkpoint-interval", checkpoint_interval)
    interval = 600.0 if checkpoint_interval is None else checkpoint_interval
    with exit_on_error(), _stop_signals() as stop:
        if not interval >= 0:
            raise InvalidArgumentError(f"--checkpoint-interval must be at least 0; got {interval:g}")
        check_page(dashboard_port, token, client_ca)
        with exit_on_error(convert_arguments=False):  # names in errors are of the file, not arguments
            configured_tables, configured_port = _read_tables(tables, reverb_config)
        if path is None:
            store = engram.Store(_DEFAULT_TABLES if configured_tables is None else configured_tables, seed=seed)
        else:
            with load_progress(path) as progress:
                store = engram.Store.open(
                    path,
                    configured_tables or (),
                    durability=(durability or Durability.PROCESS).value,
                    checkpoint_interval=interval or None,
                    checkpoint_bytes=_CHECKPOINT_BYTES if interval else None,
                    seed=seed,
                    progress=progress,
                )
            if configured_tables is None and not store.tables:
                for table in _DEFAULT_TABLES:
                    store.create_table(table)
        with (
            store,
            engram.Server(
                store,
                host=host,
                port=configured_port if port is None else port,
                token=token,
                certificate=certificate,
                key=key,
                client_ca=client_ca,
                insecure=insecure,
                metrics_port=metrics_port,
                shard_id=shard_id,
            ) as server,
            server_page(server, dashboard_port, token) as page,
        ):
            for note in store.notes:
                echo(f"note: {note}", err=True)
            names = ", ".join(server.store.tables)
            echo(f"serving {names} at {server.address}; watch it with `{program_name()} top {server.address}`")
            if server.metrics_address is not None:
                scheme = "http" if certificate is None else "https"
                echo(f"metrics at {scheme}://{server.metrics_address}/metrics")
            if page is not None:
                echo(f"dashboard at {page.url}")
            while not stop.wait(1.0):  # on some systems, signals do not interrupt a wait without a timeout
                pass
            echo("stopping")


def _exit_if_given(option: str, value: object) -> None:
    """Ends the command with exit status 2 if an option that needs `--path` is given without it."""
    if value is not None:
        echo(
            f"error: {option} needs --path: without a directory, the tables are in memory only; "
            f"add --path DIR, or omit {option}",
            err=True,
        )
        raise typer.Exit(2)


def _read_tables(tables: Path | None, reverb_config: Path | None) -> tuple[list[engram.Table] | None, int]:
    """Returns the tables of the file that is given, if any, and the port to listen on if `--port` is not given."""
    if tables is not None and reverb_config is not None:
        raise InvalidArgumentError("--tables and --reverb-config must not be given together")
    if reverb_config is not None:
        configured_tables, port = read_reverb_config(reverb_config)
        return configured_tables, port or _DEFAULT_PORT
    return None if tables is None else read_tables(tables), _DEFAULT_PORT


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C and SIGTERM set. Enter it before the server starts, so that no signal is missed."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
