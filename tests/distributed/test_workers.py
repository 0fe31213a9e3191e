"""Workers: they get a client, are restarted when they fail, and report; weights reach them."""

import os
import threading
import time

import numpy as np
import pytest
from helpers.support import wait_until

from engram import Table
from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def test_workers_report_results_and_failures(start):
    from engram.distributed import RolloutWorkers

    def work(client, index):
        client.insert({"x": index}, {"t": 1.0})
        if index == 1:
            raise ValueError("no luck")
        return index * 2

    cluster = start([Table("t")])
    with RolloutWorkers(cluster, work, 3, num_cpus=0.5, resources={"head": 1}, max_restarts=1) as workers:
        first, second, third = workers.wait(120)
    assert [(report.index, report.state, report.restarts, report.result) for report in (first, third)] == [
        (0, "finished", 0, 0),
        (2, "finished", 0, 4),
    ]
    assert (second.state, second.restarts) == ("failed", 1)
    assert "ValueError: no luck" in second.error
    assert "in work" in second.error
    with cluster.client() as client:
        assert sorted(x for batch in client.scan("t") for x in batch.data["x"].tolist()) == [0, 1, 1, 2]


def test_a_killed_worker_is_started_again(start, tmp_path):
    from engram.distributed import RolloutWorkers

    marker = tmp_path / "was_killed"

    def work(client, index):
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), 9)
        return "alive"

    with RolloutWorkers(start([Table("t")]), work, 1, resources={"head": 1}) as workers:
        (report,) = workers.wait(120)
    assert (report.state, report.result, report.restarts) == ("finished", "alive", 1)
    assert "died" in report.error


def test_stopped_workers_send_what_they_have(start):
    from engram.distributed import RolloutWorkers

    def work(client, index):
        client.insert({"x": -1}, {"started": 1.0})
        with client.writer() as writer:
            writer.append({"x": 7})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
            while True:
                time.sleep(0.01)

    cluster = start([Table("t"), Table("started")])
    with cluster.client() as client, RolloutWorkers(cluster, work, 1, resources={"head": 1}) as workers:
        wait_until(lambda: client.info()["started"].size, 60)
        time.sleep(0.2)
        workers.stop()
        assert [report.state for report in workers.report()] == ["stopped"]
        assert [batch.data["x"].ravel().tolist() for batch in client.scan("t")] == [[7]]


def test_a_function_that_cannot_be_pickled(start):
    from engram.distributed import RolloutWorkers

    lock = threading.Lock()
    with pytest.raises(InvalidArgumentError, match=r"`function` .* cannot be pickled: .*lock"):
        RolloutWorkers(start([Table("t")]), lambda client, index: lock, 1)


def test_no_function(start):
    from engram.distributed import RolloutWorkers

    cluster = start([Table("t")])
    with pytest.raises(InvalidArgumentError, match="`function` must be a function of a client and an index; got 7"):
        RolloutWorkers(cluster, 7, 1)
    with pytest.raises(InvalidArgumentError, match="`num_workers` must be"):
        RolloutWorkers(cluster, print, 0)
    with pytest.raises(InvalidArgumentError, match="`cluster`"):
        RolloutWorkers("replay", print, 1)


def test_weights(start):
    from engram.distributed import RolloutWorkers, Weights

    weights = Weights()
    assert weights.get() == (0, None)
    assert weights.publish({"w": np.arange(3)}) == 1

    def work(client, index):
        version, nest = weights.get()
        return version, nest["w"].tolist(), weights.get(after=version)

    with RolloutWorkers(start([Table("t")]), work, 1, resources={"head": 1}) as workers:
        (report,) = workers.wait(60)
    assert report.result == (1, [0, 1, 2], (1, None))
