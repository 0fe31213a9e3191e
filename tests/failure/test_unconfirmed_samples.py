"""A connection breaks before a sample is confirmed: no program misses an item, or receives it twice."""

import time

import numpy as np
import pytest
from helpers.consumer_checker import ConsumerChecker
from helpers.faults import Proxy
from helpers.support import BackgroundCall, raises, wait_until

from engram import Batch, Client, Server, ShardedClient, Store, Table, selectors
from engram.errors import DeadlineExceededError, HandshakeError, UnavailableError

DELAY = 0.3
"""Seconds by which a reply is delayed, so that its acknowledgement can be held."""


class Servers:
    """Durable servers of one queue, behind proxies, and a client."""

    def __init__(self, path, shards=1, max_times_sampled=1, token=None, **options):
        self.token = token
        self.tables = [Table("q", sampler=selectors.Fifo(), max_times_sampled=max_times_sampled, max_size=100)]
        self.paths = [path / str(number) for number in range(shards)]
        self.ids = [None] if shards == 1 else range(1, shards + 1)
        self.stores = [Store.open(each, self.tables) for each in self.paths]
        opened = zip(self.stores, self.ids, strict=True)
        self.servers = [Server(store, shard_id=number, token=token) for store, number in opened]
        self.proxies = [Proxy(server.port) for server in self.servers]
        addresses = [proxy.address for proxy in self.proxies]
        kind = ShardedClient if shards > 1 else Client
        self.client = kind(addresses if shards > 1 else addresses[0], token=token, **options)
        self.client.info()

    def insert(self, value):
        """Inserts an item that can be sampled once more."""
        self.stores[0].insert({"x": np.int64(value)}, {"q": 1.0})
        for _ in range(self.tables[0].max_times_sampled - 1):
            self.stores[0].sample("q", 1)

    def leased(self):
        """Number of items on lease."""
        return self.stores[0].info()["q"].hidden_items

    def all_proxies(self, call):
        for proxy in self.proxies:
            call(proxy)

    def lose_batch(self):
        """The server leases the item; the batch does not arrive."""
        with pytest.raises(DeadlineExceededError):
            self.client.sample("q", 1, timeout=0)  # opens the stream
        self.insert(1)
        self.all_proxies(Proxy.mute)
        self.sample = BackgroundCall(lambda: self.client.sample("q", 1))
        wait_until(lambda: self.leased() == 1)

    def lose_acknowledgement(self, timeout=None):
        """The client receives the item; its acknowledgement does not arrive."""
        self.insert(1)
        self.all_proxies(lambda proxy: proxy.delay(DELAY))
        self.sample = BackgroundCall(lambda: self.client.sample("q", 1, timeout=timeout))
        wait_until(lambda: self.leased() == 1)
        self.all_proxies(Proxy.hold)
        time.sleep(2 * DELAY)
        self.all_proxies(lambda proxy: proxy.delay(0.0))

    def lose_confirmation(self, timeout=None):
        """The server removes the item; its confirmation does not arrive."""
        self.lose_acknowledgement(timeout)
        self.all_proxies(Proxy.mute)
        self.all_proxies(Proxy.release)
        wait_until(lambda: self.leased() == 0)

    def cut(self):
        self.all_proxies(Proxy.cut)
        self.all_proxies(Proxy.release)

    def stop(self):
        for server, store in zip(self.servers, self.stores, strict=True):
            server.close()
            store.close()

    def restart(self):
        self.stop()
        self.cut()
        self.start()

    def start(self):
        self.stores = [Store.open(path, self.tables) for path in self.paths]
        ports = [server.port for server in self.servers]
        opened = zip(self.stores, ports, self.ids, strict=True)
        self.servers = [Server(store, port=port, shard_id=number, token=self.token) for store, port, number in opened]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        for opened in (*self.proxies, *self.servers, *self.stores):
            opened.close()


@pytest.mark.parametrize(("shards", "times_sampled"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("fault", [Servers.cut, Servers.restart])
@pytest.mark.parametrize("lose", [Servers.lose_batch, Servers.lose_acknowledgement, Servers.lose_confirmation])
def test_a_sample_returns_its_item_once(tmp_path, lose, fault, shards, times_sampled):
    with Servers(tmp_path, shards, times_sampled, reconnect_timeout=20) as servers:
        lose(servers)
        fault(servers)
        assert servers.sample.result().data["x"].tolist() == [1]
        wait_until(lambda: servers.leased() == 0)
        assert servers.client.info()["q"].samples == times_sampled
        assert servers.client.info()["q"].size == 0


def test_a_sample_is_repeated_if_another_reader_has_received_the_items(tmp_path):
    with Servers(tmp_path, reconnect_timeout=20) as servers:
        servers.lose_acknowledgement()
        servers.stop()
        servers.cut()
        with Store.open(servers.paths[0], servers.tables) as store:
            assert store.sample("q", 1).data["x"].tolist() == [1]
        servers.start()
        servers.insert(2)
        assert servers.sample.result().data["x"].tolist() == [2]


@pytest.mark.parametrize("shards", [1, 2])
def test_the_error_has_the_batch_if_the_server_stays_away(tmp_path, shards):
    with Servers(tmp_path, shards, reconnect_timeout=0.8) as servers:
        servers.lose_confirmation()
        servers.stop()
        servers.all_proxies(Proxy.close)
        with pytest.raises(UnavailableError) as raised:
            servers.sample.result()
        assert isinstance(raised.value.batch, Batch)
        assert raised.value.batch.data["x"].tolist() == [1]
        assert str(raised.value).endswith(
            "; tried for 0.8 s (`reconnect_timeout`); it did not confirm that the sampled items are acknowledged, so "
            "they may be sampled again; this error has the batch, as `batch`"
        )
        assert UnavailableError("another").batch is None


def test_the_error_has_the_batch_if_the_next_server_rejects_the_client(tmp_path):
    with Servers(tmp_path, reconnect_timeout=20, token="one") as servers:
        servers.lose_confirmation()
        servers.stop()
        servers.cut()
        servers.token = "two"
        servers.start()
        with pytest.raises(HandshakeError) as raised:
            servers.sample.result()
        assert raised.value.batch.data["x"].tolist() == [1]
        assert str(raised.value).endswith(
            "; it did not confirm that the sampled items are acknowledged, so they may be sampled again; this error "
            "has the batch, as `batch`"
        )


@pytest.mark.parametrize("shards", [1, 2])
def test_a_sample_does_not_wait_for_its_confirmation_longer_than_its_timeout(tmp_path, shards):
    with Servers(tmp_path, shards, reconnect_timeout=20) as servers:
        servers.lose_confirmation(timeout=1.0)
        started = time.monotonic()
        with raises(
            UnavailableError,
            "table `q`: the server did not confirm within 1 s (`timeout`) that the sampled items are acknowledged, so "
            "they may be sampled again; this error has the batch, as `batch`",
        ) as raised:
            servers.sample.result()
        assert time.monotonic() - started < 5.0
        assert raised.value.batch.data["x"].tolist() == [1]
        servers.cut()


@pytest.mark.timeout(300)
def test_each_item_is_received_once_while_a_server_is_killed(tmp_path):
    checker = ConsumerChecker(tmp_path, seed=1)
    try:
        for _ in range(4):
            checker.round()
        lost, repeated = checker.finish()
    finally:
        checker.close()
    assert (lost, repeated) == ([], {})
