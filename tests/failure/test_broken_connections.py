"""Readers whose connection breaks: what the server has taken back is not given to the program."""

import numpy as np
import pytest
from helpers.faults import Proxy
from helpers.support import wait_until

from engram import Client, Dataset, Server, ShardedClient, Store, Table
from engram.compat import reverb
from engram.data import numpy as data

ITEMS = 100
TIMEOUT = 0.6
"""Seconds without an item after which a reader ends."""


def value_of(element):
    """The numbers of an element of any reader."""
    return element.data["x"].ravel().tolist() if hasattr(element, "data") else element["x"].ravel().tolist()


def batches(client):
    return map(value_of, Dataset(client, "q", 4, prefetch=8, timeout=TIMEOUT))


def single_items(client):
    return map(value_of, Dataset(client, "q", prefetch=32, timeout=TIMEOUT))


def held_batches(client):
    return map(value_of, Dataset(client, "q", 4, prefetch=8, hold=True, timeout=TIMEOUT))


def numpy_batches(client):
    return map(value_of, data.dataset(client, "q", batch_size=4, prefetch=8, timeout=TIMEOUT))


def numpy_items(client):
    return map(value_of, data.dataset(client, "q", prefetch=32, timeout=TIMEOUT))


def numpy_steps(client):
    return map(value_of, data.dataset(client, "q", steps=True, prefetch=32, timeout=TIMEOUT))


def reverb_samples(client):
    samples = reverb.Client(client.address).sample("q", ITEMS, emit_timesteps=False)
    return ([sample.data[0].item()] for sample in samples)


READERS = [batches, single_items, held_batches, numpy_batches, numpy_items, numpy_steps]


class Servers:
    """One server, or three shards, behind proxies. `restart` starts servers of the same stores at the same ports."""

    def __init__(self, shards=1):
        self.stores = [Store([Table.queue("q", max_size=ITEMS)]) for _ in range(shards)]
        self.ids = [None] if shards == 1 else range(1, shards + 1)
        self.servers = [Server(store, shard_id=shard) for store, shard in zip(self.stores, self.ids, strict=True)]
        self.proxies = [Proxy(server.port) for server in self.servers]
        addresses = [proxy.address for proxy in self.proxies]
        self.client = Client(addresses[0]) if shards == 1 else ShardedClient(addresses)
        for number, store in enumerate(self.stores):
            for value in range(number, ITEMS, shards):
                store.insert({"x": np.array([value])}, {"q": 1.0}, time_axis=True)

    def leased(self):
        return sum(store.info()["q"].hidden_items for store in self.stores)

    def cut(self):
        for proxy in self.proxies:
            proxy.cut()

    def restart(self):
        for server in self.servers:
            server.close()
        ports = [server.port for server in self.servers]
        opened = zip(self.stores, ports, self.ids, strict=True)
        self.servers = [Server(store, port=port, shard_id=shard) for store, port, shard in opened]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        for opened in (*self.proxies, *self.servers, *self.stores):
            opened.close()


@pytest.mark.parametrize("fault", [Servers.cut, Servers.restart])
@pytest.mark.parametrize(
    ("read", "shards"), [*((read, shards) for read in READERS for shards in (1, 3)), (reverb_samples, 1)]
)
def test_a_reader_receives_each_item_once(read, fault, shards):
    with Servers(shards) as servers:
        reader = read(servers.client)
        received = [value for _ in range(3) for value in next(reader)]
        size = len(received)
        held = size // 3 if read is held_batches else 0  # the last batch is not acknowledged yet
        # All prefetched batches have arrived, and the acknowledgements of the delivered ones.
        prefetched = 2 if read is reverb_samples else 24
        wait_until(lambda: servers.leased() >= prefetched and servers.client.info()["q"].size == ITEMS - size + held)
        fault(servers)
        received += [value for values in reader for value in values]
        assert sorted(received) == list(range(ITEMS))
        assert servers.client.info()["q"].size == 0
