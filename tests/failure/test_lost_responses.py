"""Sampled items are removed only after the client has received them: a lost response loses no item."""

import threading
import time

import pytest
from helpers.faults import Proxy
from helpers.python_process import run_program
from helpers.support import BackgroundCall, fill, sample_x, wait_until

from engram import Client, Dataset, Server, Table
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


def read_and_end(client, receive):
    """Reads all items that a dataset yields. Returns a call that ends it."""
    iterator = iter(Dataset(client, "q", 1, max_batches=3))
    receive(iterator)
    return lambda: list(iterator)


def read_and_close(client, receive):
    """Reads items. Returns a call that closes the dataset."""
    dataset = Dataset(client, "q", 1)
    iterator = iter(dataset)
    receive(iterator)
    return lambda: (dataset.close(), iterator)


@pytest.fixture(params=[read_and_end, read_and_close])
def unacknowledged(request, server):
    """Returns a proxy, and what closes a dataset that has read 0, 1 and 2 and whose server knows only of 0."""
    fill(server.store, "q", range(4))
    with Proxy(server.port) as proxy:

        def receive(iterator):
            assert next(iterator).data["x"].tolist() == [0]
            wait_until(lambda: server.store.info()["q"].size == 3 and server.store.info()["q"].hidden_items >= 2)
            time.sleep(0.2)
            proxy.hold()
            assert [next(iterator).data["x"].tolist() for _ in range(2)] == [[1], [2]]

        yield proxy, lambda client: request.param(client, receive)


def test_closing_a_dataset_during_an_outage_acknowledges_its_items(server, unacknowledged):
    proxy, read = unacknowledged
    with Client(proxy.address, reconnect_timeout=20.0) as client:
        close = read(client)
        proxy.refuse()
        proxy.cut()
        proxy.release()
        threading.Timer(0.8, proxy.accept).start()
        close()
        wait_until(lambda: server.store.info()["q"].hidden_items == 0)
        assert sample_x(server.store, "q", server.store.info()["q"].size) == [3]


def test_closing_a_dataset_reports_acknowledgements_that_the_server_does_not_confirm(unacknowledged):
    proxy, read = unacknowledged
    with Client(proxy.address, reconnect_timeout=0.5) as client:
        close = read(client)
        proxy.close()
        with pytest.raises(UnavailableError) as raised:
            close()
        assert str(raised.value).endswith(
            "; tried for 0.5 s (`reconnect_timeout`); it did not confirm that the sampled items are acknowledged, so "
            "they may be sampled again"
        )


@pytest.fixture
def sampled(server):
    """Returns a proxy and a client that has sampled an item; its server does not know of the acknowledgement."""
    fill(server.store, "q", [1])
    with Proxy(server.port) as proxy:
        client = Client(proxy.address, reconnect_timeout=2.0)
        client.info()
        proxy.delay(0.3)
        sample = BackgroundCall(lambda: sample_x(client, "q", 1))
        wait_until(lambda: server.store.info()["q"].hidden_items == 1)
        proxy.hold()
        assert sample.result() == [1]
        proxy.delay(0.0)
        yield proxy, client


def test_closing_a_client_during_an_outage_acknowledges_its_samples(server, sampled):
    proxy, client = sampled
    proxy.refuse()
    proxy.cut()
    proxy.release()
    threading.Timer(0.8, proxy.accept).start()
    client.close()
    assert server.store.info()["q"].size == 0


def test_closing_a_client_logs_acknowledgements_that_the_server_does_not_confirm(sampled, caplog):
    proxy, client = sampled
    proxy.close()
    client.close()
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith(
        "a client ends before its server has confirmed that the sampled items are acknowledged, so they may be sampled "
        f"again: the server at {proxy.address} cannot be reached: "
    )


def test_closing_a_client_of_a_closed_server_does_not_wait(caplog):
    with Server([Table.queue("q", max_size=9)]) as server:
        fill(server.store, "q", range(4))
        client = Client(f"127.0.0.1:{server.port}", reconnect_timeout=60.0)
        sample_x(client, "q", 1)
        assert next(iter(Dataset(client, "q", 1))).data["x"].tolist() == [1]
        wait_until(lambda: server.store.info()["q"].size == 2)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 5.0
    assert not caplog.records
