"""`engram bench`: its results, and that it drops its tables."""

import json
import signal

import pytest
from helpers.support import wait_until

import engram

FIGURES = [
    ("insert, trajectory writer", "steps/s"),
    ("insert, pattern writer", "steps/s"),
    ("insert, 64 environments", "steps/s"),
    ("sample, uniform, batches of 256", "items/s"),
    ("one sample, p50", "us"),
    ("one sample, p99", "us"),
    ("one insert, p50", "us"),
    ("one insert, p99", "us"),
    ("update 256 priorities", "calls/s"),
    ("sample, prioritized, batches of 256", "items/s"),
]


def test_json_has_all_figures_measured_on_an_own_server(run):
    result = run("bench", "--json", "--seconds", 0.02)
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)
    assert results["own_server"]
    assert results["version"] == engram.__version__
    assert [(figure["name"], figure["unit"]) for figure in results["figures"]] == FIGURES
    assert all(figure["value"] > 0 for figure in results["figures"])


def test_a_given_server_keeps_its_tables_unchanged(run):
    with engram.Server([engram.Table("mine")]) as server:
        result = run("bench", server.address, "--seconds", 0.02)
        assert result.exit_code == 0, result.output
        assert server.store.tables == ["mine"]
        assert server.store.info()["mine"].inserts == 0
    assert f"{server.address}; small steps, one client" in result.stdout
    for name, unit in FIGURES:
        row = next(line for line in result.stdout.splitlines() if name in line)
        assert unit in row
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    "wait_for_items",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["at the start", "during a measurement"],
)
def test_ctrl_c_drops_the_tables(spawn, wait_for_items):
    with engram.Server([]) as server:
        bench = spawn("bench", server.address, "--seconds", 60)
        wait_until(lambda: len(server.store.tables) == 2, 60)
        if wait_for_items:
            wait_until(lambda: any(info.inserts for info in server.store.info().values()))
        assert bench.end(signal.SIGINT) == (130, "", "interrupted\n")
        assert server.store.tables == []


def test_an_unreachable_server_is_reported(run, reconnect_timeout):
    with engram.Server([]) as server:
        address = server.address
    result = run("bench", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: the server at {address} cannot be reached")
    assert result.stderr.endswith(f"; tried for {reconnect_timeout} s\n")
