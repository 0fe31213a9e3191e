"""What FTW's arguments of adders mean for those of `engram.adders`."""

from typing import Any

from engram import Client
from engram.compat.reverb import _arguments
from engram.table_store import TableStore
from engram.writer import Compression

__all__ = ["compression", "store_of"]


def store_of(client: Any) -> TableStore:  # noqa: ANN401, one of several types
    """Returns the store of an address, a client of `engram.compat.reverb`, an `engram.Client` or `engram.Store`."""
    if isinstance(client, TableStore):
        return client
    address = client if isinstance(client, str) else getattr(client, "server_address", None)
    if not isinstance(address, str):
        raise TypeError(
            "expected an address, a client of engram.compat.reverb, an engram.Client or an engram.Store; got"
            f" {_arguments.describe(client)}"
        )
    return Client(_arguments.host_and_port(address))


def compression(delta_encoded: bool) -> Compression:  # noqa: FBT001, FTW's argument
    """Returns the compression of `delta_encoded`."""
    return "delta" if delta_encoded else "auto"
