"""`engram top`, with and without a terminal."""

import signal
import subprocess
import sys

import engram


def test_one_look_without_a_terminal(run):
    with engram.Server([engram.Table("replay")]) as server:
        result = run("top", server.address, "--count", 1)
    assert result.exit_code == 0, result.output
    head, columns, replay, reason = result.stdout.splitlines()
    assert head.startswith(f"{server.address}, ")
    assert columns.split()[0] == "table"
    assert replay.split()[:2] == ["replay", "0/1,000,000"]
    assert reason.startswith("`replay`: sampling waits: 0 of 1 items")


def test_looks_follow_each_other_without_a_terminal(run):
    with engram.Server([engram.Table("replay")]) as server:
        result = run("top", server.address, "--count", 3, "--interval", 0.05)
    assert result.stdout.count(server.address) == 3
    assert "\x1b" not in result.stdout


def test_looks_replace_each_other_on_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes it for a terminal
    with engram.Server([engram.Table("replay")]) as server:
        result = run("top", server.address, "--count", 2, "--interval", 0.05)
    assert result.exit_code == 0, result.output
    up = "\x1b[1A"
    assert up in result.stdout


def test_a_server_that_goes_ends_it(run):
    server = engram.Server([engram.Table("replay")])
    address = server.address
    server.stop()
    result = run("top", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: the server at {address} cannot be reached")


MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from engram.cli import main; main()"


def test_ctrl_c_ends_it_quietly():
    with engram.Server([engram.Table("replay")]) as server:
        command = [sys.executable, "-u", "-c", MAIN, "top", server.address, "--interval", "60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline().startswith(server.address)
            child.send_signal(signal.SIGINT)
            _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (0, "")
