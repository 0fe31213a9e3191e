"""Starting, finding and stopping a cluster, and errors of `start` and `connect`."""

import json
import pickle
import shutil

import pytest

import engram
from engram import Table
from engram.errors import InvalidArgumentError, StorageError, UnavailableError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def test_a_cluster_is_found_by_name_and_keeps_its_items(start, tmp_path):
    from engram import distributed

    cluster = start([Table("t")], shards=2)
    assert [shard.state for shard in cluster.shards()] == ["serving", "serving"]
    assert len({shard.address.rpartition(":")[0] for shard in cluster.shards()}) == 2  # spread over nodes
    found = distributed.connect(cluster.name)
    assert (found.name, found.path) == (cluster.name, str(tmp_path / "cluster"))
    with found.client() as client, pickle.loads(pickle.dumps(found)).client() as other:  # noqa: S301
        client.insert({"x": 7}, {"t": 1.0})
        assert other.sample("t", 1).data["x"].item() == 7
    cluster.stop()
    with pytest.raises(UnavailableError, match=f"no cluster `{cluster.name}` runs in namespace `engram`"):
        distributed.connect(cluster.name)
    with start([Table("t")]).client() as client:
        assert client.sample("t", 1).data["x"].item() == 7


def test_a_cluster_of_this_name_runs_already(start):
    cluster = start([Table("t")])
    with pytest.raises(UnavailableError, match=rf"cluster `{cluster.name}` runs already in namespace `engram`"):
        start([Table("t")])


def test_a_directory_of_another_cluster(start, tmp_path):
    start([Table("t")]).stop()
    with pytest.raises(StorageError, match=r"is the directory of cluster `cluster-\d+`, but cluster `other` was to be"):
        start([Table("t")], name="other")
    manifest = tmp_path / "cluster" / "cluster.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 9}))
    with pytest.raises(StorageError, match="has format 9, but this version of Engram reads format 1"):
        start([Table("t")])
    manifest.write_text("{")
    with pytest.raises(StorageError, match=r"cluster\.json cannot be read"):
        start([Table("t")])


def test_a_missing_directory_is_not_resharded(start, tmp_path):
    cluster = start([Table("t")], shards=2)
    with cluster.client() as client:
        other = 1 - ((client.insert({"x": 7}, {"t": 1.0}) >> 53) - 1)  # the shard without the item
    cluster.stop()
    shutil.rmtree(tmp_path / "cluster" / "generation-0" / f"shard-{other}")
    with pytest.raises(StorageError, match=rf"shard-{other} is missing, .* start the cluster with 2 shards as before"):
        start([Table("t")], shards=1)
    assert len(start([Table("t")]).shards()) == 2


@pytest.mark.slow
def test_a_directory_that_is_open_names_the_shard(start, tmp_path):
    start([Table("t")]).stop()
    with (
        engram.Store.open(tmp_path / "cluster" / "generation-0" / "shard-0", [Table("t")]),
        pytest.raises(StorageError, match=r"shard 0 \(id 1, .*shard-0\) has not started: .*open"),
    ):
        start([Table("t")])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durability": "memory"}, "`durability` must be"),
        ({"placement": "ANY"}, "`placement` must be"),
        ({"shards": 1024}, "`shards` must be at most 1023; got 1024"),
        ({"num_cpus": -1}, "`num_cpus` must be at least 0; got -1"),
        ({"name": "a/b"}, "`name` must be a text without `/`"),
        ({"nodes": ["x"]}, "`nodes` must be ids of nodes that are alive"),
        ({"detached": 1}, "`detached` must be"),
    ],
)
def test_invalid_arguments(start, options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        start([Table("t")], **options)


def test_invalid_tables(start):
    with pytest.raises(InvalidArgumentError, match="each element of `tables`"):
        start(["t"])


def test_a_node_can_be_chosen(nodes, start):
    node = nodes.nodes[0]
    cluster = start([Table("t")], shards=2, nodes=[node.node_id])
    hosts = {shard.address.rpartition(":")[0] for shard in cluster.shards()}
    assert hosts == {node.node_ip_address}
