"""A server that is slow, or says nothing: calls keep their deadlines, and errors say what is known."""

import os
import signal
import threading
import time

import pytest
from faults import Proxy
from support import BackgroundCall, raises, wait_until

from engram import Client, Pattern, Server, Table
from engram.errors import DeadlineExceededError


@pytest.fixture
def proxy():
    with Server([Table("t"), Table.queue("q", max_size=1)]) as server, Proxy(server.port) as proxy:
        proxy.store = server.store
        yield proxy


def made(client, **options):
    """A call that makes a client's first item for the table."""
    writer = client.writer(**options)
    writer.append({"x": 1})
    return lambda: writer.create_item("t", num_steps=1)


def written(client, **options):
    """The same of a writer of patterns."""
    writer = client.pattern_writer([Pattern("t", num_steps=1)], **options)
    return lambda: writer.append({"x": 1})


@pytest.mark.parametrize("begin", [made, written])
def test_a_writer_asks_about_a_table_for_no_longer_than_its_timeout(proxy, begin):
    proxy.mute()
    with Client(proxy.address, reconnect_timeout=60.0) as client:
        call = begin(client, timeout=0.1)
        with raises(
            DeadlineExceededError,
            f"the server at {proxy.address} did not reply within 0.1 s to a request for the options of table `t`",
        ):
            BackgroundCall(call).result()


def test_a_writer_that_asks_about_a_table_can_be_interrupted(proxy):
    proxy.mute()
    with Client(proxy.address, reconnect_timeout=20.0) as client:
        call = made(client)
        began = time.monotonic()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - began < 10.0


def test_an_insert_says_who_has_the_item_even_if_it_cannot_ask_why_others_do_not(proxy):
    proxy.store.insert({"x": 1}, {"q": 1.0})
    with Client(proxy.address, reconnect_timeout=0.1) as client:
        inserting = BackgroundCall(lambda: client.insert({"x": 2}, {"t": 1.0, "q": 1.0}, timeout=1.5))
        wait_until(lambda: proxy.store.info()["q"].waiting_inserts == 1)
        # Only the items' own connection is left, the newest.
        proxy.refuse()
        proxy.cut(spare=1)
        with raises(DeadlineExceededError, "table `q` did not accept the item within 1.5 s; only `t` has the item"):
            inserting.result()


def test_a_slow_server_delays_the_end_of_an_insert_only_once(proxy):
    proxy.store.insert({"x": 1}, {"q": 1.0})
    with Client(proxy.address) as client:
        client.insert({"x": 1}, {"t": 1.0})  # the connections are there
        proxy.delay(0.37)
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            client.insert({"x": 2}, {"q": 1.0}, timeout=0)
        assert time.monotonic() - began < 1.0
