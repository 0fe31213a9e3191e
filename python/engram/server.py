"""The server: serves a store to clients in other processes and on other machines."""

import ipaddress
import socket
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import NoReturn

from engram import _checks, _engram
from engram._closing_context import ClosedAtBlockEnd
from engram.errors import InvalidArgumentError
from engram.store import Store
from engram.table import Table

__all__ = ["Server"]


MAX_SHARD_ID = 1023
"""The largest shard id: keys have 10 bits for it."""


class Server(ClosedAtBlockEnd):
    """Serves a store's tables over the network until the server is closed.

        with engram.Server([engram.Table("replay")]) as server:
            client = engram.Client(server.address)

    Pass a store to choose its options, such as a directory and its durability. The `with` statement closes the server
    first, then the store:

        store = engram.Store.open("runs/7/replay", [engram.Table("replay")], durability="disk")
        with store, engram.Server(store) as server:
            client = engram.Client(server.address)

    By default the server accepts connections from this machine only. A `host` that other machines can reach requires a
    `token`, unless `insecure` is set. Native threads serve the calls, so the process can do other work meanwhile, such
    as learning from `server.store`.
    """

    def __init__(
        self,
        store: Store | Iterable[Table],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        client_ca: str | PathLike[str] | None = None,
        insecure: bool = False,
        lease_timeout: float = 600.0,
        metrics_port: int | None = None,
        shard_id: int | None = None,
    ) -> None:
        """Starts the server.

        Args:
            store: Store to serve, durable if it was created by `Store.open`. It stays open when the server is closed:
                close it afterwards. If tables are given instead, the server creates a store of them in memory, and
                closes this store when the server is closed.
            host: Name or address to listen on. `"0.0.0.0"` and `"::"` listen on all addresses of this machine.
            port: Port to listen on. 0 chooses a free one; see the property `port`.
            token: Token that clients must present: any visible ASCII characters. Default: clients need none.
            certificate: PEM file with the server's certificate. Enables TLS. Needs `key`.
            key: PEM file with the private key of `certificate`.
            client_ca: PEM file with the certificate authority that must have signed the clients' certificates. Default:
                clients need no certificate.
            insecure: Allow other machines to connect without a token.
            lease_timeout: Seconds after which the items of an unacknowledged batch return to their table, and a scan
                from which nothing was read ends.
            metrics_port: Port of `host` that serves Prometheus metrics at `/metrics`, with the same token and
                certificates. 0 chooses a free one. Default: no metrics.
            shard_id: Number of this server among those that a `ShardedClient` uses, from 1 to 1023. The keys of items
                contain it. No two servers may have the same, and one that is gone must not be used again. Default:
                none; then the calls of a `ShardedClient` that have keys go to all servers.

        Raises:
            InvalidArgumentError: An argument is invalid, a port is in use, a PEM file cannot be read, or other machines
                could connect without a token.
        """
        if not isinstance(store, Store):
            store = _checks.elements("`store`", store, "an engram.Store or a sequence of tables")
        _checks.text("`host`", host)
        if token is not None:
            _checks.secret("`token`", token)
        tls = _tls(certificate, key, client_ca)
        port = _checks.integer("`port`", port, low=0, high=65_535)
        if metrics_port is not None:
            metrics_port = _checks.integer("`metrics_port`", metrics_port, low=0, high=65_535)
        if shard_id is not None:
            shard_id = _checks.integer("`shard_id`", shard_id, high=MAX_SHARD_ID)
        _checks.boolean("`insecure`", insecure)
        lease_timeout = _checks.positive("`lease_timeout`", lease_timeout)
        self.store = store if isinstance(store, Store) else Store(store)
        self._owns_store = self.store is not store
        try:
            native = self.store._native  # noqa: SLF001, the store's native object
            self._native = _engram.Server(
                native, _ip_address(host), port, token, tls, insecure, lease_timeout, metrics_port, shard_id or 0
            )
        except BaseException:
            if self._owns_store:
                self.store.close()
            raise

    @property
    def address(self) -> str:
        """`host:port`, as `Client` expects it."""
        return self._native.address

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        return int(self.address.rpartition(":")[2])

    @property
    def metrics_address(self) -> str | None:
        """`host:port` of the metrics; None if the server has none."""
        return self._native.metrics_address

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a Server cannot be pickled or copied; pass its `address` to other processes, or an engram.Client"
        )

    def close(self) -> None:
        """Ends all waiting remote calls, frees the ports, and closes the store if the server created it.

        Can be called more than once.
        """
        self._native.close()
        if self._owns_store:
            self.store.close()

    def __repr__(self) -> str:
        return f"Server({self.address})"


def read_pem(name: str, path: str | PathLike[str]) -> bytes:
    """Returns the content of the PEM file at `path`. Errors name the argument `name`, which gave the path."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"`{name}`: cannot read the PEM file `{path}`: {error.strerror or error}") from error


def _ip_address(host: str) -> str:
    """Returns the first IP address of a host name, or the IP address that is given."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgumentError(
            f"`host` must be a name or address of this machine; got {host!r}: {error.strerror or error}"
        ) from error
    return str(addresses[0][4][0])


def _tls(
    certificate: str | PathLike[str] | None, key: str | PathLike[str] | None, client_ca: str | PathLike[str] | None
) -> tuple[bytes, bytes, bytes | None] | None:
    """Returns the content of the three files, the last None if clients need no certificate; None without TLS."""
    if (certificate is None) != (key is None):
        raise InvalidArgumentError("`certificate` and `key` must be given together; got only one of them")
    if certificate is None or key is None:
        if client_ca is not None:
            raise InvalidArgumentError("`client_ca` needs TLS; pass `certificate` and `key` too")
        return None
    for name, file in (("certificate", certificate), ("key", key), ("client_ca", client_ca)):
        if file is not None:
            _checks.file(f"`{name}`", file)
    authority = None if client_ca is None else read_pem("client_ca", client_ca)
    return read_pem("certificate", certificate), read_pem("key", key), authority
