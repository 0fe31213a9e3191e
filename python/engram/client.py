"""The client: reads and writes the tables of a server in another process."""

from os import PathLike
from pathlib import Path
from typing import Any

from engram import _checks, _engram
from engram._process_end import finalize
from engram.errors import InvalidArgumentError
from engram.server import read_pem
from engram.table_store import TableStore

__all__ = ["Client"]


class Client(TableStore):
    """The tables of a `Server`, in another process or on another machine.

    A client has the methods of `TableStore`, with the same guarantees as a `Store`. If the server becomes unreachable,
    calls wait up to `reconnect_timeout` seconds for it, then raise `UnavailableError`. Writers resume after a
    reconnect: no item is inserted twice, and error texts state the number of items that were not acknowledged.

    Unlike a store, a client can be used in a forked child process, and pickled. The copy opens its own connection with
    the same token and the same PEM files. The pickle contains the token in clear text, and the absolute paths of the
    files.
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
        """Creates a client; it connects on first use.

        Args:
            address: `host:port` of the server, or `unix:PATH` of its Unix socket, which only a server started from Rust
                can have.
            token: Token that the server requires. Default: none.
            ca: PEM file with the certificate authority that signed the server's certificate. Enables TLS.
            certificate: PEM file with the client's certificate, if the server requires one. Needs `key`.
            key: PEM file with the private key of `certificate`.
            server_name: Name in the server's certificate. Default: the host of `address`.
            reconnect_timeout: Seconds to wait for an unreachable server before calls fail.

        Raises:
            InvalidArgumentError: `address` is neither `host:port` nor `unix:PATH`, a file cannot be read, or arguments
                contradict each other.
        """
        _check_address(address)
        if token is not None:
            _checks.secret("`token`", token)
        if (certificate is None) != (key is None):
            raise InvalidArgumentError("`certificate` and `key` must be given together; got only one of them")
        if ca is None and (certificate is not None or server_name is not None):
            raise InvalidArgumentError("`certificate` and `server_name` need TLS; pass `ca` too")
        if server_name is not None:
            _checks.text("`server_name`", server_name)
        self.address = address
        self._token = token
        self._ca = _absolute("`ca`", ca)
        self._certificate = _absolute("`certificate`", certificate)
        self._key = _absolute("`key`", key)
        self._server_name = server_name
        self._reconnect_timeout = _checks.positive("`reconnect_timeout`", reconnect_timeout)
        self._connect()

    def set_address(self, address: str) -> None:
        """Sets the address of a server that has moved, for example because its machine failed.

        Later connections go to the new address, and those to the old one are closed. Writers, streams and waiting calls
        continue: what was not answered is sent again, and no item is lost or inserted twice if the server at the new
        address has the same store. Call it for pickled copies that were made before, too.

        Args:
            address: As in the constructor. Token and certificates stay the same.

        Raises:
            InvalidArgumentError: `address` is neither `host:port` nor `unix:PATH`.
        """
        _check_address(address)
        self._native.set_address(address)
        self.address = address

    def _connect(self) -> None:
        identity = None
        if self._certificate is not None and self._key is not None:
            identity = (read_pem("certificate", self._certificate), read_pem("key", self._key))
        tls = None if self._ca is None else (read_pem("ca", self._ca), identity, self._server_name)
        self._native = _engram.Store.connect(self.address, self._token, tls, self._reconnect_timeout)
        # At exit, and when this client is garbage-collected, wait until the server knows which samples were consumed;
        # otherwise it would hand them out again.
        finalize(self, self._native.wait_for_pending_replies)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    def __repr__(self) -> str:
        return f"Client({self.address})"


def _check_address(address: str) -> None:
    _checks.text("`address`", address)
    if "://" in address:
        scheme = address.partition("://")[0]
        raise InvalidArgumentError(
            f"address is `{address}`: it has the scheme `{scheme}://`; give `host:port` or `unix:PATH`"
        )


def _absolute(what: str, file: str | PathLike[str] | None) -> str | None:
    return None if file is None else str(Path(_checks.file(what, file)).absolute())
