"""The number of shards changes under load, and between two runs."""

import time
from pathlib import Path

import pytest
from helpers.ray_nodes import Load
from helpers.support import wait_until

from engram import Table
from engram.errors import InvalidArgumentError
from engram.selectors import Prioritized

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_scaling_under_load(start):
    cluster = start([Table("t", sampler=Prioritized(0.6), max_size=10_000_000)], shards=2)
    load = Load(cluster)
    wait_until(lambda: load.waits or load.errors, 60)
    ids = [shard.shard_id for shard in cluster.shards()]
    for shards in (4, 3):
        time.sleep(1.0)
        cluster.scale(shards)
        cluster.wait_until_ready()
        scaled = time.monotonic()
        wait_until(lambda: any(began > scaled for began, _ in load.waits[-20:]) or load.errors, 60)  # noqa: B023
        assert load.errors == []
        status = cluster.shards()
        assert [shard.index for shard in status] == list(range(shards))
        assert not {shard.shard_id for shard in status} & set(ids)
        ids += [shard.shard_id for shard in status]
    load.stop()
    load.check_content()
    print(f"longest wait {load.longest_wait():.1f} s, {sum(load.written)} items")  # noqa: T201


@pytest.mark.slow
def test_start_with_another_number_of_shards(start):
    tables = [Table("t")]
    cluster = start(tables, shards=3)
    with cluster.client() as client:
        keys = {client.insert({"x": value}, {"t": 1.0}) for value in range(20)}
    cluster.stop()
    cluster = start(tables, shards=5)
    assert len(cluster.shards()) == 5
    assert sorted(path.name for path in Path(cluster.path).iterdir()) == ["cluster.json", "generation-1"]
    with cluster.client() as client:
        assert {int(key) for batch in client.scan("t") for key in batch.info.key} == keys
        assert client.delete("t", list(keys)) == 20
    cluster.stop()
    assert len(start(tables).shards()) == 5


def test_zero_shards(start):
    cluster = start([Table("t")])
    with pytest.raises(InvalidArgumentError, match=r"`shards` must be .*; got 0"):
        cluster.scale(0)
    with pytest.raises(InvalidArgumentError, match=r"`shards` must be .*; got 0"):
        start([Table("t")], name="other", shards=0)
