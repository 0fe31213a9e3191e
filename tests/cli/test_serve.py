"""`engram serve`: its tables, options and signals, and stores with a path."""

import errno
import os
import signal
import urllib.request

import numpy as np
import pytest
from helpers.support import BackgroundCall, raises, wait_until

import engram
from engram import rate_limiters
from engram.errors import ClosedError, HandshakeError


def test_a_signal_ends_serving(serve):
    server, line, address = serve()
    assert line == f"serving replay at {address}; watch it with `engram top {address}`\n"
    client = engram.Client(address)
    client.insert({"x": np.float32(1)}, {"replay": 1.0})
    assert client.sample("replay", 2, timeout=10).data["x"].tolist() == [1, 1]
    assert server.end(signal.SIGINT) == (0, "stopping\n", "")


def test_waiting_calls_end_when_the_server_stops(serve):
    server, _, address = serve()
    client = engram.Client(address)
    waiting = BackgroundCall(lambda: client.sample("replay", 1))
    wait_until(lambda: client.info()["replay"].waiting_samples)
    assert server.end(signal.SIGTERM) == (0, "stopping\n", "")
    with raises(ClosedError, f"the server at {address} is stopping"):
        waiting.result()


def test_tables_are_read_from_a_file(serve, tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text(
        """
        [replay]
        max_size = 1_000
        sampler = { kind = "Prioritized", exponent = 0.7 }
        rate_limiter = { kind = "SampleToInsertRatio", samples_per_insert = 4, min_size = 10, error_buffer = 20 }

        [trajectories]
        like = "queue"
        max_size = 5
        """
    )
    server, line, address = serve("--tables", file, "--seed", 3)
    assert line.startswith("serving replay, trajectories at ")
    infos = engram.Client(address).info()
    assert infos["replay"].max_size == 1_000
    assert infos["replay"].rate_limiter == rate_limiters.SampleToInsertRatio(4, 10, 20)
    assert infos["trajectories"].rate_limiter == rate_limiters.Queue(5)
    assert server.end(signal.SIGTERM)[0] == 0


def test_the_same_seed_gives_the_same_samples(serve):
    def sampled(store):
        for value in range(100):
            store.insert({"x": np.float32(value)}, {"replay": 1.0})
        return store.sample("replay", 20, timeout=10).data["x"].tolist()

    _, _, address = serve("--seed", 3)
    here, other = (engram.Store([engram.Table("replay")], seed=seed) for seed in (3, 4))
    assert sampled(engram.Client(address)) == sampled(here) != sampled(other)


def test_the_token_is_read_from_the_environment(serve, monkeypatch):
    monkeypatch.setenv("ENGRAM_TOKEN", "s3cret")
    _, _, address = serve()
    assert engram.Client(address, token="s3cret").tables == ["replay"]
    with pytest.raises(HandshakeError, match="token required, none sent"):
        engram.Client(address).info()


def test_metrics_are_served_at_the_printed_address(serve):
    server, _, _ = serve("--metrics-port", 0)
    line = server.line()
    assert line.startswith("metrics at http://127.0.0.1:")
    with urllib.request.urlopen(line.split()[-1], timeout=10) as response:
        assert 'engram_table_items{table="replay"} 0\n' in response.read().decode()


def test_other_machines_require_a_token_or_insecure(serve, run):
    refusal = (
        "error: refusing to listen at 0.0.0.0:0 without a token, because other machines can reach that address; "
        "set --token, use a loopback address such as 127.0.0.1:0, or set --insecure\n"
    )
    result = run("serve", "--port", 0, "--host", "0.0.0.0")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", refusal)
    _, _, address = serve("--host", "0.0.0.0", "--insecure")
    assert address.startswith("0.0.0.0:")


def test_a_port_in_use_is_rejected(run):
    with engram.Server([]) as other:
        text = f"error: --port {other.port} is already in use; choose another, or 0 for any free port\n"
        result = run("serve", "--port", other.port)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--port", "65536"), "--port must be at most 65535; got 65536"),
        (("--path", "unused", "--checkpoint-interval", "-3"), "--checkpoint-interval must be at least 0; got -3"),
        (("--certificate", "c.pem"), "--certificate and --key must be given together; got only one of them"),
        (
            ("--tables", "missing.toml"),
            f"cannot read tables from `missing.toml`: {os.strerror(errno.ENOENT)}",
        ),
    ],
)
def test_bad_options_are_rejected(run, options, text):
    previous = signal.getsignal(signal.SIGINT)
    result = run("serve", "--port", 0, *options)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {text}\n")
    assert signal.getsignal(signal.SIGINT) is previous


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        (
            '[t]\nsignature = { token = "int64[?" }',
            "table [t] of `t.toml`: `signature`: `token` must be a dtype and a shape",
        ),
        ("[t]\nport = 1", "table [t] of `t.toml`: a table has no key `port`; its keys are"),
        ("key = 1", "`t.toml`: the key `key` is outside of a table"),
    ],
)
def test_keys_and_columns_of_a_file_are_not_options(run, tmp_path, monkeypatch, tables, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.toml").write_text(tables)
    result = run("serve", "--port", 0, "--tables", "t.toml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {text}")


@pytest.mark.parametrize(
    ("args", "parameter"),
    [
        (("serve", "--port", 0, "--path", ""), "--path"),
        (("inspect", ""), "path"),
        (("import-reverb", "checkpoint", "--into", ""), "--into"),
    ],
)
def test_an_empty_path_is_not_the_working_directory(run, tmp_path, monkeypatch, args, parameter):
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    text = f"Invalid value for '{parameter}': must not be empty; give a directory (. is the working directory)"
    assert text in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("--durability", "process"), ("--durability", "disk"), ("--checkpoint-interval", "60")],  # also default values
)
def test_options_of_a_directory_require_a_path(run, option, value):
    text = (
        f"error: {option} needs --path: without a directory, the tables are in memory only; "
        f"add --path DIR, or omit {option}\n"
    )
    result = run("serve", "--port", 0, option, value)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", text)


def test_a_store_with_a_path_is_restored(serve, tmp_path):
    options = [(), ("--durability", "disk", "--checkpoint-interval", 0)]
    for value in range(3):
        server, _, address = serve("--path", tmp_path / "store", *options[value % 2])
        client = engram.Client(address)
        client.insert({"x": value}, {"replay": 1.0})
        assert [batch.data["x"].tolist() for batch in client.scan("replay")] == [[*range(value + 1)]]
        server.end(signal.SIGKILL)
