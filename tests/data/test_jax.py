"""A table as JAX arrays."""

import numpy as np
import pytest
from support import raises, run_python

from engram import Store, Table, selectors
from engram.errors import InvalidArgumentError, SignatureError

pytestmark = pytest.mark.jax


@pytest.fixture
def dataset():
    from engram.data import jax  # noqa: PLC0415, the extra

    return jax.dataset


def queue():
    return Table("t", sampler=selectors.Fifo(), max_times_sampled=1)


def fill(store, items=4):
    for value in range(items):
        store.insert({"x": np.float32([value, value]), "word": np.array(["a", "b"])}, {"t": 1.0}, time_axis=True)


def test_arrays(dataset):
    import jax  # noqa: PLC0415, the extra

    with Store([queue()]) as store:
        fill(store)
        found = list(dataset(store, "t", batch_size=2, max_batches=2))
    assert all(isinstance(element.data["x"], jax.Array) for element in found)
    assert [element.data["x"].tolist() for element in found] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    assert found[0].data["word"].tolist() == [[b"a", b"b"]] * 2
    assert found[0].info.key.dtype == np.uint64


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_what_was_put_on_the_device_counts_as_used(dataset, ahead):
    with Store([queue()]) as store:
        fill(store)
        for element in dataset(store, "t", device_prefetch=ahead, prefetch=1, timeout=0.1):
            assert element.data["x"].tolist() == [0, 0]
            break
        assert store.info()["t"].size == max(0, 3 - ahead)


def test_all_that_was_put_there_comes(dataset):
    with Store([queue()]) as store:
        fill(store)
        found = [int(element.data["x"][0]) for element in dataset(store, "t", device_prefetch=3, timeout=0.1)]
    assert found == [0, 1, 2, 3]


def test_ragged(dataset):
    with Store([queue()]) as store:
        for length in (2, 1, 2, 1):
            store.insert({"x": np.arange(length)}, {"t": 1.0}, time_axis=True)
        text = "items of a batch differ in length, and JAX has no arrays for that; `pad=True` fills them up"
        with raises(SignatureError, text):
            next(iter(dataset(store, "t", batch_size=2)))
        [padded] = dataset(store, "t", batch_size=2, max_batches=1, pad=True)
    assert padded.mask["x"].tolist() == [[True, True], [True, False]]


def test_bad_prefetch(dataset):
    with Store([queue()]) as store, raises(InvalidArgumentError, "`device_prefetch` must be at least 0; got -1"):
        dataset(store, "t", device_prefetch=-1)


def test_a_batch_over_several_devices():
    """JAX is told once in a process how many devices it has."""
    printed = run_python("""
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np, engram
from engram.data.jax import dataset
mesh = jax.make_mesh((2,), ("batch",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
store = engram.Store([engram.Table("t")])
for value in range(4):
    store.insert(np.float32([value]), {"t": 1.0}, time_axis=True)
for element in dataset(store, "t", batch_size=4, max_batches=1, device=sharding):
    print(element.data.sharding == sharding, sorted(shard.data.shape for shard in element.data.addressable_shards))
""")
    assert printed == "True [(2, 1), (2, 1)]\n"
