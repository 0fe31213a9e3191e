"""A Ray cluster on this machine, for all tests of the folder."""

import itertools

import pytest
from helpers.ray_nodes import RayNodes

_names = itertools.count()


@pytest.fixture(scope="session")
def nodes():
    with RayNodes(3) as started:
        yield started


@pytest.fixture
def start(nodes, tmp_path):
    """Returns `start(tables, **options)`: a cluster on the nodes for shards, which is stopped after the test."""
    from engram import distributed
    from engram.errors import UnavailableError

    started = []
    name = f"cluster-{next(_names)}"

    def start_one(tables, **options):
        defaults = {"path": tmp_path / "cluster", "name": name, "num_cpus": 0.5, "resources": {"shard": 0.5}}
        started.append(distributed.start(tables, **{**defaults, **options}))
        return started[-1]

    yield start_one
    for cluster in started:
        try:
            cluster.stop()
        except (UnavailableError, ValueError):
            pass
        except Exception as error:
            if "Actor" not in type(error).__name__:
                raise
