"""Who may listen where, and who may call: tokens, certificates, addresses."""

import socket

import numpy as np
import pytest
from support import BackgroundCall, raises

import engram
from engram.errors import HandshakeError, InvalidArgumentError, UnavailableError

HOW = (
    "pass the server's token to the client as `token`, which sends it as metadata `authorization: Bearer TOKEN` "
    "(dm-reverb clients cannot send one)"
)
TOKEN = "s3cret"
STEP = {"x": np.float32(1)}


def make(*options, **named):
    return engram.Server([engram.Table("t")], *options, **named)


# --- tokens --------------------------------------------------------------------------------------


def written(client):
    with client.writer() as writer:
        writer.append(STEP)
        writer.create_item("t", 1.0, num_steps=1)


def loaded(client):
    with engram.Dataset(client, "t", batch_size=1, timeout=10) as dataset:
        next(iter(dataset))


CALLS = {
    "info": lambda client: client.info(),
    "create": lambda client: client.create_table(engram.Table("u")),
    "insert": lambda client: client.insert(STEP, {"t": 1.0}),
    "sample": lambda client: client.sample("t", 1, timeout=10),
    "update": lambda client: client.update_priorities("t", [1], [1.0]),
    "delete": lambda client: client.delete("t", [1]),
    "writer": written,
    "dataset": loaded,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_call_goes_without_the_token(call):
    with make(token=TOKEN) as server:
        refuses = f"the server at {server.address} rejected the call: "
        with raises(HandshakeError, f"{refuses}token required, none sent; {HOW}"):
            call(engram.Client(server.address))
        with raises(HandshakeError, f"{refuses}wrong token; {HOW}"):
            call(engram.Client(server.address, token=TOKEN + "7"))
        assert server.store.info()["t"].inserts == 0
        assert server.store.tables == ["t"]


def test_the_token_lets_in_and_an_open_server_does_not_mind_one():
    for token in (TOKEN, None):
        with make(token=token) as server:
            client = engram.Client(server.address, token=TOKEN)
            client.insert(STEP, {"t": 1.0})
            assert client.sample("t", 1, timeout=10).data["x"].tolist() == [1]


@pytest.mark.parametrize("token", ["", "two words", "ümlaut", "line\n"])
def test_a_token_must_be_sendable(token):
    text = (
        f"`token` must consist of visible ASCII characters, at least one; the given token has {len(token)} characters"
    )
    with raises(InvalidArgumentError, text):
        make(token=token)


def test_a_client_refuses_a_token_that_cannot_be_sent():
    with raises(InvalidArgumentError, "`token` must consist of visible ASCII characters only"):
        engram.Client("127.0.0.1:1", token="line\n")


def test_a_token_is_text():
    text = "`token` must be a str; got a value of type bytes"
    with raises(InvalidArgumentError, text):
        make(token=TOKEN.encode())
    with raises(InvalidArgumentError, text):
        engram.Client("127.0.0.1:1", token=TOKEN.encode())


def test_a_token_is_shown_by_nobody():
    with make(token=TOKEN) as server:
        assert TOKEN not in repr(server)
        assert TOKEN not in repr(engram.Client(server.address, token=TOKEN))


# --- certificates --------------------------------------------------------------------------------


def test_a_certificate_is_checked_by_who_signed_it(certificates, other_certificates):
    with make(**certificates.server) as server:
        trusting = engram.Client(server.address, ca=certificates.ca)
        trusting.insert(STEP, {"t": 1.0})
        assert trusting.sample("t", 1, timeout=10).data["x"].tolist() == [1]
        disagree = f"the TLS handshake with the server at {server.address} failed: "
        with pytest.raises(HandshakeError) as caught:
            engram.Client(server.address, ca=other_certificates.ca).info()
        assert str(caught.value).startswith(disagree)
        assert "certificate" in str(caught.value)


def test_a_certificate_is_for_a_name(certificates):
    with make(**certificates.server) as server:
        with pytest.raises(HandshakeError) as caught:
            engram.Client(server.address, ca=certificates.ca, server_name="other.example.org").info()
        assert "other.example.org" in str(caught.value)
        named = engram.Client(f"localhost:{server.port}", ca=certificates.ca, server_name="127.0.0.1")
        assert named.tables == ["t"]


def test_clients_show_their_certificate_where_they_must(certificates, other_certificates):
    with make(**certificates.server, client_ca=certificates.ca) as server:
        known = engram.Client(server.address, ca=certificates.ca, **certificates.client)
        assert known.tables == ["t"]
        for shown in ({}, other_certificates.client):
            with pytest.raises(HandshakeError) as caught:
                engram.Client(server.address, ca=certificates.ca, **shown).info()
            disagree = f"the TLS handshake with the server at {server.address} failed: "
            assert str(caught.value).startswith(disagree)


def test_token_and_certificate_are_both_asked_for(certificates):
    with make(**certificates.server, token=TOKEN) as server:
        with pytest.raises(HandshakeError, match="token required, none sent"):
            engram.Client(server.address, ca=certificates.ca).info()
        assert engram.Client(server.address, ca=certificates.ca, token=TOKEN).tables == ["t"]


def test_plain_clients_and_encrypted_servers_do_not_meet(certificates):
    with make(**certificates.server) as server, pytest.raises(UnavailableError) as caught:
        engram.Client(server.address, reconnect_timeout=0.5).info()
    unreachable = f"the server at {server.address} cannot be reached: "
    assert str(caught.value).startswith(unreachable)
    assert str(caught.value).endswith(
        " (is it an Engram server? if it uses TLS, pass `ca`); tried for 0.5 s (`reconnect_timeout`)"
    )
    with make() as server, pytest.raises(HandshakeError, match="it does not use TLS; create the client without `ca`"):
        engram.Client(server.address, ca=certificates.ca).info()


def test_a_server_that_goes_away_during_a_handshake_is_tried_again(certificates):
    with socket.create_server(("127.0.0.1", 0)) as going:
        port = going.getsockname()[1]
        client = engram.Client(f"127.0.0.1:{port}", ca=certificates.ca, reconnect_timeout=20.0)
        asking = BackgroundCall(lambda: client.tables)
        connection, _ = going.accept()
        connection.recv(1 << 16)
        connection.close()
    with make(port=port, **certificates.server):
        assert asking.result() == ["t"]


def test_files_that_do_not_go_together_are_refused(certificates, tmp_path):
    pair = "`certificate` and `key` must be given together; got only one of them"
    for one in ("certificate", "key"):
        only = {one: certificates.server[one]}
        with raises(InvalidArgumentError, pair):
            make(**only)
        with raises(InvalidArgumentError, pair):
            engram.Client("127.0.0.1:1", ca=certificates.ca, **only)
    with raises(InvalidArgumentError, "`client_ca` needs TLS; pass `certificate` and `key` too"):
        make(client_ca=certificates.ca)
    for without in (certificates.client, {"server_name": "name"}):
        with raises(InvalidArgumentError, "`certificate` and `server_name` need TLS; pass `ca` too"):
            engram.Client("127.0.0.1:1", **without)
    missing = tmp_path / "missing.pem"
    unreadable = f"cannot read the PEM file `{missing}`: [Errno 2] No such file or directory: '{missing}'"
    with raises(InvalidArgumentError, unreadable):
        make(certificate=missing, key=missing)
    with raises(InvalidArgumentError, unreadable):
        engram.Client("127.0.0.1:1", ca=missing)


def test_files_that_hold_something_else_are_refused(certificates, tmp_path):
    binary, text = tmp_path / "binary", tmp_path / "text"
    binary.write_bytes(b"\xff\xfe")
    text.write_text("no certificate")
    key = certificates.server["key"]
    with raises(
        InvalidArgumentError, "`certificate` must be a PEM file, which is plain text; got a file that is not UTF-8"
    ):
        make(certificate=binary, key=key)
    for files in (
        {"certificate": text, "key": key},
        {"certificate": certificates.server["certificate"], "key": text},
        {**certificates.server, "client_ca": text},
        {"certificate": certificates.server["certificate"], "key": certificates.client["key"]},
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            make(**files)
        assert str(caught.value).startswith("`certificate`, `key` or `client_ca` cannot be used: ")
    for junk in (binary, text):
        with raises(
            InvalidArgumentError,
            "`ca` holds no certificate; it must be a PEM file with the certificate of the authority that signed the server's",
        ):
            engram.Client("127.0.0.1:1", ca=junk)
    with pytest.raises(InvalidArgumentError, match=r"^`ca`, `certificate` or `key` cannot be used: "):
        engram.Client("127.0.0.1:1", ca=certificates.ca, certificate=text, key=text)


# --- addresses -----------------------------------------------------------------------------------


def test_a_taken_port_is_refused_and_free_after_stop():
    with make() as server:
        address, port = server.address, server.port
        with raises(InvalidArgumentError, f"cannot listen at {address}: Address already in use (os error 98)"):
            make(port=port)
    with make(port=port) as again:
        assert again.address == address


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "0.0.0.0"), ("::", "[::]")])
def test_other_machines_need_a_token_or_consent(host, shown):
    text = (
        f"refusing to listen at {shown}:0 without a token, because other machines can reach that address; "
        "set `token`, use a loopback address such as 127.0.0.1:0, or set `insecure`"
    )
    for metrics_port in (None, 0):
        with raises(InvalidArgumentError, text):
            make(host=host, metrics_port=metrics_port)


@pytest.mark.parametrize("consent", [{"token": TOKEN}, {"insecure": True}])
def test_consent_opens_the_address(consent):
    with make(host="0.0.0.0", **consent) as server:
        assert server.address == f"0.0.0.0:{server.port}"
        client = engram.Client(f"127.0.0.1:{server.port}", token=consent.get("token"))
        assert client.tables == ["t"]


def test_names_of_this_machine_are_resolved():
    with make(host="localhost") as server:
        assert server.address in {f"127.0.0.1:{server.port}", f"[::1]:{server.port}"}
        assert engram.Client(server.address).tables == ["t"]


def test_hosts_that_are_not_here():
    with pytest.raises(InvalidArgumentError) as caught:
        make(host="192.0.2.1", token=TOKEN)
    assert str(caught.value) == "cannot listen at 192.0.2.1:0: Cannot assign requested address (os error 99)"
    with pytest.raises(
        InvalidArgumentError, match=r"^`host` must be a name or address of this machine; got 'no such host': "
    ):
        make(host="no such host")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost", "it has no port"),
        ("localhost:", "the port must be a number from 1 to 65535"),
        (":7077", "it has no host"),
        ("localhost:99999", "the port must be a number from 1 to 65535"),
        ("unix:", "it has no path"),
        ("http://localhost:7077", "it has the scheme `http://`"),
    ],
)
def test_addresses_that_are_none(address, why):
    with raises(InvalidArgumentError, f"address is `{address}`: {why}; give `host:port`"):
        engram.Client(address)


def test_an_address_is_text():
    with raises(InvalidArgumentError, "`address` must be a str; got 7077 (int)"):
        engram.Client(7077)


def test_something_else_listens_there():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            engram.Client(address, reconnect_timeout=0.3).info()
    assert str(caught.value) == (
        f"the server at {address} cannot be reached: it does not reply; tried for 0.3 s (`reconnect_timeout`)"
    )


def test_a_server_may_be_gone_for_longer_than_clocks_run():
    with make() as server, engram.Client(server.address, reconnect_timeout=1e19) as client:
        assert client.tables == ["t"]
