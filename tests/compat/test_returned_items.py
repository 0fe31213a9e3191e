"""Datasets that are closed early return unused items to their old positions."""

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from dm_env import specs as env_specs
from helpers.compat_tables import serving
from helpers.reverb_items import put_items, specs
from helpers.support import BackgroundCall, slow_except, wait_until

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
PLAIN = SimpleNamespace(observations=env_specs.Array((), np.float32), actions=env_specs.Array((), np.int64))
FRAMEWORKS = [
    "numpy",
    pytest.param("torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
    pytest.param("jax", marks=pytest.mark.jax),
]


def fill(store, lengths, first=0):
    """Inserts one item per length. The observations of item `i` are `i`."""
    for i, length in enumerate(lengths, start=first):
        rows = [np.full(length, i, np.float32), np.arange(length), *[np.zeros(length, np.float32)] * 2]
        store.insert(adders.Step(*rows, np.zeros(length, np.bool_)), {TABLE: 1.0}, time_axis=True)


@contextmanager
def stores(num_stores, kind, size=100):
    """Yields stores with a queue each, and what the datasets read: these stores or remote clients of them."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(engram.Store([engram.Table.queue(TABLE, max_size=size)])) for _ in range(num_stores)
        ]
        if kind == "in_process":
            yield made, made
        else:
            servers = [stack.enter_context(engram.Server(store)) for store in made]
            yield made, [stack.enter_context(engram.Client(server.address)) for server in servers]


def drain(store):
    """Removes and returns all items of the queue, in order."""
    wait_until(lambda: store.info()[TABLE].hidden_items == 0)
    info = store.info()[TABLE]
    assert info.samples == info.deletes, "returned items do not count as sampled"
    return [int(store.sample(TABLE, 1).data.observation[0, 0]) for _ in range(info.size)]


def observations(elements):
    return [int(n) for each in elements for n in np.ravel(np.asarray(each.data.observation))]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["in_process", "remote"])
@pytest.mark.parametrize(("batch_size", "num_taken"), [(None, 0), (None, 1), (None, 7), (3, 1), (3, 4), (20, 1)])
def test_items_whose_steps_were_not_yielded_are_returned(framework, kind, batch_size, num_taken):
    with stores(1, kind) as ([store], clients):
        fill(store, [2] * 30)
        iterator = iter(make_steps(clients, PLAIN, batch_size, framework=framework))
        observed = observations(islice(iterator, num_taken))
        assert observed == [n // 2 for n in range(num_taken * (batch_size or 1))]
        iterator.close()
        assert drain(store) == list(range(-(-len(observed) // 2), 30))


@pytest.mark.parametrize("kind", ["in_process", "remote"])
@pytest.mark.parametrize("num_taken", [0, 1, 2, 3])
def test_items_of_two_stores_are_returned_to_each(kind, num_taken):
    with stores(2, kind) as (both, clients):
        for store in both:
            fill(store, [1] * 20)
        iterator = iter(make_sequences(clients, PLAIN, 5, framework="numpy"))
        observed = observations(islice(iterator, num_taken))
        assert observed == [n // 2 for n in range(5 * num_taken)]
        iterator.close()
        assert drain(both[0]) == list(range((5 * num_taken + 1) // 2, 20))
        assert drain(both[1]) == list(range(5 * num_taken // 2, 20))


@pytest.mark.parametrize("kind", ["in_process", "remote"])
@pytest.mark.parametrize("num_taken", [1, 2, 3])
def test_items_cut_into_sequences_are_returned_unless_one_was_yielded(kind, num_taken):
    """Each item is cut into two elements."""
    with stores(1, kind) as ([store], clients):
        fill(store, [6] * 10)
        iterator = iter(make_steps(clients, PLAIN, sequence_length=3, framework="numpy"))
        assert observations(islice(iterator, num_taken)) == [n // 6 for n in range(3 * num_taken)]
        iterator.close()
        assert drain(store) == list(range(-(-num_taken // 2), 10))


def test_items_of_different_lengths_are_returned():
    with stores(1, "in_process") as ([store], clients):
        fill(store, [1, 3, 2, 5])
        iterator = iter(make_steps(clients, PLAIN, framework="numpy"))
        assert observations(islice(iterator, 4)) == [0, 1, 1, 1]
        iterator.close()
        assert drain(store) == [2, 3]


@pytest.mark.parametrize("kind", ["in_process", "remote"])
def test_a_rejected_batch_is_returned(kind):
    with stores(2, kind) as (both, clients):
        for store in both:
            fill(store, [2, 2, 3, 3])
        made = make_sequences(clients, PLAIN, 5, framework="numpy")
        with pytest.raises(ValueError, match="elements of a batch of table"):
            next(iter(made))
        assert [drain(store) for store in both] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", ["in_process", "remote"])
def test_inserts_into_queues_smaller_than_a_batch_continue(kind, deterministic):
    """The items of an incomplete batch leave their queue, so that it accepts more."""
    with stores(2, kind, size=3) as (both, clients):
        inserting = [BackgroundCall(lambda store=store: fill(store, [1] * 24)) for store in both]
        iterator = iter(make_sequences(clients, PLAIN, 16, framework="numpy", deterministic=deterministic))
        observed = observations(islice(iterator, 3))
        assert sorted(observed) == sorted([*range(24)] * 2)
        for each in inserting:
            each.result()
        iterator.close()


def test_unused_draws_with_replacement_are_returned():
    with engram.Store([engram.Table(TABLE, max_size=9)]) as store:
        fill(store, [4] * 9)
        iterator = iter(make_steps(store, PLAIN, 3, framework="numpy"))
        assert len(observations(islice(iterator, 3))) == 9
        iterator.close()
        wait_until(lambda: store.info()[TABLE].hidden_items == 0)
        assert store.info()[TABLE].samples == 3


READER = """
import sys, time
from types import SimpleNamespace
import numpy as np
from dm_env import specs
import engram
from engram.compat.ftw.datasets.reverb import make_reverb_fifo_sampler_dataset as make
plain = SimpleNamespace(observations=specs.Array((), np.float32), actions=specs.Array((), np.int64))
iterator = iter(make(engram.Client(sys.argv[1]), plain, 4, framework="numpy"))
for _ in range(3):
    print(next(iterator).data.observation.tolist(), flush=True)
time.sleep(1_000)
"""


def test_items_of_a_killed_reader_are_returned():
    """All items are returned except those that the reader yielded."""
    with engram.Server([engram.Table.queue(TABLE, max_size=100)]) as server:
        fill(server.store, [2] * 20)
        arguments = [sys.executable, "-c", READER, server.address]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert [process.stdout.readline() for _ in range(3)][2] == "[4.0, 4.0, 5.0, 5.0]\n"
            wait_until(lambda: server.store.info()[TABLE].size == 14)
            process.kill()
        wait_until(lambda: server.store.info()[TABLE].hidden_items == 0)
        assert drain(server.store) == list(range(6, 20))


# --- TensorFlow ----------------------------------------------------------------------------------


def next_item_numbers(iterator, num_taken):
    """Reads `num_taken` elements; returns the number of the item of each."""
    return [int(np.ravel(next(iterator).data["item_step"])[0]) for _ in range(num_taken)]


def timesteps(tf, client, **options):
    return reverb.TimestepDataset(client.server_address, "t", *specs(tf, ()), **options)


def items(tf, client, **options):
    return reverb.TrajectoryDataset(client.server_address, "t", *specs(tf, None), **options)


def drain_t(client):
    """Returns all items of the queue, in order."""
    size = client.server_info()["t"].current_size
    return [int(sample[0].data[1]) for sample in client.sample("t", size)]


@pytest.mark.frameworks
@pytest.mark.parametrize("lengths", slow_except([1, 4, 2, 5, 5, 3] * 3, of=[[3] * 20, [1, 4, 2, 5, 5, 3] * 3]))
@pytest.mark.parametrize(
    ("num_taken", "max_in_flight"),
    [(1, 100), pytest.param(2, 8, marks=pytest.mark.slow), (11, 8), pytest.param(3, 1, marks=pytest.mark.slow)],
)
def test_items_that_tensorflow_has_not_consumed_are_returned(tf, lengths, num_taken, max_in_flight):
    starts = np.cumsum([0, *lengths])[:-1]
    for make, used in ((items, num_taken), (timesteps, int(np.sum(starts < num_taken)))):
        with serving(reverb.Table.queue("t", 100)) as (_, client):
            put_items(client, "t", lengths=lengths)
            iterator = iter(make(tf, client, max_in_flight_samples_per_worker=max_in_flight))
            next_item_numbers(iterator, num_taken)
            del iterator
            wait_until(lambda: client.server_info()["t"].current_size == len(lengths) - used)  # noqa: B023, called immediately
            assert drain_t(client) == list(range(used, len(lengths)))


@pytest.mark.frameworks
def test_concurrent_iterations_return_their_own_unused_items(tf):
    with serving(reverb.Table.queue("t", 100)) as (_, client):
        put_items(client, "t", lengths=[1] * 40)
        made = items(tf, client, max_in_flight_samples_per_worker=8)
        one, two = iter(made), iter(made)
        assert next_item_numbers(one, 1) == [0]
        first_of_two = next_item_numbers(two, 1)
        assert next_item_numbers(one, 2) == [1, 2]
        rest_of_two = next_item_numbers(two, 5)
        del one, two
        wait_until(lambda: client.server_info()["t"].current_size == 40 - 9)
        assert drain_t(client) == [n for n in range(40) if n not in {0, 1, 2, *first_of_two, *rest_of_two}]
        again = iter(made)
        with pytest.raises(StopIteration):
            next(iter(made.take(0)))
        put_items(client, "t", lengths=[1] * 3)
        assert next_item_numbers(again, 1) == [0]
        del again
        wait_until(lambda: client.server_info()["t"].current_size == 2)


@pytest.mark.frameworks
def test_items_that_tensorflow_prefetched_are_used(tf):
    with serving(reverb.Table.queue("t", 100)) as (_, client):
        put_items(client, "t", lengths=[1] * 40)
        iterator = iter(items(tf, client, max_in_flight_samples_per_worker=20).prefetch(3))
        assert next_item_numbers(iterator, 2) == [0, 1]
        time.sleep(0.3)  # time to fill the prefetch buffer
        del iterator
        wait_until(lambda: client.server_info()["t"].current_size == 35)
        assert drain_t(client) == list(range(5, 40))


@pytest.mark.frameworks
def test_a_dataset_of_tensorflow_returns_items_cut_into_sequences(tf):  # noqa: ARG001, TensorFlow must be installed
    with stores(1, "in_process") as ([store], clients):
        fill(store, [6] * 10)
        iterator = iter(make_steps(clients, PLAIN, sequence_length=3))
        assert observations(islice(iterator, 3)) == [0] * 6 + [1] * 3
        del iterator
        assert drain(store) == list(range(2, 10))


@pytest.mark.frameworks
def test_an_iteration_may_end_while_a_function_is_traced(tf):
    """Garbage collection can happen anywhere."""
    with serving(reverb.Table.queue("t", 100)) as (_, client):
        put_items(client, "t", lengths=[1] * 9)
        held = [iter(items(tf, client, max_in_flight_samples_per_worker=8))]
        next(held[0])

        @tf.function
        def traced(x):
            held.clear()
            return x + 1

        assert int(traced(tf.constant(1))) == 2
        wait_until(lambda: client.server_info()["t"].current_size == 8)
