"""Items whose removal a durable server has confirmed are never sampled again, even if it is killed directly after.

It has confirmed all items that `sample` has returned, and all batches of a dataset except the newest one of a dataset
that is still open.
"""

import time
from contextlib import suppress

import numpy as np
import pytest
from helpers.faults import Proxy
from helpers.python_process import PIPE, PythonProcess
from helpers.support import BackgroundCall, runs_all_tests, wait_until

from engram import Client, Dataset, Store, Table
from engram.data import numpy as data
from engram.errors import UnavailableError

SERVE = """
import sys
import engram
store = engram.Store.open(sys.argv[1], [engram.Table.queue("q", max_size=1_000)], durability=sys.argv[2])
server = engram.Server(store)
print(server.address, flush=True)
sys.stdin.read()
"""

ITEMS = 200


class KillableServer:
    """A durable server, in a process of its own, with a queue of the numbers below `ITEMS`; `kill` kills it."""

    def __init__(self, path, durability):
        self.path = path
        self._process = PythonProcess(SERVE, path, durability, stdin=PIPE, stdout=PIPE)
        self.address = self._process.stdout.readline().strip()
        with Client(self.address) as client, client.writer() as writer:
            for value in range(ITEMS):
                writer.append({"x": np.int64(value)})
                writer.create_item("q", num_steps=1)
            writer.flush()

    def kill(self):
        """Kills the process; returns the numbers that the store has after a restart."""
        self._process.kill()
        self._process.communicate()
        with Store.open(self.path, [Table.queue("q", max_size=1_000)]) as store:
            size = store.info()["q"].size
            return store.sample("q", size, timeout=10).data["x"].ravel().tolist()


# Each of these functions reads from a client, and returns how many items are certainly confirmed: the server must have
# removed them durably. `sample` waits for that. A batch of a dataset is confirmed once `next` returns the next one, or
# once the dataset has ended or was closed. `info` and closing the client also wait for it.


def sample(client):
    return sum(len(client.sample("q", n)) for n in (1, 5, 1))


def all_but_newest_batch(client):
    iterator = iter(Dataset(client, "q", 3))
    for _ in range(4):
        next(iterator)
    client.iterator = iterator  # stays open until the kill; without a reference, it would be closed
    return 9


def closed_dataset(client):
    with Dataset(client, "q", 3) as dataset:
        iterator = iter(dataset)
        return sum(len(next(iterator)) for _ in range(3))


def ended_dataset(client):
    return sum(len(batch) for batch in Dataset(client, "q", 3, max_batches=3))


def left_loop(client):
    for batch in Dataset(client, "q", 7):
        num_read = len(batch)
        break
    return num_read


def dataset_and_info(client):
    client.iterator = iter(Dataset(client, "q", 3))
    next(client.iterator)
    assert client.info()["q"].size == ITEMS - 3
    return 3


def dataset_and_close(client):
    client.iterator = iter(Dataset(client, "q", 3))
    next(client.iterator)
    client.close()
    return 3


def data_single_items(client):
    client.iterator = iter(data.dataset(client, "q", steps=True))
    for _ in range(5):
        next(client.iterator)
    return 4


READERS = [
    sample,
    all_but_newest_batch,
    closed_dataset,
    ended_dataset,
    left_loop,
    dataset_and_info,
    dataset_and_close,
    data_single_items,
]


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize("read", READERS)
def test_confirmed_items_are_not_sampled_again(tmp_path, read, durability):
    for attempt in range(3 if runs_all_tests() else 1):
        server = KillableServer(tmp_path / str(attempt), durability)
        client = Client(server.address, reconnect_timeout=1.0)
        client.iterator = iter(Dataset(client, "q"))  # closed below if `read` sets no other; it requests nothing
        confirmed = read(client)
        remaining = server.kill()
        first = remaining[0]
        assert remaining == list(range(first, ITEMS))
        assert first >= confirmed
        # The newest batch, which `read` does not count, may have been removed, too.
        assert first <= confirmed + 3
        with suppress(UnavailableError):  # raised if the last batch is not confirmed
            client.iterator.close()


def test_a_sample_that_the_server_does_not_confirm_raises_an_error(tmp_path):
    server = KillableServer(tmp_path / "store", "process")
    with Proxy(int(server.address.rpartition(":")[2])) as proxy:
        client = Client(proxy.address, reconnect_timeout=2.0)
        client.sample("q", 1)
        proxy.delay(0.7)
        sampling = BackgroundCall(lambda: client.sample("q", 1))
        with Client(server.address) as other:
            wait_until(lambda: other.info()["q"].hidden_items == 1)
        proxy.hold()  # the request was forwarded, the acknowledgement of its reply is not
        time.sleep(1.5)
        server.kill()
        with pytest.raises(UnavailableError) as raised:
            sampling.result()
        assert str(raised.value).endswith(
            "; tried for 2 s (`reconnect_timeout`); it did not confirm that the sampled items are acknowledged, so "
            "they may be sampled again; this error has the batch, as `batch`"
        )
        assert len(raised.value.batch) == 1
