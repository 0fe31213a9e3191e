"""A server that is slow or does not respond: calls keep their timeouts, and errors state what is known."""

import os
import signal
import threading
import time

import pytest
from helpers.faults import Proxy
from helpers.support import BackgroundCall, fill, raises, wait_until

from engram import Client, Dataset, Pattern, Server, ShardedClient, Table
from engram.errors import DeadlineExceededError


@pytest.fixture
def proxy():
    with Server([Table("t"), Table.queue("q", max_size=1)]) as server, Proxy(server.port) as proxy:
        proxy.store = server.store
        yield proxy


def first_item(client, **options):
    """Returns a call that creates a client's first item for a table."""
    writer = client.writer(**options)
    writer.append({"x": 1})
    return lambda: writer.create_item("t", num_steps=1)


def first_pattern_item(client, **options):
    """Returns a call with which a pattern writer creates a client's first item for a table."""
    writer = client.pattern_writer([Pattern("t", num_steps=1)], **options)
    return lambda: writer.append({"x": 1})


@pytest.mark.parametrize("make_call", [first_item, first_pattern_item])
def test_a_writer_waits_for_the_options_of_a_table_up_to_its_timeout(proxy, make_call):
    proxy.mute()
    with Client(proxy.address, reconnect_timeout=60.0) as client:
        call = make_call(client, timeout=0.1)
        with raises(
            DeadlineExceededError,
            f"the server at {proxy.address} did not reply within 0.1 s to a request for the options of table `t`",
        ):
            BackgroundCall(call).result()


def test_ctrl_c_ends_the_wait_for_the_options_of_a_table(proxy):
    proxy.mute()
    with Client(proxy.address, reconnect_timeout=20.0) as client:
        call = first_item(client)
        started = time.monotonic()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - started < 10.0


def test_an_insert_that_times_out_names_the_tables_that_have_the_item(proxy):
    proxy.store.insert({"x": 1}, {"q": 1.0})
    with Client(proxy.address, reconnect_timeout=0.1) as client:
        inserting = BackgroundCall(lambda: client.insert({"x": 2}, {"t": 1.0, "q": 1.0}, timeout=1.5))
        wait_until(lambda: proxy.store.info()["q"].waiting_inserts == 1)
        # Leaves only the newest connection, over which the items are sent.
        proxy.refuse()
        proxy.cut(spare=1)
        with raises(DeadlineExceededError, "table `q` did not accept the item within 1.5 s; only `t` has the item"):
            inserting.result()


def test_a_slow_server_does_not_delay_a_timeout(proxy):
    proxy.store.insert({"x": 1}, {"q": 1.0})
    with Client(proxy.address) as client:
        client.insert({"x": 1}, {"t": 1.0})  # connects
        proxy.delay(10.0)
        started = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            client.insert({"x": 2}, {"q": 1.0}, timeout=0)
        assert time.monotonic() - started < 4.0


@pytest.mark.parametrize("timeout", [0.3, 0.7])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_dataset_does_not_end_at_its_timeout_if_its_server_does_not_reply(shards, timeout):
    tables = [Table.queue("q", max_size=9)]
    with (
        Server(tables, shard_id=1) as server,
        Server(tables, shard_id=2) as other,
        Proxy(server.port) as proxy,
        ShardedClient([proxy.address, f"127.0.0.1:{other.port}"][:shards], reconnect_timeout=20.0) as client,
    ):
        fill(server.store, "q", [1])
        iterator = iter(Dataset(client, "q", 1, timeout=timeout))
        assert next(iterator).data["x"].tolist() == [1]
        client.info()  # the acknowledgement has arrived
        proxy.mute()
        with raises(
            DeadlineExceededError,
            f"table `q`: no batch within {timeout:g} s (`timeout`): the server at {proxy.address} did not reply within "
            "0.8 s to a request for the state of its tables",
        ):
            next(iterator)
        proxy.cut()


def test_a_dataset_that_has_all_its_batches_does_not_ask_a_silent_server(proxy):
    proxy.store.insert({"x": 1}, {"t": 1.0})
    with Client(proxy.address, reconnect_timeout=20.0) as client:
        iterator = iter(Dataset(client, "t", 1, timeout=0.0, max_batches=1))
        assert next(iterator).data["x"].tolist() == [1]
        proxy.mute()
        assert list(iterator) == []
        proxy.cut()


def test_a_dataset_whose_server_replies_ends_at_its_timeout(proxy):
    with Client(proxy.address) as client:
        assert list(Dataset(client, "q", 1, timeout=0.0)) == []
