"""`engram checkpoint`: makes a server write a checkpoint."""

import engram
from engram.cli.output import echo
from engram.cli.server_options import Address, Ca, Certificate, Key, Token, exit_on_error


def checkpoint(
    address: Address, *, token: Token = None, ca: Ca = None, certificate: Certificate = None, key: Key = None
) -> None:
    """Write a checkpoint of all tables to the server's directory; the server continues to serve."""
    with exit_on_error():
        client = engram.Client(address, token=token, ca=ca, certificate=certificate, key=key)
        written = client.checkpoint()
    echo(f"checkpoint {written.number}: {written.items:,} items, {written.bytes:,} bytes in addition to the logs")
