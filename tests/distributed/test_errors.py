"""Calls that fail in the middle, end early or come from another process: later calls work."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.support import wait_until

from engram import Store, Table
from engram.errors import InvalidArgumentError, StorageError, UnavailableError
from engram.rate_limiters import SampleToInsertRatio

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def directories(cluster):
    return sorted(path.name for path in Path(cluster.path).iterdir() if path.is_dir())


def in_another_job(code):
    """Runs code in a program that connects to the same Ray cluster; returns what it prints."""
    import ray

    address = ray.get_runtime_context().gcs_address
    begin = f"import ray; ray.init({address!r}, log_to_driver=False); from engram import distributed\n"
    ran = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_start_without_room_and_then_with_fewer_shards(start, monkeypatch):
    monkeypatch.setattr("engram.distributed.shards.START_TIMEOUT", 3.0)
    with pytest.raises(UnavailableError, match=r"no room for 20 shards .* free are {'CPU': [0-9.]+, 'shard"):
        start([Table("t")], shards=20)
    monkeypatch.undo()
    assert len(start([Table("t")], shards=2).shards()) == 2


@pytest.mark.slow
def test_start_without_room_on_given_nodes(nodes, start, monkeypatch):
    monkeypatch.setattr("engram.distributed.shards.START_TIMEOUT", 10.0)
    monkeypatch.setattr("engram.distributed.shards.STOP_TIMEOUT", 5.0)
    with pytest.raises(UnavailableError, match=r"shard \d \(id \d, .*\) has not started within 10 s; free"):
        start([Table("t")], shards=8, nodes=[nodes.nodes[0].node_id])
    monkeypatch.undo()
    assert len(start([Table("t")], shards=2).shards()) == 2


@pytest.mark.slow
def test_an_interrupted_start_leaves_nothing(start, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("engram.distributed.Cluster.wait_until_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start([Table("t")])
    monkeypatch.undo()
    assert start([Table("t")]).shards()[0].state == "serving"


@pytest.mark.slow
def test_clusters_of_the_same_name_in_two_namespaces(start, tmp_path):
    first = start([Table("t")], path=tmp_path / "1", namespace="first")
    start([Table("t")], path=tmp_path / "2", namespace="second")
    time.sleep(4.0)  # a shard counts as unreachable after 2 s
    assert first.shards()[0].state == "serving"


def test_a_cluster_can_be_stopped_twice(start):
    with start([Table("t")]) as cluster:
        cluster.stop()
    with pytest.raises(UnavailableError, match=r"is not running, or its registry .*: [^\n]*\Z"):
        cluster.shards()


def test_calls_wait_for_a_registry_that_ray_restarts(start):
    import ray

    cluster = start([Table("t")])
    ray.kill(ray.get_actor(f"{cluster.name}/registry", namespace=cluster.namespace), no_restart=False)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        assert len(cluster.shards()) <= 1
    cluster.wait_until_ready()
    assert cluster.shards()[0].state == "serving"


@pytest.mark.slow
def test_another_job_stops_but_does_not_scale(start):
    import ray

    cluster = start([Table("t")])
    printed = in_another_job(
        f"cluster = distributed.connect({cluster.name!r})\n"
        "try: cluster.scale(2)\n"
        "except ValueError as error: print(error)\n"
        "cluster.stop()\n"
    )
    assert f"cluster `{cluster.name}` was started by another process, and new shards would end with this one" in printed
    groups = ray.util.placement_group_table().values()
    assert {group["state"] for group in groups if group["name"] == f"engram/{cluster.name}"} == {"REMOVED"}
    assert start([Table("t")]).shards()[0].state == "serving"


def test_connect_starts_no_ray_cluster(monkeypatch):
    import ray

    from engram import distributed

    def init(address=None):
        assert address == "auto"
        raise ConnectionError

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UnavailableError, match="this process is not connected to a Ray cluster"):
        distributed.connect("replay")


def test_scaling_that_fails_before_it_begins_restarts_no_shard(start):
    # Each shard needs a range of at least 16 samples.
    cluster = start([Table("t", rate_limiter=SampleToInsertRatio(8.0, 1, 16.0))])
    addresses = [shard.address for shard in cluster.shards()]
    for shards, text in ((2000, "`shards` must be at most 1023; got 2000"), (8, "cannot be divided over 8 shards")):
        with pytest.raises(InvalidArgumentError, match=text):
            cluster.scale(shards)
    assert [shard.address for shard in cluster.shards()] == addresses


@pytest.mark.slow
def test_scaling_without_room_continues_with_the_old_shards(start, monkeypatch):
    monkeypatch.setattr("engram.distributed.scaling.PLACE_TIMEOUT", 3.0, raising=False)
    monkeypatch.setattr("engram.distributed.shards.START_TIMEOUT", 20.0)
    cluster = start([Table("t")])
    with cluster.client() as client:
        key = client.insert({"x": 7}, {"t": 1.0})
        with pytest.raises(UnavailableError, match="no room for 20 shards"):
            cluster.scale(20)
        assert [shard.index for shard in cluster.shards()] == [0]
        assert client.sample("t", 1).info.key.tolist() == [key]
    assert directories(cluster) == ["generation-0"]


@pytest.mark.slow
def test_new_shards_that_do_not_start(start, monkeypatch):
    from engram.distributed import scaling

    cluster = start([Table("t")])
    start_shards, read_manifest, scaling_to = scaling.start_shards, scaling.read_manifest, []

    def fail_once(spec, manifest, *strategies):
        start_shards(spec, manifest, *strategies)
        if len(manifest.shard_ids) == 2:
            raise UnavailableError("it has not started")

    def read(*args):
        scaling_to.append(cluster._view().scaling_to)
        return read_manifest(*args)

    monkeypatch.setattr(scaling, "start_shards", fail_once)
    monkeypatch.setattr(scaling, "read_manifest", read)
    with cluster.client() as client:
        keys = {client.insert({"x": value}, {"t": 1.0}) for value in range(10)}
        with pytest.raises(UnavailableError, match="it has not started"):
            cluster.scale(2)
        assert scaling_to[0] == 2  # others could have scaled before it was marked
        cluster.wait_until_ready()
        assert len(cluster.shards()) == 1
        assert {int(key) for batch in client.scan("t") for key in batch.info.key} == keys
    assert directories(cluster) == ["generation-2"]


def test_a_closed_client_is_not_updated_any_more(start):
    cluster = start([Table("t")])
    client = cluster.client()
    client.close()
    wait_until(lambda: all(thread.name != "engram-follower" for thread in threading.enumerate()), 30)


@pytest.mark.slow
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


@pytest.mark.slow
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
    workers.stop()
    assert [(report.state, report.result) for report in workers.report()] == [("finished", 7)]


@pytest.mark.slow
def test_workers_end_with_ray(start, monkeypatch):
    from engram.distributed import RolloutWorkers

    workers = RolloutWorkers(
        start([Table("t")]), lambda client, index: time.sleep(10), 1, num_cpus=0.5, resources={"head": 1}
    )
    with monkeypatch.context() as patched:
        patched.setattr("ray.is_initialized", lambda: False)
        assert workers.wait(5)[0].state == "stopped"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_cpus": -1}, "`num_cpus` must be at least 0; got -1"),
        ({"resources": 3}, "`resources` must map names of Ray's resources to numbers"),
        ({"resources": {"x": -1}}, r"`resources\['x'\]` must be at least 0; got -1"),
    ],
)
def test_invalid_resources(start, options, text):
    from engram.distributed import RolloutWorkers

    cluster = start([Table("t")])
    with pytest.raises(InvalidArgumentError, match=text):
        RolloutWorkers(cluster, print, 1, **options)
    with pytest.raises(InvalidArgumentError, match=text):
        start([Table("t")], name="other", **options)


def test_directories_in_which_a_store_is_open_are_not_removed(tmp_path):
    from engram.distributed.manifest import Manifest
    from engram.distributed.scaling import remove_old_generations, reshard

    old = Manifest.first("cluster", 1)
    new = old.next(2)
    [directory] = old.directories(tmp_path)
    Store.open(directory, [Table("t")]).close()
    with (
        Store.open(new.directories(tmp_path)[0], [Table("t")]),
        pytest.raises(StorageError, match="shard-0 is in use by this process"),
    ):
        reshard(str(tmp_path), old, 2)
    assert reshard(str(tmp_path), old, 2) == new
    with Store.open(directory) as store:
        remove_old_generations(str(tmp_path), new)
        store.insert({"x": 1}, {"t": 1.0})
    with Store.open(directory) as store:
        assert store.info()["t"].size == 1
    remove_old_generations(str(tmp_path), new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json", "generation-1"]
