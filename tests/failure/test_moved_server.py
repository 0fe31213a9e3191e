"""A server that is killed and started again at another address: clients follow, nothing is lost or inserted twice."""

import pickle
import threading
import time

import pytest
from helpers.faults import Proxy, ServerProcess

from engram import Client, Pattern, Server, Table
from engram.errors import InvalidArgumentError, UnavailableError

TABLES = "[engram.Table('t')]"


def repeat(call):
    """Repeats a call in a thread until the returned function is called, which raises the call's errors."""
    stopping, errors = threading.Event(), []

    def run():
        try:
            while not stopping.is_set():
                call()
        except Exception as error:  # noqa: BLE001, raised by `stop`
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def stop():
        stopping.set()
        thread.join(30)
        assert not thread.is_alive(), "a call does not end"
        assert errors == []

    return stop


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_writers_and_samplers_follow_a_killed_server(tmp_path, rounds):
    written = 0
    with ServerProcess(TABLES, tmp_path) as server, Client(server.address, reconnect_timeout=20.0) as client:
        client.insert({"x": -1}, {"t": 1.0})
        with client.pattern_writer([Pattern("t", lambda step: {"x": step["x"][-1]})]) as writer:

            def write():
                nonlocal written
                writer.append({"x": written})
                written += 1
                if written % 50 == 0:
                    writer.flush()

            stops = [repeat(write), repeat(lambda: client.sample("t", 4, timeout=20.0)), repeat(client.info)]
            for _ in range(rounds):
                time.sleep(0.2)
                server.kill()
                server.port = 0
                server.start()
                client.set_address(server.address)
            time.sleep(0.2)
            for stop in stops:
                stop()
            writer.flush()
        assert written > 100
        assert sorted(x for batch in client.scan("t") for x in batch.data["x"].tolist()) == list(range(-1, written))


def test_a_waiting_call_follows_a_server_that_has_vanished():
    """The old address still accepts connections, but nothing answers there."""
    with (
        Server([Table("t")]) as server,
        Proxy(server.port) as proxy,
        Client(proxy.address, reconnect_timeout=60.0) as client,
    ):
        client.insert({"x": 0}, {"t": 1.0})
        proxy.mute()
        done = threading.Event()
        stop = repeat(lambda: (client.sample("t", 1), client.info(), done.set()))
        assert not done.wait(0.3)
        client.set_address(server.address)
        assert done.wait(4.0)  # pings would notice the silence after 5 s
        stop()


def test_copies_and_errors_have_the_new_address():
    with Server([Table("t")]) as server:
        client = Client("127.0.0.1:1", reconnect_timeout=0.1)
        client.set_address(server.address)
        assert client.address == server.address
        assert pickle.loads(pickle.dumps(client)).tables == ["t"]  # noqa: S301
        client.set_address("127.0.0.1:1")
        with pytest.raises(UnavailableError, match=r"the server at 127\.0\.0\.1:1 cannot be reached"):
            _ = client.tables


@pytest.mark.parametrize("address", ["localhost", "http://localhost:7", 7])
def test_an_invalid_address_changes_nothing(address):
    client = Client("127.0.0.1:1", reconnect_timeout=0.1)
    with pytest.raises(InvalidArgumentError, match="address"):
        client.set_address(address)
    assert client.address == "127.0.0.1:1"
