"""The server: a store that other processes and machines reach through `Client`."""

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from engram import _checks, _engram
from engram.errors import ForkedError, InvalidArgumentError
from engram.store import Store
from engram.table import Table

__all__ = ["Server"]


class Server:
    """Serves a store's tables over the network until it is stopped.

        with engram.Server([engram.Table("replay")]) as server:
            client = engram.Client(server.address)

    It listens on this machine only unless told otherwise, and then it insists on a token. Its calls
    are served by native threads: the process may do something else, such as learn from `server.store`.
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
        seed: int | None = None,
        path: str | PathLike[str] | None = None,
        durability: Literal["none", "process", "disk"] = "process",
        checkpoint_interval: float | None = 600.0,
    ) -> None:
        """Starts to serve.

        Args:
            store: A store, which `close` leaves open; or tables, which make a store of the server's own.
            host: Name or address to listen on; `"0.0.0.0"` and `"::"` are all of this machine's.
            port: To listen on; 0: any free one, see `port`.
            token: What clients must show; None: nothing. Any text of visible ASCII characters.
            certificate: PEM file to show to clients; turns TLS on, together with `key`.
            key: PEM file with the certificate's private key.
            client_ca: PEM file with who must have signed the clients' certificates; None: they need none.
            insecure: Listen to other machines without a token.
            lease_timeout: Seconds after which a batch that its reader did not acknowledge goes back.
            metrics_port: Tells the server's and its tables' numbers to Prometheus, at `/metrics` on this port of
                `host`, under the same token and certificates; 0: any free port; None: nowhere.
            seed: Of the server's own store.
            path: Directory in which the server's own store lives, see `Store.open`; None: it lives in memory.
            durability: As of `Store.open`.
            checkpoint_interval: As of `Store.open`.

        Raises:
            InvalidArgumentError: A port is taken, a file unreadable, or other machines could do without a token.
        """
        own = not isinstance(store, Store)
        for name, given, what in (("seed", seed, "seeds"), ("path", path, "is of")):
            if not own and given is not None:
                raise InvalidArgumentError(
                    f"`{name}` is {given}; it {what} a store of the server's own, and one was given"
                )
        if token is not None:
            _checks.secret("`token`", token)
        tls = _tls(certificate, key, client_ca)
        port = _checks.integer("`port`", port, low=0, high=65_535)
        if metrics_port is not None:
            metrics_port = _checks.integer("`metrics_port`", metrics_port, low=0, high=65_535)
        lease_timeout = _checks.positive("`lease_timeout`", lease_timeout)
        if isinstance(store, Store):
            self.store = store
        else:
            self.store = _made(store, seed, path, durability, checkpoint_interval)
        self._own = own
        try:
            native = self.store._native  # noqa: SLF001, both halves of one door
            self._native = _engram.Server(
                native, _address(host), port, token, tls, bool(insecure), lease_timeout, metrics_port
            )
        except BaseException:
            if own:
                self.store.close()
            raise

    @property
    def address(self) -> str:
        """`host:port`, for `Client`."""
        return self._native.address

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.address.rpartition(":")[2])

    @property
    def metrics_address(self) -> str | None:
        """`host:port` where `/metrics` is; None where there is none."""
        return self._native.metrics_address

    def close(self) -> None:
        """Ends every remote call that waits, and frees the port. A store of its own is closed. May be called again."""
        self._native.close()
        if self._own:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ForkedError):  # the parent stops what it started
            self.close()

    def __repr__(self) -> str:
        return f"Server({self.address})"


def read_pem(path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the PEM file `{path}`: {error}") from error


def _address(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgumentError(f"`host` is {host!r}, which is no address of this machine: {error}") from error
    return str(found[0][4][0])


def _made(
    tables: Iterable[Table],
    seed: int | None,
    path: str | PathLike[str] | None,
    durability: Literal["none", "process", "disk"],
    checkpoint_interval: float | None,
) -> Store:
    if path is None:
        return Store(tables, seed=seed)
    return Store.open(path, tables, durability=durability, checkpoint_interval=checkpoint_interval, seed=seed)


def _tls(
    certificate: str | PathLike[str] | None, key: str | PathLike[str] | None, client_ca: str | PathLike[str] | None
) -> tuple[bytes, bytes, bytes | None] | None:
    if (certificate is None) != (key is None):
        raise InvalidArgumentError("`certificate` and `key` go together; one of them is missing")
    if certificate is None or key is None:
        if client_ca is not None:
            raise InvalidArgumentError("`client_ca` needs TLS: give a `certificate` and its `key`, too")
        return None
    return read_pem(certificate), read_pem(key), None if client_ca is None else read_pem(client_ca)
