"""Access to servers: tokens, certificates, addresses."""

import contextlib
import errno
import http.server
import os
import re
import socket
import threading

import numpy as np
import pytest
import trustme
from helpers.support import BackgroundCall, raises

import engram
from engram.errors import HandshakeError, InvalidArgumentError, UnavailableError

TOKEN_ADVICE = (
    "pass the server's token to the client as `token`, which sends it as metadata `authorization: Bearer TOKEN` "
    "(dm-reverb clients cannot send one)"
)
TOKEN = "s3cret"
STEP = {"x": np.float32(1)}


def serve(*options, **named):
    return engram.Server([engram.Table("t")], *options, **named)


# --- tokens --------------------------------------------------------------------------------------


def write(client):
    with client.writer() as writer:
        writer.append(STEP)
        writer.create_item("t", 1.0, num_steps=1)


def read_dataset(client):
    with engram.Dataset(client, "t", batch_size=1, timeout=10) as dataset:
        next(iter(dataset))


CALLS = {
    "info": lambda client: client.info(),
    "create": lambda client: client.create_table(engram.Table("u")),
    "insert": lambda client: client.insert(STEP, {"t": 1.0}),
    "sample": lambda client: client.sample("t", 1, timeout=10),
    "update": lambda client: client.update_priorities("t", [1], [1.0]),
    "delete": lambda client: client.delete("t", [1]),
    "writer": write,
    "dataset": read_dataset,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_require_the_token(call):
    with serve(token=TOKEN) as server:
        prefix = f"the server at {server.address} rejected the call: "
        with raises(HandshakeError, f"{prefix}token required, none sent; {TOKEN_ADVICE}"):
            call(engram.Client(server.address))
        with raises(HandshakeError, f"{prefix}wrong token; {TOKEN_ADVICE}"):
            call(engram.Client(server.address, token=TOKEN + "7"))
        assert server.store.info()["t"].inserts == 0
        assert server.store.tables == ["t"]


def test_a_valid_token_is_accepted_and_a_server_without_a_token_ignores_it():
    for token in (TOKEN, None):
        with serve(token=token) as server:
            client = engram.Client(server.address, token=TOKEN)
            client.insert(STEP, {"t": 1.0})
            assert client.sample("t", 1, timeout=10).data["x"].tolist() == [1]


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("", "the given token is empty"),
        ("ä", "character 1 of 1 of the given token is not visible ASCII"),
        ("two words", "character 4 of 9 of the given token is white space"),
        ("ümlaut", "character 1 of 6 of the given token is not visible ASCII"),
        ("line\n", "character 5 of 5 of the given token is a line break"),
    ],
)
def test_tokens_must_be_visible_ascii(token, problem):
    text = f"`token` must consist of visible ASCII characters, at least one; {problem}"
    with raises(InvalidArgumentError, text):
        serve(token=token)
    with raises(InvalidArgumentError, text):
        engram.Client("127.0.0.1:1", token=token)


def test_tokens_must_be_text():
    text = "`token` must be a str; got a value of type bytes"
    with raises(InvalidArgumentError, text):
        serve(token=TOKEN.encode())
    with raises(InvalidArgumentError, text):
        engram.Client("127.0.0.1:1", token=TOKEN.encode())


def test_repr_does_not_show_the_token():
    with serve(token=TOKEN) as server:
        assert TOKEN not in repr(server)
        assert TOKEN not in repr(engram.Client(server.address, token=TOKEN))


# --- certificates --------------------------------------------------------------------------------


def test_the_servers_certificate_must_be_signed_by_the_clients_ca(certificates, other_certificates):
    with serve(**certificates.server) as server:
        trusting = engram.Client(server.address, ca=certificates.ca)
        trusting.insert(STEP, {"t": 1.0})
        assert trusting.sample("t", 1, timeout=10).data["x"].tolist() == [1]
        prefix = f"the TLS handshake with the server at {server.address} failed: "
        with pytest.raises(HandshakeError) as caught:
            engram.Client(server.address, ca=other_certificates.ca).info()
        assert str(caught.value) == f"{prefix}its certificate is not signed by the authority given as `ca`"


def test_the_servers_certificate_must_have_the_expected_name(certificates):
    with serve(**certificates.server) as server:
        with pytest.raises(HandshakeError) as caught:
            engram.Client(server.address, ca=certificates.ca, server_name="other.example.org").info()
        assert str(caught.value).endswith(
            ": its certificate is not valid for `other.example.org`; pass one of the names in its subjectAltName as "
            "`server_name` (a common name does not count)"
        )
        named = engram.Client(f"localhost:{server.port}", ca=certificates.ca, server_name="127.0.0.1")
        assert named.tables == ["t"]


def test_a_server_must_not_use_the_certificate_of_an_authority(tmp_path):
    authority, ca, key = trustme.CA(), tmp_path / "ca.pem", tmp_path / "ca.key"
    authority.cert_pem.write_to_path(ca)
    authority.private_key_pem.write_to_path(key)
    with serve(certificate=ca, key=key) as server, pytest.raises(HandshakeError) as caught:
        engram.Client(server.address, ca=ca).info()
    assert str(caught.value).endswith(
        ": its certificate is that of an authority (CA:TRUE), which a server must not use; issue a server certificate"
    )


def test_a_server_with_client_ca_requires_a_client_certificate(certificates, other_certificates):
    with serve(**certificates.server, client_ca=certificates.ca) as server:
        known = engram.Client(server.address, ca=certificates.ca, **certificates.client)
        assert known.tables == ["t"]
        for files in ({}, other_certificates.client):
            with pytest.raises(HandshakeError) as caught:
                engram.Client(server.address, ca=certificates.ca, **files).info()
            prefix = f"the TLS handshake with the server at {server.address} failed: "
            assert str(caught.value).startswith(prefix)


def test_a_server_with_tls_also_requires_its_token(certificates):
    with serve(**certificates.server, token=TOKEN) as server:
        with pytest.raises(HandshakeError, match="token required, none sent"):
            engram.Client(server.address, ca=certificates.ca).info()
        assert engram.Client(server.address, ca=certificates.ca, token=TOKEN).tables == ["t"]


def test_an_error_states_what_to_change_if_only_one_side_uses_tls(certificates):
    with (
        serve(**certificates.server) as server,
        raises(
            HandshakeError,
            f"the server at {server.address} uses TLS; pass the PEM file of its certificate authority as `ca`",
        ),
    ):
        engram.Client(server.address).info()
    with (
        serve() as server,
        raises(
            HandshakeError,
            f"the TLS handshake with the server at {server.address} failed: it does not use TLS; omit `ca`",
        ),
    ):
        engram.Client(server.address, ca=certificates.ca).info()


def test_a_client_retries_a_handshake_that_was_cut(certificates):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = engram.Client(f"127.0.0.1:{port}", ca=certificates.ca, reconnect_timeout=20.0)
        call = BackgroundCall(lambda: client.tables)
        connection, _ = listener.accept()
        connection.recv(1 << 16)
        connection.close()
    with serve(port=port, **certificates.server):
        assert call.result() == ["t"]


def test_incomplete_sets_of_pem_files_are_rejected(certificates, tmp_path):
    pair = "`certificate` and `key` must be given together; got only one of them"
    for one in ("certificate", "key"):
        only = {one: certificates.server[one]}
        with raises(InvalidArgumentError, pair):
            serve(**only)
        with raises(InvalidArgumentError, pair):
            engram.Client("127.0.0.1:1", ca=certificates.ca, **only)
    with raises(InvalidArgumentError, "`client_ca` needs TLS; pass `certificate` and `key` too"):
        serve(client_ca=certificates.ca)
    for needs_ca in (certificates.client, {"server_name": "name"}):
        with raises(InvalidArgumentError, "`certificate` and `server_name` need TLS; pass `ca` too"):
            engram.Client("127.0.0.1:1", **needs_ca)
    with raises(InvalidArgumentError, "`key` must not be empty; give the path of a file"):
        serve(**certificates.server | {"key": ""})
    with raises(InvalidArgumentError, "`ca` must not be empty; give the path of a file"):
        engram.Client("127.0.0.1:1", ca="")
    missing = tmp_path / "missing.pem"
    unreadable = f"cannot read the PEM file `{missing}`: {os.strerror(errno.ENOENT)}"
    with raises(InvalidArgumentError, f"`certificate`: {unreadable}"):
        serve(certificate=missing, key=missing)
    with raises(InvalidArgumentError, f"`ca`: {unreadable}"):
        engram.Client("127.0.0.1:1", ca=missing)


def test_unusable_pem_files_are_rejected(certificates, tmp_path):
    binary, text = tmp_path / "binary", tmp_path / "text"
    binary.write_bytes(b"\xff\xfe")
    text.write_text("no certificate")
    key = certificates.server["key"]
    with raises(
        InvalidArgumentError, "`certificate` must be a PEM file, which is plain text; got a file that is not UTF-8"
    ):
        serve(certificate=binary, key=key)
    for files in (
        {"certificate": text, "key": key},
        {"certificate": certificates.server["certificate"], "key": text},
        {**certificates.server, "client_ca": text},
        {"certificate": certificates.server["certificate"], "key": certificates.client["key"]},
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            serve(**files)
        assert str(caught.value).startswith("`certificate`, `key` or `client_ca` cannot be used: ")
        assert ".;" not in str(caught.value)
    for junk in (binary, text):
        with raises(
            InvalidArgumentError,
            (
                "`ca` holds no certificate; it must be a PEM file with the certificate of the authority that signed "
                "the server's"
            ),
        ):
            engram.Client("127.0.0.1:1", ca=junk)
    with pytest.raises(InvalidArgumentError, match=r"^`ca`, `certificate` or `key` cannot be used: "):
        engram.Client("127.0.0.1:1", ca=certificates.ca, certificate=text, key=text)


# --- addresses -----------------------------------------------------------------------------------


def test_a_port_in_use_is_rejected_and_free_after_close():
    with serve() as server:
        address, port = server.address, server.port
        with raises(InvalidArgumentError, f"`port` {port} is already in use; choose another, or 0 for any free port"):
            serve(port=port)
    with serve(port=port) as again:
        assert again.address == address


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "0.0.0.0"), ("::", "[::]")])
def test_listening_to_other_machines_requires_a_token_or_insecure(host, shown):
    text = (
        f"refusing to listen at {shown}:0 without a token, because other machines can reach that address; "
        "set `token`, use a loopback address such as 127.0.0.1:0, or set `insecure`"
    )
    for metrics_port in (None, 0):
        with raises(InvalidArgumentError, text):
            serve(host=host, metrics_port=metrics_port)


@pytest.mark.parametrize("option", [{"token": TOKEN}, {"insecure": True}])
def test_a_token_or_insecure_allows_other_machines(option):
    with serve(host="0.0.0.0", **option) as server:
        assert server.address == f"0.0.0.0:{server.port}"
        client = engram.Client(f"127.0.0.1:{server.port}", token=option.get("token"))
        assert client.tables == ["t"]


@pytest.mark.parametrize("insecure", ["false", 1, None])
def test_insecure_must_be_a_bool(insecure):
    with pytest.raises(InvalidArgumentError, match=r"^`insecure` must be True or False; got "):
        serve(host="0.0.0.0", insecure=insecure)


def test_host_names_of_this_machine_are_accepted():
    with serve(host="localhost") as server:
        assert server.address in {f"127.0.0.1:{server.port}", f"[::1]:{server.port}"}
        assert engram.Client(server.address).tables == ["t"]


def test_hosts_of_other_machines_are_rejected():
    with pytest.raises(InvalidArgumentError) as caught:
        serve(host="192.0.2.1", token=TOKEN)
    assert str(caught.value) == (
        "`host` 192.0.2.1 is not an address of this machine; use one of its addresses, or 0.0.0.0 for all of them"
    )
    with pytest.raises(
        InvalidArgumentError, match=r"^`host` must be a name or address of this machine; got 'unknown host': \w[^\[]+$"
    ):
        serve(host="unknown host")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("localhost", "it has no port; give `host:port` or `unix:PATH`"),
        ("localhost:", "the port must be a number from 1 to 65535; give `host:port` or `unix:PATH`"),
        (":7077", "it has no host; give `host:port` or `unix:PATH`"),
        ("localhost:99999", "the port must be a number from 1 to 65535; give `host:port` or `unix:PATH`"),
        ("::1:7077", "an IPv6 address needs brackets; give `[::1]:7077`"),
        ("fe80::1", "an IPv6 address needs brackets; give `[fe80::1]:port`"),
        ("a:b:7077", "the host name is invalid; give `host:port` or `unix:PATH`"),
        ("unix:", "it has no path; give `unix:PATH`"),
        ("http://localhost:7077", "it has the scheme `http://`; give `host:port` or `unix:PATH`"),
    ],
)
def test_bad_addresses_are_rejected(address, reason):
    with raises(InvalidArgumentError, f"address is `{address}`: {reason}"):
        engram.Client(address)


def test_addresses_must_be_text():
    with raises(InvalidArgumentError, "`address` must be a str; got 7077 (int)"):
        engram.Client(7077)


class OtherProgram:
    """A program that is not an Engram server. It answers with `response`, then hangs up."""

    def __init__(self, response):
        self._response = response
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            with contextlib.suppress(ConnectionError):
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(self._response)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # closing with unread data would discard the response
                        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "a web server (HTTP/1) listens there, not an Engram server; is the port right?",
        ),
        (b"-ERR unknown command\r\n", "another program listens there, not an Engram server; is the port right?"),
        (b"", "it closed the connection before it sent anything (is it an Engram server?)"),
    ],
    ids=["web server", "other", "nothing"],
)
def test_another_program_at_the_address_is_reported(certificates, response, reason, with_tls):
    ca = certificates.ca if with_tls else None
    with OtherProgram(response) as other, pytest.raises(UnavailableError) as caught:
        engram.Client(other.address, ca=ca, reconnect_timeout=0.3).info()
    assert str(caught.value) == (
        f"the server at {other.address} cannot be reached: {reason}; tried for 0.3 s (`reconnect_timeout`)"
    )


def test_a_web_server_at_the_address_is_reported():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{web.server_port}"
        with pytest.raises(UnavailableError, match=re.escape("a web server (HTTP/1) listens there, not an Engram")):
            engram.Client(address, reconnect_timeout=1.0).info()
        web.shutdown()


def test_a_silent_program_at_the_address_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            engram.Client(address, reconnect_timeout=1.0).info()
    assert str(caught.value) == (
        f"the server at {address} cannot be reached: it accepts connections, but does not respond (is it frozen, or "
        "not an Engram server?); tried for 1 s (`reconnect_timeout`)"
    )


def test_an_address_without_a_server_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
    with pytest.raises(UnavailableError) as caught:
        engram.Client(address, reconnect_timeout=0.3).info()
    assert str(caught.value) == (
        f"the server at {address} cannot be reached: connection refused (is it running? is the port right?); tried for "
        "0.3 s (`reconnect_timeout`)"
    )


def test_a_host_that_does_not_exist_is_reported():
    with pytest.raises(UnavailableError) as caught:
        engram.Client("no-such-host.invalid:7077", reconnect_timeout=0.3).info()
    assert re.fullmatch(  # the resolver's text depends on the system
        r"the server at no-such-host\.invalid:7077 cannot be reached: the host name cannot be resolved \([^()]+\); "
        r"tried for 0\.3 s \(`reconnect_timeout`\)",
        str(caught.value),
    )


def test_a_huge_reconnect_timeout_is_accepted():
    with serve() as server, engram.Client(server.address, reconnect_timeout=1e19) as client:
        assert client.tables == ["t"]
