"""`engram top`, with and without a terminal."""

import signal

import engram


def test_an_update_has_one_row_per_table_and_the_reason_why_it_blocks(run):
    with engram.Server([engram.Table("replay")]) as server:
        result = run("top", server.address, "--count", 1)
    assert result.exit_code == 0, result.output
    heading, columns, replay, reason = result.stdout.splitlines()
    assert heading.startswith(f"{server.address}, ")
    assert columns.split()[0] == "table"
    assert replay.split()[:2] == ["replay", "0/1,000,000"]
    assert reason.startswith("`replay`: sampling waits: the table is empty")


def test_without_a_terminal_updates_are_printed_one_after_the_other(run):
    with engram.Server([engram.Table("replay")]) as server:
        result = run("top", server.address, "--count", 3, "--interval", 0.05)
    assert result.stdout.count(server.address) == 3
    assert "\x1b" not in result.stdout


def test_updates_replace_each_other_on_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes Rich assume a terminal
    with engram.Server([engram.Table("replay")]) as server:
        result = run("top", server.address, "--count", 2, "--interval", 0.05)
    assert result.exit_code == 0, result.output
    up = "\x1b[1A"
    assert up in result.stdout


def test_an_unreachable_server_is_reported(run):
    server = engram.Server([engram.Table("replay")])
    address = server.address
    server.close()
    result = run("top", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: the server at {address} cannot be reached")


def test_ctrl_c_exits_without_a_message(spawn):
    with engram.Server([engram.Table("replay")]) as server:
        top = spawn("top", server.address, "--interval", 60)
        assert top.line().startswith(server.address)
        status, _, stderr = top.end(signal.SIGINT)
    assert (status, stderr) == (0, "")
