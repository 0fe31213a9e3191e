"""Calls that fail in the middle, end early or come from another process: later calls work."""

import threading
import time

import pytest
from helpers.support import wait_until

from engram import Table

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def test_a_closed_client_is_not_updated_any_more(start):
    cluster = start([Table("t")])
    client = cluster.client()
    client.close()
    wait_until(lambda: all(thread.name != "engram-follower" for thread in threading.enumerate()), 30)


def test_workers_that_are_stopped_while_they_restart(start):
    from engram.distributed import RolloutWorkers

    def fail(client, index):
        raise ValueError("no luck")

    workers = RolloutWorkers(start([Table("t")]), fail, 1, num_cpus=0.5, resources={"head": 1})
    wait_until(lambda: workers.report()[0].state == "restarting", 60)
    workers.stop()
    assert workers.wait(0)[0].state == "stopped"
    assert "no luck" in workers.report()[0].error


def test_workers_without_restarts(start):
    from engram.distributed import RolloutWorkers

    def fail(client, index):
        raise ValueError("no luck")

    with RolloutWorkers(start([Table("t")]), fail, 1, num_cpus=0.5, resources={"head": 1}, max_restarts=0) as workers:
        (report,) = workers.wait(60)
    assert (report.state, report.restarts) == ("failed", 0)


def test_a_result_just_before_stop(start, monkeypatch):
    from engram.distributed import RolloutWorkers

    monkeypatch.setattr("engram.distributed.workers.POLL_INTERVAL", 60.0)
    cluster = start([Table("t")])
    workers = RolloutWorkers(
        cluster, lambda client, index: client.insert({"x": 1}, {"t": 1.0}) and 7, 1, num_cpus=0.5, resources={"head": 1}
    )
    with cluster.client() as client:
        wait_until(lambda: client.info()["t"].size, 60)
    time.sleep(2.0)
    threading.Timer(0.1, workers._stopped.set).start()
    workers.stop()
    assert [(report.state, report.result) for report in workers.report()] == [("finished", 7)]


def test_workers_end_with_ray(start, monkeypatch):
    from engram.distributed import RolloutWorkers

    workers = RolloutWorkers(
        start([Table("t")]), lambda client, index: time.sleep(10), 1, num_cpus=0.5, resources={"head": 1}
    )
    with monkeypatch.context() as patched:
        patched.setattr("ray.is_initialized", lambda: False)
        assert workers.wait(5)[0].state == "stopped"
