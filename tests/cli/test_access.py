"""Tokens and certificates on the command line: `serve` requires them; `info`, `top` and `bench` send them."""

import errno
import json
import os
import ssl
import urllib.request
from pathlib import Path

import pytest

import engram
from engram.cli.output import describe_error
from engram.errors import InvalidArgumentError, UnknownTableError


def options(**files):
    """Returns command line options, `--ca FILE ...`, for the files."""
    return [each for name, file in files.items() for each in (f"--{name.replace('_', '-')}", file)]


@pytest.fixture
def encrypted(serve, certificates):
    """`engram serve` with TLS and required client certificates: the running command, and the server's address."""
    server_options = options(**certificates.server, client_ca=certificates.ca)
    server, _, address = serve(*server_options, "--metrics-port", 0)
    return server, address


def test_commands_send_the_client_certificate_and_metrics_use_tls(run, encrypted, certificates):
    server, address = encrypted
    for name, *rest in (("info", "--json"), ("top", "--count", 1), ("bench", "--seconds", 0.02)):
        result = run(name, address, *rest, *options(ca=certificates.ca, **certificates.client))
        assert result.exit_code == 0, (name, result.output)
        result = run(name, address, *rest, *options(ca=certificates.ca))
        assert (result.exit_code, result.stdout) == (1, ""), name
        assert result.stderr.startswith(
            f"error: the TLS handshake with the server at {address} failed: it requires a client certificate"
        ), name
    line = server.line()
    assert line.startswith("metrics at https://127.0.0.1:")
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.client["certificate"], certificates.client["key"])
    with urllib.request.urlopen(line.split()[-1], timeout=10, context=context) as response:
        assert "engram_table_items" in response.read().decode()


def test_commands_send_the_token(run, serve):
    _, _, address = serve("--token", "s3cret")
    for name, *rest in (("top", "--count", 1), ("bench", "--seconds", 0.02)):
        assert run(name, address, *rest, "--token", "s3cret").exit_code == 0, name
        assert run(name, address, *rest).exit_code == 1, name
    infos = json.loads(run("info", address, "--json", "--token", "s3cret").stdout)
    assert list(infos) == ["replay"]


def test_errors_name_options_of_the_command_line(run, certificates):
    """Errors of the library name Python arguments; the command line has options instead."""
    result = run("info", "127.0.0.1:1", "--ca", "missing.pem")
    assert (
        result.stderr
        == f"error: --ca: cannot read the PEM file `missing.pem`: {os.strerror(errno.ENOENT)}\n".replace(
            "missing.pem", str(Path("missing.pem").absolute())
        )
    )
    assert run("info", "127.0.0.1:1", "--token", "ä").stderr.startswith("error: --token must consist of visible ASCII")
    with engram.Server([], **certificates.server) as server:
        result = run("info", server.address)
    assert result.stderr == (
        f"error: the server at {server.address} uses TLS; pass the PEM file of its certificate authority as --ca\n"
    )


def test_names_of_tables_and_columns_are_not_turned_into_options():
    for text in ("table `token` is full", "column `key` has no value", "no table `host`; known tables: `port`, `ca`"):
        assert describe_error(UnknownTableError(text)) == text
    text = "table `token`: `port` must be at most 65535"
    assert describe_error(InvalidArgumentError(text)) == "table `token`: --port must be at most 65535"
