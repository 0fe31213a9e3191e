"""`engram top`, with and without a terminal."""

import os
import pty
import signal
import subprocess
import termios
import time

import pytest
from helpers.support import BackgroundCall, wait_until

import engram

SHORT_RECONNECT_TIMEOUT = "import engram; engram.Client.__init__.__kwdefaults__['reconnect_timeout'] = 0.3\n"
"""A program after which commands try to reach a server for 0.3 s, not 5 s."""


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


def test_an_unreachable_server_is_reported(run, reconnect_timeout):
    server = engram.Server([engram.Table("replay")])
    address = server.address
    server.close()
    result = run("top", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: the server at {address} cannot be reached")
    assert result.stderr.endswith(f"; tried for {reconnect_timeout} s\n")


def test_ctrl_c_exits_without_a_message(spawn):
    with engram.Server([engram.Table("replay")]) as server:
        top = spawn("top", server.address, "--interval", 60)
        assert top.line().startswith(server.address)
        status, _, stderr = top.end(signal.SIGINT)
    assert (status, stderr) == (0, "")


@pytest.fixture
def terminal():
    """A pseudo-terminal: the file descriptors of its two ends."""
    ends = pty.openpty()
    yield ends
    for end in reversed(ends):
        os.close(end)


@pytest.fixture
def start_top(spawn, terminal):
    """Returns `start_top(*args)`, which starts `engram top` on the terminal and waits until it reads keys."""

    def start(*args, **options):
        screen, keyboard = terminal
        top = spawn("top", *args, **options, stdin=keyboard, stdout=keyboard)
        BackgroundCall(lambda: [None for _ in iter(lambda: os.read(screen, 4096), b"")])  # so that it can print
        wait_until(lambda: not termios.tcgetattr(keyboard)[3] & (termios.ICANON | termios.ECHO), 60)
        return top

    return start


@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signals_end_it_and_restore_the_terminal(start_top, terminal, signal_number, status):
    state = termios.tcgetattr(terminal[1])
    with engram.Server([engram.Table("replay")]) as server:
        top = start_top(server.address, "--interval", 60)
        assert top.end(signal_number) == (status, None, "")
    assert termios.tcgetattr(terminal[1]) == state


def test_an_error_restores_the_terminal(start_top, terminal):
    state = termios.tcgetattr(terminal[1])
    with engram.Server([engram.Table("replay")]) as server:
        top = start_top(server.address, "--interval", 0.05, before=SHORT_RECONNECT_TIMEOUT)
    status, _, stderr = top.end()
    assert status == 1
    assert stderr.startswith("error: ")
    assert termios.tcgetattr(terminal[1]) == state


def test_q_ends_it_and_restores_the_terminal_and_other_keys_do_not_shorten_an_interval(start_top, terminal):
    state = termios.tcgetattr(terminal[1])
    with engram.Server([engram.Table("replay")]) as server:
        top = start_top(server.address, "--count", 2, "--interval", 60)
        os.write(terminal[0], b"abcQ\n")
        with pytest.raises(subprocess.TimeoutExpired):
            top.process.wait(0.5)
        os.write(terminal[0], b"xyq")
        assert top.end() == (0, None, "")
    assert termios.tcgetattr(terminal[1]) == state


@pytest.mark.slow
def test_it_ends_after_its_last_update_and_restores_the_terminal_if_other_keys_were_pressed(start_top, terminal):
    state = termios.tcgetattr(terminal[1])
    start = time.monotonic()
    with engram.Server([engram.Table("replay")]) as server:
        top = start_top(server.address, "--count", 2, "--interval", 1)
        os.write(terminal[0], b"abcQ\n")
        assert top.end() == (0, None, "")
    assert time.monotonic() - start >= 1
    assert termios.tcgetattr(terminal[1]) == state


def test_keys_are_read_only_from_a_terminal(spawn):
    with engram.Server([engram.Table("replay")]) as server:
        top = spawn("top", server.address, "--count", 2, "--interval", 0.1, stdin=subprocess.PIPE)
        stdout, _ = top.process.communicate("q", timeout=60)
    assert stdout.count(server.address) == 2
