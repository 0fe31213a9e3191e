"""Sampled items are removed only after the client has received them: a lost response loses no item."""

import time

import pytest
from helpers.faults import Proxy
from helpers.python_process import run_program
from helpers.support import BackgroundCall, fill, sample_x, wait_until

from engram import Client, Server, Table
from engram.errors import DeadlineExceededError, UnavailableError


@pytest.fixture
def server():
    with Server([Table.queue("q", max_size=1000), Table("t")]) as server:
        yield server


def lose_a_response(server, proxy, client):
    """Samples 1, 2 and 3 of a queue of 1 to 6, and loses the response; returns the waiting call."""
    fill(server.store, "q", range(7))
    assert sample_x(client, "q", 1) == [0]  # connects
    proxy.mute()
    reader = BackgroundCall(lambda: sample_x(client, "q", 3))
    wait_until(lambda: server.store.info()["q"].hidden_items == 3)
    return reader


def test_the_same_client_receives_the_items_after_reconnecting(server):
    with Proxy(server.port) as proxy, Client(proxy.address) as client:
        reader = lose_a_response(server, proxy, client)
        proxy.cut()
        assert reader.result() == [1, 2, 3]
        assert sample_x(client, "q", 3) == [4, 5, 6]
        assert client.info()["q"].size == 0


def test_items_of_a_client_that_cannot_reconnect_return_to_their_positions(server):
    with Proxy(server.port) as proxy, Client(proxy.address, reconnect_timeout=0.2) as client:
        reader = lose_a_response(server, proxy, client)
        proxy.close()
        wait_until(lambda: server.store.info()["q"].hidden_items == 0)
        assert sample_x(server.store, "q", 6) == [1, 2, 3, 4, 5, 6]
        with pytest.raises(
            UnavailableError,
            match=rf"the server at {proxy.address} cannot be reached: .*; tried for 0.2 s \(`reconnect_timeout`\); "
            r"3 items were requested from table `q`",
        ):
            reader.result()


def test_a_received_batch_is_consumed_even_if_the_connection_is_cut_later(server):
    with Proxy(server.port) as proxy, Client(proxy.address) as client:
        fill(server.store, "q", range(4))
        assert sample_x(client, "q", 2) == [0, 1]
        assert client.info()["q"].size == 2
        proxy.cut()
        assert sample_x(client, "q", 2) == [2, 3]
        assert client.info()["q"].size == 0


def test_a_call_that_has_waited_for_long_is_repeated(server):
    with Proxy(server.port) as proxy, Client(proxy.address, reconnect_timeout=1.0) as client:
        reader = BackgroundCall(lambda: sample_x(client, "q", 1))
        wait_until(lambda: server.store.info()["q"].waiting_samples == 1)
        time.sleep(1.3)  # longer than reconnect_timeout, but the server is connected
        proxy.cut()
        fill(server.store, "q", [7])
        assert reader.result() == [7]


def test_calls_that_are_not_repeatable_work_after_a_cut(server):
    with Proxy(server.port) as proxy, Client(proxy.address) as client:
        fill(server.store, "t", [1])
        assert client.info()["t"].size == 1
        proxy.cut()
        client.reset("t")
        assert client.info()["t"].size == 0


def test_calls_after_a_sample_see_its_effect(server):
    with Client(server.address) as client:
        fill(server.store, "q", range(300))
        for remaining in reversed(range(300)):
            key = client.sample("q", 1).info.key
            if remaining % 3 == 0:
                info = client.info()["q"]
                assert (info.size, info.hidden_items) == (remaining, 0)
            elif remaining % 3 == 1:
                assert client.delete("q", key) == 0
            else:
                assert client.update_priorities("q", key, [2.0]) == 0


def test_an_insert_after_a_sample_finds_free_space():
    with (
        Server([Table.queue("q", max_size=1)]) as server,
        Proxy(server.port) as proxy,
        Client(proxy.address) as client,
    ):
        fill(server.store, "q", [1])
        # Makes the client cache the table's options. Otherwise the insert below would first request them, and the
        # server could handle the acknowledgement before it replies.
        with pytest.raises(DeadlineExceededError):
            client.insert({"x": 0}, {"q": 1.0}, timeout=0)
        assert sample_x(client, "q", 1) == [1]
        reader = BackgroundCall(lambda: sample_x(client, "q", 1))
        wait_until(lambda: server.store.info()["q"].waiting_samples == 1)
        # The acknowledgement of the batch is delayed.
        proxy.hold()
        fill(server.store, "q", [2])
        assert reader.result() == [2]
        writer = BackgroundCall(lambda: client.insert({"x": 3}, {"q": 1.0}, timeout=0))
        time.sleep(0.1)
        proxy.release()
        writer.result()
        assert sample_x(client, "q", 1) == [3]


def test_closing_a_client_acknowledges_its_samples(server):
    fill(server.store, "q", range(100))
    for remaining in reversed(range(100)):
        client = Client(server.address)
        client.sample("q", 1)
        client.close()
        info = server.store.info()["q"]
        assert (info.size, info.hidden_items) == (remaining, 0)


@pytest.mark.parametrize("end", ["", "del client", "sys.exit(0)", "keep = client.sample"])
def test_exiting_acknowledges_samples(server, end):
    fill(server.store, "q", range(3))
    code = f"import engram, sys\nclient = engram.Client('{server.address}')\nclient.sample('q', 2)\n{end}"
    assert run_program(code) == ""
    wait_until(lambda: server.store.info()["q"].hidden_items == 0)
    assert server.store.info()["q"].size == 1
