"""Changes to tables that a killed server does not acknowledge, or whose caller does not wait (`wait=False`)."""

import gc

import numpy as np
import pytest
from helpers.faults import ServerProcess
from helpers.support import raises

from engram import Client, Server, ShardedClient, Table, selectors
from engram.errors import UnavailableError, UnknownTableError


def test_closing_waits_for_unawaited_changes_and_raises_their_errors():
    with Server([Table("t")]) as server:
        client = Client(server.address)
        key = client.insert({"x": 1}, {"t": 1.0})
        client.delete("nowhere", [1], wait=False)
        client.delete("t", [key], wait=False)
        with raises(UnknownTableError, "no table `nowhere`; known tables: `t`"):
            client.close()
        assert server.store.info()["t"].size == 0


WHAT = "a change that no call waited for (`wait=False`) failed"
NAN = "priority for table `t` is NaN; it must be a number"


def test_the_errors_of_unawaited_changes_of_a_garbage_collected_client_are_logged(caplog):
    with Server([Table("t", sampler=selectors.Prioritized(1.0))]) as server:
        key = server.store.insert({"x": 1}, {"t": 1.0})
        client = Client(server.address)
        client.update_priorities("t", [key], [np.nan], wait=False)
        client.delete("nowhere", [key], wait=False)
        client.update_priorities("t", [key], [2.0], wait=False)
        del client
        gc.collect()
        assert server.store.peek("t").items[0].priority == 2.0
    assert caplog.messages == [f"{WHAT}: {NAN}", f"{WHAT}: no table `nowhere`; known tables: `t`"]


def test_the_errors_of_unawaited_changes_of_a_garbage_collected_sharded_client_are_logged(caplog):
    with Server([Table("t")], shard_id=1) as server, Server([Table("t")], shard_id=2) as other:
        client = ShardedClient([server.address, other.address])
        key = client.insert({"x": 1}, {"t": 1.0})
        client.delete("nowhere", [key], wait=False)
        del client
        gc.collect()
    assert caplog.messages == [f"{WHAT}: no table `nowhere`; known tables: `t`"]


def test_unawaited_changes_to_an_unreachable_server_raise_an_error_in_later_calls():
    with ServerProcess('[engram.Table("t")]') as server:
        client = Client(server.address, reconnect_timeout=0.5)
        client.insert({"x": 1}, {"t": 1.0})
        server.kill()
        text = "an update of the priorities of 2 items of table `t` is not acknowledged"
        with pytest.raises(UnavailableError, match=text):
            # The ninth call waits for the first, and raises its error.
            for _ in range(9):
                client.update_priorities("t", [1, 2], [1.0, 2.0], wait=False)
        with pytest.raises(UnavailableError, match=text):
            client.close()


def test_a_deletion_that_is_sent_in_parts_is_reported_as_one():
    with ServerProcess('[engram.Table("t")]') as server:
        client = Client(server.address, reconnect_timeout=0.5)
        assert client.tables == ["t"]
        server.kill()
        with pytest.raises(UnavailableError, match=r"; a deletion of 20000 items of table `t` is not acknowledged$"):
            client.delete("t", range(20_000))
