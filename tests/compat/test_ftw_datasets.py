"""The datasets of `engram.compat.ftw`, with each framework."""

import ctypes
import inspect
import time
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace

import dm_env
import numpy as np
import pytest
from dm_env import specs
from helpers.compat_tables import serving
from helpers.support import BackgroundCall, raises, wait_until

import engram
from engram import adders
from engram.compat import reverb
from engram.compat.ftw.datasets.reverb import (
    make_reverb_fifo_sampler_dataset as make_steps,
)
from engram.compat.ftw.datasets.reverb import (
    make_reverb_rnn_sequence_fifo_sampler_dataset as make_sequences,
)

TABLE = "priority_table"
ENVIRONMENT = SimpleNamespace(
    observations={"pixels": specs.Array((4, 2), np.uint8), "speed": specs.Array((), np.float32)},
    actions=specs.DiscreteArray(5),
    rewards=specs.Array((), np.float64),
    discounts=specs.BoundedArray((), np.float32, 0, 1),
)
STATE = 1_000
EXTRAS = {"core_state": (specs.Array((STATE,), np.float32),), "logits": specs.Array((5,), np.float32)}
FRAMEWORKS = [
    "numpy",
    pytest.param("tensorflow", marks=pytest.mark.frameworks),
    pytest.param("torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
    pytest.param("jax", marks=pytest.mark.jax),
]


def observation(i):
    return {"pixels": np.full((4, 2), i, np.uint8), "speed": np.float32(i)}


def add_episode(adder, n, *, first=0, extras=True):
    """Adds an episode of `n` transitions, numbered from `first` on: `n + 1` observations."""
    adder.add_first(dm_env.restart(observation(first)))
    for i in range(first, first + n):
        more = {"extras": {"core_state": (np.full(STATE, i, np.float32),), "logits": np.zeros(5, np.float32)}}
        timestep = dm_env.transition(np.float64(i), observation(i + 1), np.float32(0.5))
        if i == first + n - 1:
            timestep = dm_env.termination(np.float64(i), observation(i + 1))._replace(discount=np.float32(0))
        adder.add(np.int32(i % 5), timestep, **(more if extras else {}))


def queue(**options):
    return engram.Table.queue(TABLE, max_size=100, **options)


def add_sequences(store, episodes, length):
    """Adds episodes, each a pair `(first, n)` of `add_episode`, as items of `length` steps without extras."""
    adder = adders.SequenceAdder(store, length, length)
    for first, n in episodes:
        add_episode(adder, n, first=first, extras=False)
    adder.close()


@contextmanager
def as_client(kind, store):
    """Yields a client of a kind that the datasets accept, which reads the store."""
    with engram.Server(store) as server:
        yield {
            "store": lambda: store,
            "engram": lambda: engram.Client(server.address),
            "client": lambda: reverb.Client(server.address),
            "tf_client": lambda: reverb.TFClient(server.address),
            "list": lambda: [store],
        }[kind]()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["store", "engram", "client", "list"])
def test_steps_are_in_order(framework, kind):
    with engram.Store([queue()]) as store, as_client(kind, store) as client:
        add_sequences(store, [(0, 7)], 4)
        elements = list(islice(make_steps(client, ENVIRONMENT, framework=framework), 8))
        assert isinstance(elements[0].data, adders.Step)
        assert [float(each.data.observation["speed"]) for each in elements] == list(range(8))
        assert [int(each.data.action) for each in elements] == [0, 1, 2, 3, 4, 0, 1, 0]
        assert [float(each.data.reward) for each in elements] == [0, 1, 2, 3, 4, 5, 6, 0]
        assert [float(each.data.discount) for each in elements] == [0.5] * 6 + [0, 0]
        assert [bool(each.data.start_of_episode) for each in elements] == [True] + [False] * 7
        assert elements[0].data.extras == ()
        assert np.asarray(elements[0].data.observation["pixels"]).shape == (4, 2)
        assert len({int(each.info.key) for each in elements}) == 2


@pytest.mark.frameworks
@pytest.mark.parametrize("make", [make_steps, make_sequences])
def test_a_tf_client_is_accepted(make):
    with engram.Store([queue()]) as store, as_client("tf_client", store) as client:
        add_sequences(store, [(0, 7)], 4)
        assert next(iter(make(client, ENVIRONMENT))).info.key.shape == ()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_items_are_cut_into_batches_of_shorter_sequences(framework):
    with engram.Store([queue()]) as store:
        add_sequences(store, [(10 * i, 5) for i in range(6)], 6)
        made = make_steps(store, ENVIRONMENT, 4, sequence_length=3, framework=framework)
        batch = next(iter(made))
        assert np.asarray(batch.info.key).shape == (4, 3)
        assert np.asarray(batch.data.observation["pixels"]).shape == (4, 3, 4, 2)
        expected = [[0, 1, 2], [3, 4, 5], [10, 11, 12], [13, 14, 15]]
        np.testing.assert_array_equal(np.asarray(batch.data.observation["speed"]), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sequences_have_their_first_state(framework):
    with engram.Store([queue()]) as store:
        adder = adders.NonOverlappingRNNSequenceAdder(store, 4, pad_end_of_episode=False)
        for i in range(4):
            add_episode(adder, 3, first=10 * i)
        adder.close()
        made = make_sequences(store, ENVIRONMENT, 2, 1, sequence_length=4, extra_spec=EXTRAS, framework=framework)
        iterator = iter(made)
        for firsts in ([0, 10], [20, 30]):
            batch = next(iterator)
            assert np.asarray(batch.info.key).shape == (2,)
            np.testing.assert_array_equal(np.asarray(batch.data.observation["speed"])[:, 0], firsts)
            (state,) = batch.data.extras["core_state"]
            assert np.asarray(state).shape == (2, 1, STATE)
            np.testing.assert_array_equal(np.asarray(state)[:, 0, 0], firsts)
            assert np.asarray(batch.data.extras["logits"]).shape == (2, 4, 5)


def test_only_the_first_state_is_stored():
    sizes = {}
    for length in (4, 8):
        with engram.Store([queue()]) as store:
            adder = adders.NonOverlappingRNNSequenceAdder(store, length, pad_end_of_episode=False)
            add_episode(adder, length - 1)
            adder.close()
            sizes[length] = store.info()[TABLE].bytes
            (state,) = store.sample(TABLE, 1).data.extras["core_state"]
            assert state.shape == (1, 1, STATE)
    state_bytes = STATE * 4
    assert state_bytes < sizes[4] < 2 * state_bytes
    assert sizes[8] - sizes[4] < state_bytes / 4  # four more steps, but no more states


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("with_extras", [False, True])
def test_transitions_are_tuples(framework, with_extras):
    with engram.Store([queue()]) as store:
        adder = adders.NStepTransitionAdder(store, 1, 1.0)
        add_episode(adder, 3, extras=with_extras)
        adder.close()
        extra_spec = EXTRAS if with_extras else None
        made = make_steps(store, ENVIRONMENT, extra_spec=extra_spec, transition_adder=True, framework=framework)
        elements = list(islice(made, 3))
        for i, each in enumerate(elements):
            assert type(each.data) is tuple
            assert len(each.data) == 5 + with_extras
            assert each.data[0]["speed"] == i
            assert each.data[1] == i % 5
            assert each.data[4]["speed"] == i + 1
        if with_extras:
            assert np.asarray(elements[0].data[5]["core_state"][0]).shape == (STATE,)


@pytest.mark.parametrize("with_extras", [False, True])
def test_items_of_deprecated_adders_are_tuples(with_extras):
    with engram.Store([queue()]) as store:
        row = (observation(3), np.int32(1), np.float64(2), np.float32(0.5))
        extras = ({"core_state": (np.zeros(STATE, np.float32),), "logits": np.zeros(5, np.float32)},)
        store.insert(row + extras * with_extras, {TABLE: 1.0})
        made = make_steps(
            store,
            ENVIRONMENT,
            extra_spec=EXTRAS if with_extras else None,
            using_deprecated_adder=True,
            framework="numpy",
        )
        data = next(iter(made)).data
        assert len(data) == 4 + with_extras
        assert (data[0]["speed"], data[1], data[2], data[3]) == (3, 1, 2, 0.5)


def test_rewards_and_discounts_are_float32_by_default():
    environment = SimpleNamespace(observations=specs.Array((2,), np.float32), actions=specs.DiscreteArray(3))
    with engram.Store([queue()]) as store:
        one = np.float32(1)
        row = adders.Step(np.zeros(2, np.float32), np.int32(1), one, one, np.True_)
        store.insert(row, {TABLE: 1.0})
        data = next(iter(make_steps(store, environment, framework="numpy"))).data
        assert (data.reward.dtype, data.discount.dtype) == (np.float32, np.float32)


SIGNATURE = {"x": engram.ArraySpec((6, 3), "float32"), "y": engram.ArraySpec((6,), "int64")}


def insert_items(store, n):
    """Inserts `n` items of six steps that fit `SIGNATURE`."""
    for i in range(n):
        data = {"x": np.full((6, 3), i, np.float32), "y": np.arange(6) + 10 * i}
        store.insert(data, {TABLE: 1.0}, time_axis=True)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_signature_of_a_table_supplies_the_specs(framework):
    with engram.Store([queue(signature=SIGNATURE)]) as store:
        insert_items(store, 4)
        batch = next(iter(make_steps(store, batch_size=2, sequence_length=2, framework=framework)))
        np.testing.assert_array_equal(np.asarray(batch.data["y"]), [[0, 1], [2, 3]])
    with engram.Store([queue(signature=SIGNATURE)]) as store:
        insert_items(store, 4)
        batch = next(iter(make_sequences(store, batch_size=2, framework=framework)))
        assert np.asarray(batch.data["x"]).shape == (2, 6, 3)


@pytest.mark.frameworks
def test_the_signature_of_a_compat_table_supplies_the_specs(tf):
    signature = {"x": tf.TensorSpec([3], tf.float32)}
    with serving(reverb.Table.queue(TABLE, 9, signature=signature)) as (_, client):
        client.insert({"x": np.float32([1, 2, 3])}, {TABLE: 1.0})
        made = make_steps(client)
        assert made.element_spec.data == {"x": tf.TensorSpec([3], tf.float32)}
        assert next(iter(made)).data["x"].numpy().tolist() == [1, 2, 3]


def test_a_missing_or_unusable_signature_is_rejected():
    with engram.Store([queue(), engram.Table("other")]) as store:
        with raises(ValueError, f"table `{TABLE}` has no signature; pass an `environment_spec`"):
            make_steps(store, framework="numpy")
        with raises(ValueError, "there is no table `nix`; known tables: `other`, `priority_table`"):
            make_steps(store, table="nix", framework="numpy")
        with raises(ValueError, "`extra_spec` requires an `environment_spec`: without one, the signature is used"):
            make_steps(store, extra_spec=EXTRAS, framework="numpy")
    with engram.Store([queue(signature=engram.ArraySpec((), "int64"))]) as store:
        text = f"table `{TABLE}` has columns without a time axis; pass an `environment_spec`"
        with raises(ValueError, text):
            make_steps(store, framework="numpy")


@pytest.mark.parametrize("length", [4, 7])
def test_sequence_length_must_divide_the_length_in_the_signature(length):
    text = f"items of table `{TABLE}` have 6 steps, which `sequence_length` {length} does not divide"
    with engram.Store([queue(signature=SIGNATURE)]) as store, raises(ValueError, text):
        make_steps(store, sequence_length=length, framework="numpy")


PLAIN = SimpleNamespace(observations=specs.Array((3,), np.float32), actions=specs.Array((), np.int64))


def insert_plain_items(store, lengths):
    """Inserts one item per length that fits `PLAIN`. The observations of item `i` are `i`."""
    for i, length in enumerate(lengths):
        rows = [
            np.full((length, 3), i, np.float32),
            np.arange(length),
            *[np.zeros(length, np.float32)] * 2,
            np.zeros(length, np.bool_),
        ]
        store.insert(adders.Step(*rows), {TABLE: 1.0}, time_axis=True)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (make_steps, f"items of table `{TABLE}` have 6 steps, which `sequence_length` 4 does not divide"),
        (make_sequences, f"an item of table `{TABLE}` has 6 steps, but `sequence_length` is 4"),
    ],
)
@pytest.mark.parametrize("lengths", [[6], [4, 6, 4]])
def test_items_of_another_length_are_an_error_and_stay_in_the_table(make, text, lengths):
    with engram.Store([queue()]) as store:
        insert_plain_items(store, lengths)
        iterator = iter(make(store, PLAIN, sequence_length=4, framework="numpy"))
        if lengths[0] == 4:
            assert next(iterator).data.observation.shape == (4, 3)
        with raises(ValueError, text):
            next(iterator)
        # The item that does not fit is still in the table.
        assert store.info()[TABLE].size == (1 if lengths[0] == 6 else 2)


@pytest.mark.frameworks
def test_items_of_another_length_are_an_error_of_tensorflow(tf):
    with engram.Store([queue()]) as store:
        insert_plain_items(store, [6])
        with pytest.raises(tf.errors.InvalidArgumentError, match="have 6 steps, which `sequence_length` 4 does not"):
            next(iter(make_steps(store, PLAIN, sequence_length=4)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_convert_zero_size_to_none_allows_axes_of_any_size(framework):
    environment = SimpleNamespace(observations=specs.Array((0, 5), np.float32), actions=specs.Array((), np.int64))
    with engram.Store([queue()]) as store:
        for n in (2, 3, 2, 2):
            row = adders.Step(np.full((n, 5), n, np.float32), 1, np.float32(0), np.float32(0), np.True_)
            store.insert(row, {TABLE: 1.0})
        made = make_steps(store, environment, 2, convert_zero_size_to_none=True, framework=framework)
        if framework == "tensorflow":
            assert made.element_spec.data.observation.shape.as_list() == [2, None, 5]
        one, two = islice(made, 2)
        assert [np.asarray(each).shape for each in one.data.observation] == [(2, 5), (3, 5)]
        assert [np.asarray(each).shape for each in two.data.observation] == [(2, 5), (2, 5)]
        assert np.asarray(one.data.action).tolist() == [1, 1]


def test_axes_of_size_zero_must_be_empty_by_default():
    environment = SimpleNamespace(observations=specs.Array((0, 5), np.float32), actions=specs.Array((), np.int64))
    with engram.Store([queue()]) as store:
        row = adders.Step(np.zeros((2, 5), np.float32), 1, np.float32(0), np.float32(0), np.True_)
        store.insert(row, {TABLE: 1.0})
        with pytest.raises(ValueError, match=r"Specification has \(dtype, shape\): \(float, \[0,5\]\)"):
            next(iter(make_steps(store, environment, framework="numpy")))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("num_parallel_calls", [1, 4])
def test_several_clients_take_turns(framework, num_parallel_calls):
    with engram.Store([queue()]) as one, engram.Store([queue()]) as two:
        insert_plain_items(one, [2] * 6)
        insert_plain_items(two, [3] * 6)
        made = make_sequences([one, two], PLAIN, num_parallel_calls=num_parallel_calls, framework=framework)
        observations = [np.asarray(each.data.observation) for each in islice(made, 12)]
        assert [each.shape[0] for each in observations] == [2, 3] * 6
        assert [each[0, 0] for each in observations] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_items_of_one_client_stay_in_order_with_parallel_calls(framework, deterministic):
    with engram.Store([queue()]) as store:
        insert_plain_items(store, [1] * 60)
        made = make_sequences(store, PLAIN, num_parallel_calls=4, deterministic=deterministic, framework=framework)
        assert [float(np.asarray(each.data.observation)[0, 0]) for each in islice(made, 60)] == list(range(60))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_client_without_items_is_skipped(framework):
    with engram.Store([queue()]) as one, engram.Store([queue()]) as two:
        insert_plain_items(two, [3] * 6)
        made = make_sequences([one, two], PLAIN, deterministic=False, framework=framework)
        observations = [np.asarray(each.data.observation) for each in islice(made, 6)]
        assert [each[0, 0] for each in observations] == [0, 1, 2, 3, 4, 5]


def test_a_client_without_items_does_not_delay_the_others():
    with engram.Store([queue()]) as empty, engram.Store([queue()]) as store:
        insert_plain_items(store, [1] * 60)
        iterator = iter(make_sequences([empty, store], PLAIN, deterministic=False, framework="numpy"))
        began = time.monotonic()
        values = [each.data.observation[0, 0] for each in islice(iterator, 60)]
        assert time.monotonic() - began < 10  # a poll of 0.2 s per element would take 12 s
        assert values == list(range(60))
        waiting = BackgroundCall(lambda: next(iterator))
        insert_plain_items(empty, [1])
        assert waiting.result().data.observation[0, 0] == 0


def test_batches_are_in_sampling_order():
    with engram.Store([queue()]) as store:
        insert_plain_items(store, [2] * 9)
        made = make_sequences(store, PLAIN, 2, framework="numpy")
        batches = list(islice(made, 4))
        assert [batch.data.observation[:, 0, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("make", [make_steps, make_sequences])
@pytest.mark.parametrize(
    ("batch_size", "prefetch_size", "num_drawn"),
    [(2, None, 4), (4, 0, 8), (2, 3, 10), (None, None, 100), (None, 7, 107)],
)
def test_prefetched_items_are_returned(make, batch_size, prefetch_size, num_drawn):
    with engram.Store([engram.Table.queue(TABLE, max_size=200)]) as store:
        insert_plain_items(store, [1] * 200)
        iterator = iter(make(store, PLAIN, batch_size, prefetch_size, framework="numpy"))
        next(iterator)
        num_yielded = batch_size or 1
        wait_until(lambda: store.info()[TABLE].samples >= num_drawn)
        time.sleep(0.2)
        # A dataset of steps draws up to `num_yielded - 1` items more.
        assert store.info()[TABLE].samples < num_drawn + num_yielded
        iterator.close()
        wait_until(lambda: store.info()[TABLE].size == 200 - num_yielded)
        assert store.sample(TABLE, 1).data.observation[0, 0, 0] == num_yielded


@pytest.mark.parametrize("make", [make_steps, make_sequences])
@pytest.mark.parametrize(("batch_size", "prefetch_size", "num_drawn"), [(4, None, 8), (4, 3, 20), (None, None, 100)])
def test_prefetched_draws_with_replacement_are_returned(make, batch_size, prefetch_size, num_drawn):
    """The table has only nine items, each of which can be drawn again."""
    with engram.Store([engram.Table(TABLE, max_size=9)]) as store:
        insert_plain_items(store, [1] * 9)
        iterator = iter(make(store, PLAIN, batch_size, prefetch_size, framework="numpy"))
        next(iterator)
        wait_until(lambda: store.info()[TABLE].samples == num_drawn)
        iterator.close()
        wait_until(lambda: store.info()[TABLE].samples == (batch_size or 1))


def test_an_interrupted_batch_is_returned_to_the_table():
    with engram.Store([queue()]) as store, engram.Server(store) as server:
        insert_plain_items(store, [2] * 5)
        iterator = iter(make_sequences(engram.Client(server.address), PLAIN, 4, framework="numpy"))
        next(iterator)
        waiting = BackgroundCall(lambda: next(iterator))
        wait_until(lambda: store.info()[TABLE].samples == 5)
        interrupt(waiting)
        with pytest.raises(KeyboardInterrupt):
            waiting.result()
        wait_until(lambda: store.info()[TABLE].size == 1)
        assert store.info()[TABLE].samples == 4


def interrupt(thread):
    """Raises a KeyboardInterrupt in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))


def test_a_batch_may_be_larger_than_its_queue():
    with engram.Store([engram.Table.queue(TABLE, max_size=3)]) as store:
        BackgroundCall(lambda: insert_plain_items(store, [2] * 24))
        batches = list(islice(make_sequences(store, PLAIN, 8, framework="numpy"), 2))
        assert [batch.data.observation[:, 0, 0].tolist() for batch in batches] == [[*range(8)], [*range(8, 16)]]


@pytest.mark.parametrize("num_stores", [1, 2])
def test_items_of_a_batch_must_have_equal_shapes(num_stores):
    stores = [engram.Store([queue()]) for _ in range(num_stores)]
    for store in stores:
        insert_plain_items(store, [2, 3, 3, 3] if num_stores == 1 else [2, 2, 3, 3])
    iterator = iter(make_sequences(stores, PLAIN, 3, framework="numpy"))
    text = {
        1: "one has 2 steps and another 3 steps",
        2: "one has the shape [2, 3] and another the shape [3, 3]",
    }[num_stores]
    with raises(ValueError, f"elements of a batch of table `{TABLE}` must have equal shapes; {text}"):
        list(islice(iterator, 2))
    if num_stores == 1:
        assert stores[0].info()[TABLE].size == 4  # all items are still in the table


@pytest.mark.frameworks
@pytest.mark.parametrize("batch_size", [None, 4])
def test_tensorflow_does_not_prefetch_by_itself(tf, batch_size):  # noqa: ARG001, TensorFlow must be installed
    with engram.Store([engram.Table.queue(TABLE, max_size=400)]) as store:
        insert_plain_items(store, [1] * 400)
        iterator = iter(make_steps(store, PLAIN, batch_size))
        for _ in range(3):
            next(iterator)
        time.sleep(0.3)  # time to prefetch
        del iterator
        wait_until(lambda: store.info()[TABLE].size == 400 - (12 if batch_size else 3))


@pytest.mark.frameworks
@pytest.mark.parametrize("deterministic", [True, False])
def test_tensorflow_threads_buffer_few_elements(tf, deterministic):  # noqa: ARG001, TensorFlow must be installed
    with engram.Store([queue()]) as one, engram.Store([queue()]) as two:
        for store in (one, two):
            insert_plain_items(store, [1] * 100)
        iterator = iter(make_steps([one, two], PLAIN, 1, num_parallel_calls=2, deterministic=deterministic))
        for _ in range(4):
            next(iterator)
        time.sleep(0.3)  # time to prefetch
        del iterator
        wait_until(lambda: 200 - one.info()[TABLE].size - two.info()[TABLE].size <= 6)  # four were consumed


@pytest.mark.frameworks
def test_prefetch_size_counts_batches(tf):
    with engram.Store([queue()]) as store:
        insert_plain_items(store, [1] * 100)
        iterator = iter(make_steps(store, PLAIN, 2, 5))
        next(iterator)
        wait_until(lambda: store.info()[TABLE].samples >= 12)
        assert isinstance(make_steps(store, PLAIN, 2, 5), tf.data.Dataset)


@pytest.mark.frameworks
def test_the_default_framework_is_tensorflow(tf):
    with engram.Store([queue(signature=SIGNATURE)]) as store:
        made = make_sequences(store, batch_size=3)
        assert isinstance(made, tf.data.Dataset)
        assert made.element_spec.data["x"] == tf.TensorSpec([3, 6, 3], tf.float32)


@pytest.mark.frameworks
@pytest.mark.torch
@pytest.mark.jax
def test_elements_are_arrays_of_torch_or_jax():
    import jax  # noqa: PLC0415, the extra
    import torch  # noqa: PLC0415, the extra

    with engram.Store([engram.Table(TABLE, signature=SIGNATURE)]) as store:
        insert_items(store, 1)
        assert isinstance(next(iter(make_steps(store, framework="torch"))).data["x"], torch.Tensor)
        assert isinstance(next(iter(make_steps(store, framework="jax"))).data["x"], jax.Array)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        ({"prefetch_size": -1}, "`prefetch_size` must be at least 0; got -1"),
        ({"sequence_length": 0}, "`sequence_length` must be at least 1; got 0"),
        ({"num_parallel_calls": 0}, "`num_parallel_calls` must be at least 1; got 0"),
        ({"framework": "mxnet"}, "`framework` must be one of 'tensorflow', 'numpy', 'torch', 'jax'; got 'mxnet'"),
        ({"extra_spec": {"a": 3}}, "specs must have `shape` and `dtype`; got 3"),
    ],
)
@pytest.mark.parametrize("make", [make_steps, make_sequences])
def test_invalid_arguments_are_rejected(make, options, text):
    with engram.Store([queue()]) as store, raises(ValueError, text):
        make(store, PLAIN, **{"framework": "numpy", **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": 3}, "`table` must be text; got 3 (int)"),
        ({"table": b"t"}, "`table` must be text; got b't' (bytes)"),
        ({"transition_adder": 1}, "`transition_adder` must be True or False; got 1 (int)"),
        ({"convert_zero_size_to_none": None}, "`convert_zero_size_to_none` must be True or False; got None"),
        ({"using_deprecated_adder": "no"}, "`using_deprecated_adder` must be True or False; got 'no' (str)"),
        ({"deterministic": 0}, "`deterministic` must be True or False; got 0 (int)"),
    ],
)
@pytest.mark.parametrize("make", [make_steps, make_sequences])
def test_arguments_of_wrong_types_are_rejected(make, options, text):
    with engram.Store([queue()]) as store, raises(TypeError, text):
        make(store, PLAIN, **{"framework": "numpy", **options})


@pytest.mark.parametrize("nothing", [{}, ()])
def test_an_empty_extra_spec_is_ignored(nothing):
    with engram.Store([queue(signature=SIGNATURE)]) as store:
        insert_items(store, 1)
        assert next(iter(make_steps(store, extra_spec=nothing, framework="numpy"))).data["y"] == 0
    with engram.Store([queue()]) as store:
        adder = adders.NStepTransitionAdder(store, 1, 1.0)
        add_episode(adder, 3, extras=False)
        adder.close()
        made = make_steps(store, ENVIRONMENT, extra_spec=nothing, transition_adder=True, framework="numpy")
        assert len(next(iter(made)).data) == 5


@pytest.mark.parametrize("make", [make_steps, make_sequences])
def test_a_signature_may_be_a_single_spec(make):
    with engram.Store([queue(signature=engram.ArraySpec((None, 3), "float32"))]) as store:
        store.insert(np.ones((2, 3), np.float32), {TABLE: 1.0}, time_axis=True)
        assert next(iter(make(store, framework="numpy"))).data.sum() == (3 if make is make_steps else 6)


def test_invalid_environments_are_rejected():
    text = "`environment_spec` must have `observations`, a nest of specs; got 3"
    with engram.Store([queue()]) as store, raises(ValueError, text):
        make_steps(store, 3, framework="numpy")


@pytest.mark.parametrize("client", ["localhost:1", 3])
def test_invalid_clients_are_rejected(client):
    with pytest.raises(TypeError, match="`client` must be a TFClient or a Client of"):
        make_steps(client, PLAIN, framework="numpy")


def test_an_empty_list_of_clients_is_rejected():
    with raises(ValueError, "`client` must be a client or a nonempty list of clients; got an empty list"):
        make_steps([], PLAIN, framework="numpy")


@pytest.mark.parametrize("make", [make_steps, make_sequences])
def test_arguments_are_those_of_ftw(make):
    published = {
        "client": inspect.Parameter.empty,
        "environment_spec": None,
        "batch_size": None,
        "prefetch_size": None,
        "sequence_length": None,
        "extra_spec": None,
        "transition_adder": False,
        "table": "priority_table",
        "convert_zero_size_to_none": False,
        "num_parallel_calls": 1,
        "using_deprecated_adder": False,
        "deterministic": True,
    }
    defaults = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
    assert defaults.pop("framework") == "tensorflow"
    assert list(defaults.items()) == list(published.items())
