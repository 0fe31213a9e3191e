"""Tokens and certificates on the command line: `serve` requires them, all other commands send them."""

import json
import ssl
import urllib.request

import pytest


def options(**files):
    """Returns command line options, `--ca FILE ...`, for the files."""
    return [each for name, file in files.items() for each in (f"--{name.replace('_', '-')}", file)]


@pytest.fixture
def encrypted(serve, certificates):
    """Starts `engram serve` with TLS and client certificates; the process and its address."""
    wanted = options(**certificates.server, client_ca=certificates.ca)
    server, _, address = serve(*wanted, "--metrics-port", 0)
    return server, address


@pytest.mark.parametrize(
    "command", [("info", "--json"), ("top", "--count", 1), ("bench", "--seconds", 0.02)], ids=lambda each: each[0]
)
def test_every_command_sends_its_certificate(run, encrypted, certificates, command):
    _, address = encrypted
    name, *rest = command
    result = run(name, address, *rest, *options(ca=certificates.ca, **certificates.client))
    assert result.exit_code == 0, result.output
    result = run(name, address, *rest, *options(ca=certificates.ca))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"error: the TLS handshake with the server at {address} failed: it requires a client certificate"
    )


def test_metrics_use_tls(encrypted, certificates):
    server, _ = encrypted
    line = server.line()
    assert line.startswith("metrics at https://127.0.0.1:")
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.client["certificate"], certificates.client["key"])
    with urllib.request.urlopen(line.split()[-1], timeout=10, context=context) as response:
        assert "engram_table_items" in response.read().decode()


@pytest.mark.parametrize("command", [("top", "--count", 1), ("bench", "--seconds", 0.02)], ids=lambda each: each[0])
def test_every_command_sends_its_token(run, serve, command):
    _, _, address = serve("--token", "s3cret")
    name, *rest = command
    assert run(name, address, *rest, "--token", "s3cret").exit_code == 0
    assert run(name, address, *rest).exit_code == 1
    infos = json.loads(run("info", address, "--json", "--token", "s3cret").stdout)
    assert list(infos) == ["replay"]
