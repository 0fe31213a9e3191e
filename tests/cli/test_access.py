"""Tokens and certificates on the command line: what `serve` asks for, and every other command shows."""

import json
import ssl
import urllib.request

import pytest


def options(**files):
    """`--ca FILE ...` for each."""
    return [each for name, file in files.items() for each in (f"--{name.replace('_', '-')}", file)]


@pytest.fixture
def encrypted(serve, certificates):
    """`engram serve` that asks clients for certificates; the process and its address."""
    wanted = options(**certificates.server, client_ca=certificates.ca)
    served, _, address = serve(*wanted, "--metrics-port", 0)
    return served, address


@pytest.mark.parametrize(
    "command", [("info", "--json"), ("top", "--count", 1), ("bench", "--seconds", 0.02)], ids=lambda each: each[0]
)
def test_every_command_shows_its_certificate(run, encrypted, certificates, command):
    _, address = encrypted
    name, *rest = command
    result = run(name, address, *rest, *options(ca=certificates.ca, **certificates.client))
    assert result.exit_code == 0, result.output
    result = run(name, address, *rest, *options(ca=certificates.ca))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"error: the TLS handshake with the server at {address} failed: it requires a client certificate"
    )


def test_metrics_are_encrypted_where_it_says(encrypted, certificates):
    served, _ = encrypted
    line = served.line()
    assert line.startswith("metrics at https://127.0.0.1:")
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.client["certificate"], certificates.client["key"])
    with urllib.request.urlopen(line.split()[-1], timeout=10, context=context) as answer:
        assert "engram_table_items" in answer.read().decode()


@pytest.mark.parametrize("command", [("top", "--count", 1), ("bench", "--seconds", 0.02)], ids=lambda each: each[0])
def test_every_command_shows_its_token(run, serve, command):
    _, _, address = serve("--token", "s3cret")
    name, *rest = command
    assert run(name, address, *rest, "--token", "s3cret").exit_code == 0
    assert run(name, address, *rest).exit_code == 1
    infos = json.loads(run("info", address, "--json", "--token", "s3cret").stdout)
    assert list(infos) == ["replay"]
