"""Datasets of a durable server that no longer replies: how `next` and `close` end."""

import signal
import time

import pytest
from helpers.faults import ServerProcess
from helpers.support import BackgroundCall, fill, wait_until

from engram import Client, Dataset
from engram.errors import DeadlineExceededError, UnavailableError

TABLES = """[engram.Table.queue("q", max_size=100), engram.Table.queue("empty", max_size=1)]"""

RECONNECT_TIMEOUT = 1.5


@pytest.fixture
def server(tmp_path):
    with ServerProcess(TABLES, tmp_path / "store") as server:
        with Client(server.address) as client:
            fill(client, "q", range(10))
        yield server


def freeze_before_confirmation(server, client, iterator):
    """Reads two items, and freezes the server before it can confirm the acknowledgement of the second one."""
    assert next(iterator).data["x"].tolist() == [0]
    wait_until(lambda: client.info()["q"].hidden_items == 1)  # the second item was sent
    time.sleep(0.2)
    server.freeze()
    assert next(iterator).data["x"].tolist() == [1]


def test_ctrl_c_is_raised_although_the_server_confirms_nothing(server):
    client = Client(server.address, reconnect_timeout=RECONNECT_TIMEOUT)
    iterator = iter(Dataset(client, "q", 1, prefetch=1))
    freeze_before_confirmation(server, client, iterator)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    finally:
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_error_of_a_with_block_is_raised_although_the_server_confirms_nothing(server, error):
    client = Client(server.address, reconnect_timeout=RECONNECT_TIMEOUT)
    with pytest.raises(error), Dataset(client, "q", 1, prefetch=1) as dataset:
        iterator = iter(dataset)
        freeze_before_confirmation(server, client, iterator)
        raise error


def test_a_with_block_without_an_error_reports_that_the_server_confirmed_nothing(server):
    client = Client(server.address, reconnect_timeout=RECONNECT_TIMEOUT)
    with pytest.raises(UnavailableError), Dataset(client, "q", 1, prefetch=1) as dataset:
        iterator = iter(dataset)
        freeze_before_confirmation(server, client, iterator)


def test_closing_a_dataset_ends_all_its_iterators_although_the_first_one_fails(server):
    client = Client(server.address, reconnect_timeout=RECONNECT_TIMEOUT)
    dataset = Dataset(client, "q", 1, prefetch=1)
    first = iter(dataset)
    assert next(first).data["x"].tolist() == [0]
    second = iter(dataset)
    next(second)
    next(second)
    time.sleep(0.2)
    server.freeze()
    for iterator in (first, second):
        next(iterator)  # the server cannot confirm its acknowledgement
    waiting = BackgroundCall(lambda: next(second, "end"))
    time.sleep(0.2)
    with pytest.raises(UnavailableError):
        dataset.close()
    assert waiting.result() == "end"


def test_a_call_that_waits_for_acknowledgements_of_a_dataset_reports_that_the_server_is_unavailable(server):
    """`info` waits until the server has confirmed what the client's datasets acknowledged."""
    client = Client(server.address, reconnect_timeout=RECONNECT_TIMEOUT)
    iterator = iter(Dataset(client, "q", 1, prefetch=1, timeout=0.3))
    freeze_before_confirmation(server, client, iterator)
    info = BackgroundCall(client.info)
    with pytest.raises(DeadlineExceededError, match="did not confirm in time"):
        next(iterator)
    with pytest.raises(UnavailableError):
        info.result()
