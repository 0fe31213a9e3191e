"""Changes that nobody waits for: what fails is told, and nobody waits for ever."""

import pytest
from faults import ServerProcess
from support import raises

from engram import Client, Server, Table
from engram.errors import UnavailableError, UnknownTableError


def test_closing_waits_for_changes_and_tells_what_failed():
    with Server([Table("t")]) as server:
        client = Client(server.address)
        key = client.insert({"x": 1}, {"t": 1.0})
        client.delete("nowhere", [1], wait=False)
        client.delete("t", [key], wait=False)
        with raises(UnknownTableError, "no table `nowhere`; known tables: `t`"):
            client.close()
        assert server.store.info()["t"].size == 0


def test_a_server_that_is_gone_is_told_of_and_nobody_waits_for_ever():
    with ServerProcess('[engram.Table("t")]') as server:
        client = Client(server.address, reconnect_timeout=0.5)
        client.insert({"x": 1}, {"t": 1.0})
        server.kill()
        text = "an update of the priorities of 2 items of table `t` is not acknowledged"
        with pytest.raises(UnavailableError, match=text):
            # The ninth waits for the first.
            for _ in range(9):
                client.update_priorities("t", [1, 2], [1.0, 2.0], wait=False)
        with pytest.raises(UnavailableError, match=text):
            client.close()


def test_a_call_in_parts_is_told_of_as_one():
    with ServerProcess('[engram.Table("t")]') as server:
        client = Client(server.address, reconnect_timeout=0.5)
        assert client.tables == ["t"]
        server.kill()
        with pytest.raises(UnavailableError, match=r"; a deletion of 20000 items of table `t` is not acknowledged$"):
            client.delete("t", range(20_000))
