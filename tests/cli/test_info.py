"""`engram info`: as text and as JSON."""

import dataclasses
import json

import pytest
from helpers.support import fill

import engram


@pytest.fixture
def server():
    limited = engram.rate_limiters.SampleToInsertRatio(samples_per_insert=1, min_size=2, error_buffer=5)
    tables = [
        engram.Table("replay", max_size=4_000, sampler=engram.selectors.Prioritized(0.7)),
        engram.Table("slow", rate_limiter=limited, signature={"x": engram.ArraySpec((None,), "float32")}),
    ]
    with engram.Server(tables) as server:
        fill(server.store, "replay", range(1_500))
        yield server


def test_one_row_per_table_and_one_line_per_blocked_table(run, server):
    result = run("info", server.address)
    assert result.exit_code == 0, result.output
    header, replay, slow, reason = result.stdout.splitlines()
    assert header.split() == ["table", "items", "bytes", "inserts/s", "samples/s", "per", "insert", "waiting"]
    assert replay.split()[:2] == ["replay", "1,500/4,000"]
    assert replay.split()[3] == "KiB"
    assert slow.split()[:2] == ["slow", "0/1,000,000"]
    assert reason.startswith("`slow`: sampling waits: the table is empty")
    assert result.stderr == ""


def test_json_is_the_only_output(run, server):
    result = run("info", "--json", server.address)
    assert result.exit_code == 0, result.output
    infos = json.loads(result.stdout, parse_constant=pytest.fail)
    expected_infos = server.store.info()
    assert list(infos) == list(expected_infos)
    assert infos["replay"]["rate_limiter"] == {
        "kind": "MinSize",
        "samples_per_insert": 1.0,
        "min_size": 1,
        "min_diff": None,
        "max_diff": None,
    }
    assert infos["slow"]["rate_limiter"]["kind"] == "SampleToInsertRatio"
    assert infos["slow"]["rate_limiter"]["max_diff"] == 7.0
    assert infos["replay"]["sampler"] == {"kind": "Prioritized", "exponent": 0.7}
    assert infos["slow"]["sampler"] == {"kind": "Uniform"}
    assert infos["slow"]["remover"] == {"kind": "Fifo"}
    assert infos["slow"]["signature"] == {"x": {"shape": [None], "dtype": "float32", "name": None}}
    varying = {"sampler", "remover", "rate_limiter", "signature", "inserts_per_s"}
    for name, info in expected_infos.items():
        expected = {key: value for key, value in dataclasses.asdict(info).items() if key not in varying}
        assert {key: value for key, value in infos[name].items() if key not in varying} == expected


@pytest.mark.parametrize("columns", ["20", None])
@pytest.mark.parametrize("command", [("info",), ("top", "--count", 1)])
def test_without_a_terminal_nothing_is_cut_or_wrapped(run, monkeypatch, command, columns):
    monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv("COLUMNS", columns)
    name = "replay/" + "long " * 200
    with engram.Server([engram.Table(name, max_size=4_000_000_000), engram.Table("short")]) as server:
        result = run(*command, server.address)
    assert result.exit_code == 0, result.output
    *_, header, row, short, blocked, also_blocked = result.stdout.splitlines()
    assert header.split()[-1] == "waiting"
    assert row.startswith(f"{name} ")
    assert row.split()[-7:] == ["0/4,000,000,000", "0", "B", "0", "0", "0.00", "0"]
    assert short.split()[0] == "short"
    assert blocked.startswith(f"`{name}`: sampling waits: the table is empty")
    assert also_blocked.startswith("`short`: sampling waits: the table is empty")


def test_the_address_is_read_from_the_environment(run, server, monkeypatch):
    monkeypatch.setenv("ENGRAM_ADDRESS", server.address)
    assert run("info").stdout.startswith("table")


def test_a_server_without_tables_has_no_rows(run):
    with engram.Server([]) as server:
        assert run("info", "--json", server.address).stdout == "{}\n"
        assert len(run("info", server.address).stdout.splitlines()) == 1


def test_an_unreachable_server_is_reported(run, reconnect_timeout):
    with engram.Server([]) as server:
        address = server.address
    result = run("info", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: the server at {address} cannot be reached: connection refused ")
    assert result.stderr.endswith(f"; tried for {reconnect_timeout} s\n")


def test_a_bad_address_is_rejected(run):
    result = run("info", "localhost")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: address is `localhost`: it has no port; give `host:port` or `unix:PATH`\n"


def test_info_sends_the_token(run):
    with engram.Server([engram.Table("t")], token="s3cret") as server:
        assert run("info", server.address, "--token", "s3cret").exit_code == 0
        result = run("info", server.address)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: the server at {server.address} rejected the call: token required")
    assert "; pass the server's token to the client as --token, " in result.stderr
