"""What FTW's arguments of adders mean for those of `engram.adders`."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from engram import Client
from engram.compat.reverb import _arguments
from engram.table_store import TableStore

__all__ = ["ClientLike", "engine_arguments", "store_of"]

ClientLike: TypeAlias = Any
"""A client of `engram.compat.reverb`, an `engram.Client` or an `engram.Store`; of adders and agents also an address."""


def store_of(client: ClientLike) -> TableStore:
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


def engine_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an adder of `engram.adders`, given the local variables of the constructor of FTW's."""
    own = ("self", "__class__", "client", "delta_encoded")
    options = {name: value for name, value in given.items() if name not in own}
    return {
        "client": store_of(given["client"]),
        "compression": "delta" if given["delta_encoded"] else "auto",
        **options,
    }
