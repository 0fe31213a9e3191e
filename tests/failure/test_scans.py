"""Scans of a server that is killed, restarted, stopped, or not there."""

import re
import threading

import numpy as np
import pytest
from faults import ServerProcess
from forks import PROGRAM, needs_fork
from support import fill, run_python

from engram import Client, Pattern, Server, Store, Table
from engram.errors import ClosedError, UnavailableError


def fill_large(store, items):
    """Inserts items of 1 MB, so that a client cannot have received all of them ahead."""
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        for value in range(items):
            writer.append({"x": np.full(1 << 20, value, np.uint8)})


def test_a_scan_of_a_killed_server_ends_and_can_begin_again(tmp_path):
    with (
        ServerProcess("[engram.Table('t')]", tmp_path / "store") as server,
        Client(server.address, reconnect_timeout=30) as client,
    ):
        fill_large(client, 100)
        scan = client.scan("t", batch_size=1)
        next(scan)
        server.kill()
        text = (
            rf"the connection to the server at {re.escape(server.address)} was lost during a scan of table `t`: .*; "
            r"begin the scan again"
        )
        with pytest.raises(UnavailableError, match=rf"\A{text}\Z"):
            list(scan)
        with pytest.raises(UnavailableError, match=text):
            next(scan)
        # A scan that begins while the server is away waits for it, as other calls do.
        timer = threading.Timer(0.5, server.start)
        timer.start()
        values = [int(batch.data["x"][0, 0, 0]) for batch in client.scan("t", batch_size=1)]
        timer.join()
        assert values == [*range(100)]


def test_a_scan_without_a_server_ends_in_time():
    with Client("127.0.0.1:9", reconnect_timeout=0.2) as client, pytest.raises(UnavailableError, match=r"0\.2 s"):
        client.scan("t")


def test_a_scan_of_a_stopped_server_or_closed_client_ends():
    with Store([Table("t")]) as store, Server(store) as server:
        fill_large(store, 50)
        with Client(server.address) as one, Client(server.address) as two:
            scans = [client.scan("t", batch_size=1) for client in (one, two)]
            for scan in scans:
                next(scan)
            one.close()
            with pytest.raises(ClosedError, match="this client is closed"):
                list(scans[0])
            server.close()
            with pytest.raises(ClosedError, match="is stopping"):
                list(scans[1])


def test_a_client_that_does_not_read_its_scan_keeps_the_server_small():
    """The client requests two batches ahead; others are served meanwhile."""
    with Store([Table("t"), Table("u")]) as store, Server(store) as server:
        fill_large(store, 20)
        fill(store, "u", range(3))
        with Client(server.address) as client:
            scans = [client.scan("t", batch_size=4) for _ in range(10)]
            for _ in range(10):
                assert client.sample("u", 1, timeout=10).data["x"][0] in range(3)
            for scan in scans:
                assert sum(map(len, scan)) == 20


FORK = """
store = engram.Store([engram.Table("t")])
with store, engram.Server(store) as server, engram.Client(server.address) as client:
    for value in range(100):
        store.insert({"x": value}, {"t": 1.0})
    scans = [each.scan("t", batch_size=10) for each in (store, client)]
    for scan in scans:
        next(scan)

    def child():
        for scan in scans:
            expect_forked_error("scan", lambda: next(scan))
            expect_forked_error("scan", scan.close)
            with scan:
                pass  # the parent closes it
            assert scan.num_items == 100
        expect_forked_error("store", lambda: store.scan("t"))
        assert sum(map(len, client.scan("t"))) == 100

    in_child(child)
    assert [sum(map(len, scan)) for scan in scans] == [90, 90]
print("parent continues")
"""


@needs_fork
def test_a_scan_belongs_to_the_process_that_began_it():
    assert run_python(PROGRAM + FORK) == "parent continues\n"
