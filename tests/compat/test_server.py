"""`Server`: ports, addresses, stopping and waiting."""

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers.compat_tables import serving, steps, table
from helpers.support import BackgroundCall, raises, run_python, wait_until

import engram
from engram.compat import reverb
from engram.errors import ClosedError


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ([], "At least one table must be provided"),
        (None, "At least one table must be provided"),
        ([table("a"), table("b"), table("b")], "Multiple items in tables have the same name: b"),
    ],
)
def test_invalid_tables_are_rejected(tables, text):
    with raises(ValueError, text):
        reverb.Server(tables)


def test_tables_of_wrong_types_are_rejected():
    with raises(TypeError, "`tables` must be a sequence of tables; got table 't' itself"):
        reverb.Server(table())
    with raises(TypeError, "`each of tables` must be a reverb.Table; got 3 (int)"):
        reverb.Server([3])


def test_a_free_port_is_reported():
    for port in (None, 0):
        with serving(table(), port=port) as (server, client):
            assert server.port > 0
            client.insert([1], {"t": 1.0})
            assert server.localhost_client().server_info()["t"].current_size == 1


def test_the_requested_port_is_used():
    with serving(table()) as (server, _):
        port = server.port
    with serving(table(), port=port) as (server, _):
        assert server.port == port


def test_a_port_in_use_is_rejected(tmp_path):
    mine = table()
    checkpointer = reverb.checkpointers.DefaultCheckpointer(tmp_path)
    with serving(table()) as (server, _):
        with pytest.raises(ValueError, match=rf"`port` {server.port} is already in use"):
            reverb.Server([mine], port=server.port, host="127.0.0.1")
        with pytest.raises(ValueError, match=r"`port` \d+ is already in use"):
            reverb.Server([mine], port=server.port, checkpointer=checkpointer)
    with serving(mine, checkpointer=checkpointer):  # the servers that failed do not own the table
        pass


@pytest.mark.parametrize(
    ("port", "error", "text"),
    [
        ("a", TypeError, "`port` must be an integer; got 'a' (str)"),
        (-1, ValueError, "`port` must be at least 0; got -1"),
        (70_000, ValueError, "`port` must be at most 65535; got 70000"),
    ],
)
def test_invalid_ports_are_rejected(port, error, text):
    with raises(error, text):
        reverb.Server([table()], port=port)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("host", 5, "`host` must be text; got 5 (int)"),
        ("checkpointer", 5, "`checkpointer` must be one of reverb.checkpointers; got 5 (int)"),
        (
            "checkpointer",
            reverb.checkpointers.TempDirCheckpointer,
            "`checkpointer` must be one of reverb.checkpointers; got the class TempDirCheckpointer itself; call it",
        ),
    ],
)
def test_options_of_wrong_types_are_rejected(option, value, text):
    with raises(TypeError, text):
        reverb.Server([table()], **{option: value})


def test_the_default_is_to_listen_on_all_interfaces():
    server = reverb.Server([table()])
    try:
        for host in ("127.0.0.1", "localhost", *(["[::1]"] if socket.has_ipv6 else [])):
            reverb.Client(f"{host}:{server.port}").insert([1], {"t": 1.0})
        assert server.localhost_client().server_info()["t"].current_size >= 2
    finally:
        server.stop()


def test_both_client_methods_return_a_client_of_the_server():
    with serving(table()) as (server, _):
        for client in (server.localhost_client(), server.in_process_client()):
            assert client.server_address == f"localhost:{server.port}"
            client.insert([1], {"t": 1.0})


def test_stop_frees_the_port_and_may_be_called_again():
    with serving(table()) as (server, _):
        server.stop()
        server.stop()
        server.wait()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", server.port))


def test_stop_closes_the_store_after_an_error(monkeypatch):
    def fail(server):
        close(server)
        raise KeyboardInterrupt

    close = engram.Server.close
    with serving(table()) as (server, _):
        store = server._server_store
        monkeypatch.setattr(engram.Server, "close", fail)
        with pytest.raises(KeyboardInterrupt):
            server.stop()
        with raises(ClosedError, "the store is closed"):
            store.store.tables  # noqa: B018, raises
        assert not Path(store.directory).exists()


def test_wait_ends_when_another_thread_stops():
    with serving(table()) as (server, _):
        waiting = BackgroundCall(server.wait)
        assert waiting.is_alive()
        server.stop()
        assert waiting.result() is None


def test_a_garbage_collected_server_stops(monkeypatch):
    monkeypatch.setattr("engram.compat.reverb.client._PROBE_TIMEOUT", 0.1)
    server = reverb.Server([table()], host="localhost")
    client = reverb.Client(f"localhost:{server.port}")
    del server
    with pytest.raises(RuntimeError, match="cannot be reached"):
        client.checkpoint()


INTERRUPTED = """
import signal, sys
from engram.compat import reverb
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a shell
server = reverb.Server([reverb.Table.queue("q", 1)], host="localhost")
print(server.port, flush=True)
try:
    server.wait()
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) == signal.SIG_IGN, flush=True)
    server.stop()
    server.wait()
"""


def test_ctrl_c_ends_wait():
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())
            assert "q" in reverb.Client(f"localhost:{port}").server_info(10)
            wait_until(lambda: handles_sigint(process.pid))
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=20)[0] == "interrupted True\n"
            assert process.returncode == 0
        finally:
            process.kill()


def handles_sigint(process):
    """True if the process with this id has a handler for SIGINT."""
    with open(f"/proc/{process}/status") as status:  # noqa: PTH123
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status.read())[1]
    return bool(int(caught, 16) & 1 << (signal.SIGINT - 1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_continues_with_the_next_server_at_its_address(count):
    with serving(table(max_times_sampled=1)) as (server, client):
        port = server.port
        for n in range(count - 1):
            client.insert([n], {"t": 1.0})
        blocked = BackgroundCall(lambda: steps(client, n=count))
        wait_until(lambda: server._server_store.store.info()["t"].waiting_samples > 0)
    with serving(table(), port=port):
        client.insert([7], {"t": 1.0})
        assert blocked.result() == [*([n] for n in range(count - 1)), [7]]


def test_a_waiting_insert_continues_with_the_next_server():
    with serving(reverb.Table.queue("q", 1)) as (server, client):
        port = server.port
        client.insert([0], {"q": 1.0})
        blocked = BackgroundCall(lambda: client.insert([1], {"q": 1.0}))
        wait_until(lambda: server._server_store.store.info()["q"].waiting_inserts > 0)
    with serving(reverb.Table.queue("q", 1), port=port):
        assert steps(client, "q") == [[1]]
        blocked.result()


def test_process_exit_needs_no_stop(tmp_path):
    code = f"""
import os, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from engram.compat import reverb
server = reverb.Server([reverb.Table.queue("q", 1)], host="localhost")
reverb.Client(f"localhost:{{server.port}}").insert([1], {{"q": 1.0}})
print(len(os.listdir(tempfile.tempdir)))
"""
    assert run_python(code) == "1\n"
    assert list(tmp_path.iterdir()) == []  # the directory was removed, because it has no checkpoint


def test_a_forked_process_leaves_the_server_to_its_parent(tmp_path):
    code = f"""
import os, sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from engram.compat import reverb
server = reverb.Server([reverb.Table.queue("q", 1)], host="localhost")
if os.fork() == 0:
    sys.exit(0)
os.wait()
client = reverb.Client(f"localhost:{{server.port}}")
client.insert([1], {{"q": 1.0}})
print(os.path.exists(client.checkpoint()))
"""
    assert run_python(code) == "True\n"


def test_threads_of_one_process_can_insert_and_sample():
    with serving(reverb.Table.queue("q", 1)) as (server, client):
        writer = threading.Thread(target=lambda: [client.insert([n], {"q": 1.0}) for n in range(20)])
        writer.start()
        values = [int(data[0]) for data in steps(server.localhost_client(), "q", 20)]
        writer.join()
        assert values == list(range(20))


def test_repr():
    with serving(reverb.Table.queue("q", 3)) as (server, _):
        assert repr(server) == f"Server(port={server.port}, tables=[{reverb.Table.queue('q', 3)!r}])"
