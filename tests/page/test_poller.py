"""Reading of servers: only while a page asks for it, once for all pages, with the time that calls wait."""

import time
from dataclasses import replace

import pytest
from helpers.support import wait_until

from engram import Store, Table, rate_limiters
from engram.dashboard.server_poller import ServerPoller
from engram.dashboard.table_history import MAX_POINTS, TableHistory
from engram.dashboard.texts import waiting_text
from engram.dashboard.training import short_names

pytestmark = pytest.mark.page


@pytest.fixture
def reads(monkeypatch):
    """Yields a poller of a store whose reads are counted, and a list with the time of each read."""
    monkeypatch.setattr("engram.dashboard.server_poller.WATCHED_S", 1.5)
    monkeypatch.setattr("engram.dashboard.server_poller.INTERVAL_S", 0.1)
    times = []
    with Store([Table("t")]) as store:

        def connect():
            times.append(time.monotonic())
            raise ConnectionError("not now")

        poller = ServerPoller("a", connect)
        poller.start()
        yield poller, times, store
        poller.close()


def test_a_server_is_read_only_while_a_page_asks_for_it(reads):
    poller, times, _ = reads
    time.sleep(0.5)
    assert times == []
    poller.watch()
    poller.watch()  # of another page
    wait_until(lambda: len(times) >= 5)
    time.sleep(2.5)
    count = len(times)
    time.sleep(1)
    assert len(times) == count
    assert times[-1] - times[0] < 2.5
    assert poller.state.error == "not now" or poller.state.error is None
    poller.watch()
    wait_until(lambda: len(times) > count)


def test_a_store_that_was_closed_is_connected_again(monkeypatch):
    monkeypatch.setattr("engram.dashboard.server_poller.INTERVAL_S", 0.05)
    stores = [Store([Table("first")]), Store([Table("second")])]
    poller = ServerPoller("a", lambda: stores[0])
    poller.start()
    poller.watch()
    wait_until(lambda: list(poller.state.infos) == ["first"])
    stores.pop(0).close()
    wait_until(lambda: list(poller.state.infos) == ["second"])
    poller.close()
    stores[0].close()


@pytest.fixture
def info():
    limiter = rate_limiters.SampleToInsertRatio(1, min_size=1, error_buffer=10)
    with Store([Table("a`: b", rate_limiter=limiter)]) as store:
        yield lambda: store.info()["a`: b"]


def test_the_time_that_calls_wait(info):
    idle = info()
    waiting = replace(idle, waiting_inserts=2, inserting_blocked="`a`: inserting waits: because")
    history = TableHistory()
    history.add(100.0, idle)
    assert waiting_text(idle, history, 100.0) is None
    history.add(101.0, waiting)
    assert waiting_text(waiting, history, 101.5) == "2 writers wait for less than 1 s: because"
    history.add(102.0, waiting)
    assert waiting_text(waiting, history, 104.0) == "2 writers wait for 3 s: because"
    moved = replace(waiting, inserts=5)
    history.add(105.0, moved)  # others wait now
    assert waiting_text(moved, history, 106.0) == "2 writers wait for 1 s: because"
    history.add_gap()
    history.add(200.0, moved)
    assert waiting_text(moved, history, 203.0) == "2 writers wait for at least 3 s: because"
    history.add(204.0, replace(idle, inserts=6))
    assert waiting_text(replace(idle, inserts=6), history, 205.0) is None


def test_curves_have_gaps_and_bounded_size(info):
    history = TableHistory()
    for second in range(1_000):
        history.add(second, info())
    assert history.points[0].time == 399
    assert len(history.curves().inserts) <= MAX_POINTS + 2
    assert history.curves() is history.curves()
    history.add_gap()
    history.add_gap()
    history.add(2_000, info())
    assert [rate for _, rate in history.curves().inserts] == [0]
    history.add_gap()
    history.add(2_100, info())
    assert [rate for _, rate in history.curves().samples] == [0, None, 0]


def test_names_of_runs_omit_what_all_have_in_common():
    assert short_names(["a/b/x", "a/b/y"]) == {"a/b/x": "x", "a/b/y": "y"}
    assert short_names(["a/b/x", "a/c/x"]) == {"a/b/x": "b/x", "a/c/x": "c/x"}
    assert short_names(["."]) == {".": "."}
    assert short_names([]) == {}
