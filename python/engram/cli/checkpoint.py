"""`engram checkpoint`: has a server write its tables to its directory."""

import typer

import engram
from engram.cli.server_options import Address, Ca, Certificate, Key, Token, exit_on_error


def checkpoint(
    address: Address,
    *,
    token: Token = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Write all tables to the server's directory, while it goes on serving."""
    with exit_on_error():
        client = engram.Client(address, token=token, ca=ca, certificate=certificate, key=key)
        made = client.checkpoint()
    typer.echo(f"checkpoint {made.number}: {made.items:,} items, {made.bytes:,} bytes beside the logs")
