"""The client: the tables of a server, used as if they were here."""

import weakref
from os import PathLike
from pathlib import Path
from typing import Any

from engram import _checks, _engram
from engram.errors import InvalidArgumentError
from engram.server import read_pem
from engram.store import TableStore

__all__ = ["Client"]


class Client(TableStore):
    """The tables of a `Server`, in whatever process or machine that is.

    It has every method of `Store`, with the same promises. What differs is what a network adds: a server
    may go away. Calls then wait up to `reconnect_timeout` seconds for it to come back; writers go on where they
    were, nothing is doubled, and an error names what was not acknowledged. Unlike a store, a client may be
    used in a forked child, and pickled: a copy connects anew, with the same token, which the pickle holds in clear
    text, and reads the same PEM files, of which it holds the absolute paths.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        ca: str | PathLike[str] | None = None,
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        server_name: str | None = None,
        reconnect_timeout: float = 5.0,
    ) -> None:
        """Makes a client; it connects when it is first used.

        Args:
            address: `host:port` of the server.
            token: What the server asks for.
            ca: PEM file with who signed the server's certificate; turns TLS on.
            certificate: PEM file with our own certificate, where the server asks for one; together with `key`.
            key: PEM file with its private key.
            server_name: Name in the server's certificate; None: the host of `address`.
            reconnect_timeout: Seconds that a server may be gone before calls fail.

        Raises:
            InvalidArgumentError: The address is not `host:port`, or a file is unreadable.
        """
        _checks.text("`address`", address)
        if "://" in address:
            scheme = address.partition("://")[0]
            raise InvalidArgumentError(f"address is `{address}`: `{scheme}://` is too much; give `host:port`")
        if token is not None:
            _checks.secret("`token`", token)
        if (certificate is None) != (key is None):
            raise InvalidArgumentError("`certificate` and `key` go together; one of them is missing")
        if ca is None and (certificate is not None or server_name is not None):
            raise InvalidArgumentError("`certificate` and `server_name` need TLS: give a `ca`, too")
        self.address = address
        self._token = token
        self._ca = _absolute(ca)
        self._identity = (_absolute(certificate), _absolute(key))
        self._server_name = server_name
        self._timeout = _checks.positive("`reconnect_timeout`", reconnect_timeout)
        self._connect()

    def _connect(self) -> None:
        certificate, key = self._identity
        identity = None if certificate is None or key is None else (read_pem(certificate), read_pem(key))
        tls = None if self._ca is None else (read_pem(self._ca), identity, self._server_name)
        self._native = _engram.Store.connect(self.address, self._token, tls, self._timeout)
        # A program that ends says first which samples it has used: others would get them again.
        weakref.finalize(self, self._native.flush_acknowledgements)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    def __repr__(self) -> str:
        return f"Client({self.address})"


def _absolute(file: str | PathLike[str] | None) -> str | None:
    return None if file is None else str(Path(file).absolute())
