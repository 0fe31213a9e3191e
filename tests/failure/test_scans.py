"""Scans of a server that is killed, restarted, stopped, or not there."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from helpers.faults import Proxy, ServerProcess
from helpers.forks import PROGRAM, needs_fork
from helpers.python_process import run_program
from helpers.support import BackgroundCall, fill, raises

from engram import Client, Pattern, Server, Store, Table
from engram.errors import ClosedError, DeadlineExceededError, UnavailableError


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
            # A server waits 2 s for its last replies to be read: on a busy machine, this one may be lost.
            with pytest.raises((ClosedError, UnavailableError), match=r"is stopping|was lost during a scan"):
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


def test_a_server_ends_an_idle_scan():
    with Store([Table("t")]) as store, Server(store, lease_timeout=0.2) as server, Client(server.address) as client:
        fill_large(store, 20)
        for scan in (client.scan("t", batch_size=1), client.scan("t", batch_size=1, keys=[1])):
            time.sleep(0.5)
            if scan.num_items == 0:
                assert list(scan) == []  # it had ended before
                continue
            text = (
                "the scan was idle for 0.2 s; the server has ended it to release its memory (`lease_timeout`): begin "
                "it again, and read it without such pauses"
            )
            with raises(DeadlineExceededError, text):
                list(scan)
            with raises(DeadlineExceededError, text):
                next(scan)
        assert sum(map(len, client.scan("t", batch_size=1))) == 20


@pytest.fixture
def stalled():
    """A scan whose server no longer responds."""
    with Store([Table("t")]) as store, Server(store) as server, Proxy(server.port) as proxy:
        fill_large(store, 20)
        with Client(proxy.address, reconnect_timeout=60.0) as client:
            scan = client.scan("t", batch_size=1)
            next(scan)
            proxy.mute()
            yield scan
            proxy.cut()


def test_close_ends_a_scan_that_waits_in_another_thread(stalled):
    begun = threading.Event()

    def read():
        begun.set()
        return list(stalled)

    reading = BackgroundCall(read)
    assert begun.wait(10)
    time.sleep(0.2)  # the first `next` never returns, so no event can show that it waits
    stalled.close()
    assert len(reading.result()) < 19
    assert list(stalled) == []


def test_a_signal_handler_can_close_a_scan_that_waits(stalled):
    before = signal.signal(signal.SIGUSR1, lambda *_: stalled.close())
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        assert len(list(stalled)) < 19
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("change", ["update_priorities", "delete"])
def test_a_scan_sees_changes_that_its_client_did_not_wait_for(change):
    with Store([Table("t")]) as store, Server(store) as server, Proxy(server.port) as proxy:
        keys = fill(store, "t", range(3))
        with Client(proxy.address) as client:
            client.update_priorities("t", keys[:1], [1.0])  # connects
            proxy.hold()
            if change == "delete":
                client.delete("t", keys, wait=False)
                expected = []
            else:
                client.update_priorities("t", keys, [5.0, 6.0, 7.0], wait=False)
                expected = [5.0, 6.0, 7.0]
            scanning = BackgroundCall(lambda: [p for batch in client.scan("t") for p in batch.info.priority.tolist()])
            time.sleep(0.2)
            proxy.release()
            assert scanning.result() == expected


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
    assert run_program(PROGRAM + FORK) == "parent continues\n"
