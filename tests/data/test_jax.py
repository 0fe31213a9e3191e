"""A table as JAX arrays."""

import time

import numpy as np
import pytest
from helpers.data_tables import insert, queue
from helpers.support import raises, run_python, wait_until

from engram import Server, Store
from engram.errors import ClosedError, InvalidArgumentError, SignatureError

pytestmark = pytest.mark.jax


@pytest.fixture
def dataset():
    from engram.data import jax  # noqa: PLC0415, the extra

    return jax.dataset


def fill(store, number=4):
    """Inserts `number` items of two steps."""
    items = ({"x": np.float32([n, n]), "word": np.array(["a", "b"]), "a": np.int8([n, 9])} for n in range(number))
    insert(store, *items)


def test_elements_are_jax_arrays(dataset):
    import jax  # noqa: PLC0415, the extra

    with Store([queue()]) as store:
        fill(store)
        elements = list(dataset(store, "t", batch_size=2, max_batches=2))
    assert all(isinstance(element.data["x"], jax.Array) for element in elements)
    assert [element.data["x"].tolist() for element in elements] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    assert elements[0].data["word"].tolist() == [["a", "b"]] * 2
    assert elements[1].data["a"].tolist() == [[2, 9], [3, 9]]
    assert elements[0].info.key.dtype == np.uint64


@pytest.mark.parametrize("options", [{"steps": True}, {"steps": True, "batch_size": 3}, {}])
def test_steps_and_single_items_are_jax_arrays(dataset, options):
    import jax  # noqa: PLC0415, the extra

    with Store([queue()]) as store:
        fill(store)
        elements = list(dataset(store, "t", timeout=0.1, **options))
    assert all(isinstance(element.data["x"], jax.Array) for element in elements)
    assert np.concatenate([np.atleast_1d(element.data["x"]) for element in elements]).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert np.concatenate([np.atleast_1d(element.data["word"]) for element in elements]).tolist() == ["a", "b"] * 4


def test_64_bits_are_truncated_to_32(dataset):
    with Store([queue()]) as store:
        insert(store, np.array([2**40 + 1]))
        [element] = dataset(store, "t", max_batches=1)
    assert (element.data.dtype, element.data.tolist()) == (np.int32, [1])


def test_items_of_different_lengths_need_padding(dataset):
    with Store([queue()]) as store:
        insert(store, *({"x": np.arange(length)} for length in (2, 1, 2, 1)))
        text = "items of a batch differ in length, and JAX has no ragged arrays; give `pad=True` to pad them"
        with raises(SignatureError, text):
            next(iter(dataset(store, "t", batch_size=2)))
        assert store.info()["t"].size == 4, "the items were returned"
        [padded] = dataset(store, "t", batch_size=2, max_batches=1, pad=True)
    assert padded.data["x"].tolist() == [[0, 1], [0, 0]]
    assert padded.mask["x"].tolist() == [[True, True], [True, False]]


# --- prefetching to the device ---------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 5])
def test_elements_on_the_device_count_as_consumed(dataset, number):
    with Store([queue()]) as store:
        fill(store, 10)
        elements = iter(dataset(store, "t", device_prefetch=number, prefetch=1))
        assert next(elements).data["x"].tolist() == [0, 0]
        # One is yielded, `number` are on the device, one is prefetched. A leased item is in the table until consumed.
        wait_until(lambda: store.info()["t"].samples >= 2 + number)
        time.sleep(0.1)
        elements.close()
        assert store.info()["t"].size == 9 - number
        assert store.info()["t"].hidden_items == 0


@pytest.mark.parametrize("number", [1, 3, 9])
def test_elements_keep_their_order(dataset, number):
    with Store([queue()]) as store:
        fill(store)
        elements = [int(element.data["x"][0]) for element in dataset(store, "t", device_prefetch=number, timeout=0.2)]
    assert elements == [0, 1, 2, 3]


def test_an_element_is_yielded_before_the_next_is_ready(dataset):
    with Server([queue()]) as server:
        fill(server.store, 1)
        elements = iter(dataset(server.store, "t", device_prefetch=3))
        assert next(elements).data["x"].tolist() == [0, 0]
        fill(server.store, 1)
        assert next(elements).data["x"].tolist() == [0, 0]
        elements.close()


def test_errors_are_raised_after_the_elements_before_them(dataset):
    with Store([queue()]) as store:
        fill(store, 2)
        elements = iter(dataset(store, "t", device_prefetch=3))
        wait_until(lambda: store.info()["t"].samples == 0)
        assert next(elements).data["x"].tolist() == [0, 0]
        wait_until(lambda: store.info()["t"].waiting_samples > 0)
        store.drop_table("t")
        assert next(elements).data["x"].tolist() == [1, 1]
        with raises(ClosedError, "table `t` was dropped"):
            next(elements)


def test_a_waiting_iterator_can_be_closed(dataset):
    import threading  # noqa: PLC0415

    with Store([queue()]) as store:
        fill(store, 1)
        before = threading.active_count()
        elements = iter(dataset(store, "t", device_prefetch=3))
        next(elements)
        assert threading.active_count() == before + 1
        wait_until(lambda: store.info()["t"].waiting_samples > 0)
        elements.close()
        assert store.info()["t"].waiting_samples == 0
        assert threading.active_count() == before


# --- devices -------------------------------------------------------------------------------------


def test_elements_are_on_the_given_device(dataset):
    import jax  # noqa: PLC0415, the extra

    device = jax.devices()[0]
    with Store([queue()]) as store:
        fill(store)
        [element] = dataset(store, "t", batch_size=4, max_batches=1, device=device)
    assert element.data["x"].devices() == {device}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device_prefetch": -1}, "`device_prefetch` must be at least 0; got -1"),
        (
            {"device": "cpu"},
            "`device` must be a jax.Device, for example jax.devices()[0], or a jax.sharding.Sharding; got 'cpu' (str)",
        ),
    ],
)
def test_bad_options_are_rejected(dataset, options, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        dataset(store, "t", **options)


def test_a_sharding_splits_batches_over_several_devices():
    """In a process of its own, as the number of JAX's devices is fixed once JAX has used one."""
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
for options in ({}, {"steps": True, "drop_remainder": True}, {"device_prefetch": 1}):
    for element in dataset(store, "t", batch_size=4, max_batches=1, device=sharding, **options):
        shapes = sorted(shard.data.shape for shard in element.data.addressable_shards)
        print(element.data.sharding == sharding, shapes)
for options in ({"batch_size": 4, "steps": True}, {}):
    try:
        dataset(store, "t", device=sharding, **options)
    except engram.errors.InvalidArgumentError as error:
        print(error)
everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
for element in dataset(store, "t", max_batches=1, device=everywhere):
    print(len(element.data.addressable_shards))
samples = store.info()["t"].samples
try:
    next(iter(dataset(store, "t", batch_size=3, device=sharding)))
except ValueError as error:
    print("divide" in str(error), store.info()["t"].samples - samples)
""")
    assert printed.splitlines() == [
        "True [(2, 1), (2, 1)]",
        "True [(2,), (2,)]",
        "True [(2, 1), (2, 1)]",
        (
            "`device` is a sharding over 2 devices, which needs batches of one size, and the last batch of steps may "
            "be smaller; give `drop_remainder=True`"
        ),
        "`device` is a sharding over 2 devices, which needs batches; give a `batch_size`",
        "2",
        "True 0",
    ]
