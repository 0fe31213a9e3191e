"""Which items a `tf.data.Dataset` of a table consumes, and which it returns; waits, errors and exits."""

import gc
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.data_tables import fill, queue
from helpers.support import BackgroundCall, skip_if_python_runs_in_other_threads, slow_except, wait_until

from engram import Server, Store, Table, rate_limiters, selectors

pytestmark = pytest.mark.frameworks


@pytest.fixture
def dataset():
    from engram.data import tensorflow  # noqa: PLC0415, the extra

    return tensorflow.dataset


@pytest.mark.parametrize("options", [{}, {"batch_size": 1, "pad": True}, {"steps": True}])
def test_items_that_were_not_yielded_are_returned(open_store, dataset, options):
    store = open_store(queue())
    fill(store, [2] * 6)
    for element in dataset(store, "t", prefetch=4, **options):
        assert element.data["x"].numpy().ravel()[0] == 0
        wait_until(lambda: store.info()["t"].samples >= 5)
        break
    gc.collect()
    wait_until(lambda: store.info()["t"].samples == 1)
    assert store.sample("t", 5).data["x"].tolist() == [[n, n + 1] for n in range(2, 12, 2)]


@pytest.mark.parametrize("max_batches", slow_except(5, of=[1, 4, 5, 11]))
def test_batches_passed_on_together_keep_info_and_data_together(open_store, dataset, max_batches):
    """From a table without `max_times_sampled`, TensorFlow gets several batches in one call."""
    store = open_store(Table("t"))
    fill(store, [2] * 6)
    sampled = list(dataset(store, "t", batch_size=3, prefetch=4, max_batches=max_batches))
    assert [element.data["x"].shape for element in sampled] == [(3, 2)] * max_batches
    assert store.info()["t"].samples == 3 * max_batches
    x, keys = (
        np.concatenate([getattr(element, name)[which].numpy() for element in sampled])
        for name, which in (("data", "x"), ("info", 0))
    )
    assert (x[:, 1] == x[:, 0] + 1).all()
    assert len({*zip(keys.tolist(), x[:, 0].tolist(), strict=True)}) == len(set(keys.tolist())), (
        "info and data belong to the same items"
    )


@pytest.mark.parametrize("number", slow_except(3, of=[1, 3, 4, 5]))
def test_batches_that_tensorflow_did_not_take_do_not_count_as_sampled(open_store, dataset, number):
    store = open_store(Table("t"))
    fill(store, [2] * 6)
    iterator = iter(dataset(store, "t", batch_size=3, prefetch=4))
    other = iter(dataset(store, "t", batch_size=3, prefetch=4))
    for _ in range(number):
        next(iterator)
    next(other)
    del iterator, other
    gc.collect()
    wait_until(lambda: store.info()["t"].samples == 3 * number + 3)


@pytest.mark.parametrize("lengths", slow_except([2, 4, 3, 4, 4, 1], of=[[4] * 6, [2, 4, 3, 4, 4, 1]]))
@pytest.mark.parametrize(
    "options",
    slow_except({}, {"steps": True, "batch_size": 3}, of=[{}, {"steps": True}, {"steps": True, "batch_size": 3}]),
)
def test_elements_of_a_block_keep_info_and_data_together(open_store, dataset, options, lengths):
    """From a table without `max_times_sampled`, TensorFlow gets the elements of a block in one call."""
    store = open_store(Table("t"))
    fill(store, lengths)
    by_key = {}
    for _ in range(200):
        batch = store.sample("t", 1)
        by_key[int(batch.info.key[0])] = batch.data["x"][0].tolist()
    iterator = iter(dataset(store, "t", **options))
    for _ in range(100):
        info, data, _ = next(iterator)
        keys, x = info.key.numpy(), data["x"].numpy()
        if options:
            for key, step in zip(keys.ravel().tolist(), x.ravel().tolist(), strict=True):
                assert step in by_key[key]
        else:
            assert x.tolist() == by_key[int(keys)]
        assert np.shape(info.priority) == keys.shape
        priorities = [len(by_key[key]) for key in keys.ravel().tolist()]
        assert info.priority.numpy().ravel().tolist() == priorities


@pytest.mark.parametrize(("options", "samples"), [({}, 3), ({"steps": True}, 1), ({"steps": True, "batch_size": 2}, 2)])
def test_elements_of_a_block_that_tensorflow_did_not_take_do_not_count_as_sampled(
    open_store, dataset, options, samples
):
    store = open_store(Table("t"))
    fill(store, [4] * 5)
    iterator = iter(dataset(store, "t", prefetch=4, **options))
    for _ in range(3):
        next(iterator)
    del iterator
    gc.collect()
    assert store.info()["t"].samples == samples


def test_elements_that_tensorflow_prefetched_count_as_consumed(open_store, dataset):
    store = open_store(queue())
    fill(store, [2] * 20)
    iterator = iter(dataset(store, "t").batch(2).prefetch(2))
    assert next(iterator).data["x"].numpy()[:, 0].tolist() == [0, 2]
    wait_until(lambda: store.info()["t"].samples >= 6 + 2)
    time.sleep(0.1)
    del iterator
    gc.collect()
    wait_until(lambda: store.info()["t"].hidden_items == 0)
    taken = store.info()["t"].samples
    assert taken in {6, 8}, "one yielded, two prefetched, perhaps one in progress"
    assert store.sample("t", 1).data["x"].tolist() == [[2 * taken, 2 * taken + 1]]


def test_a_batch_is_not_delayed_until_prefetch_batches_are_ready(dataset):
    limiter = rate_limiters.SampleToInsertRatio(2, 1, 3)
    with Store([Table("t", rate_limiter=limiter, sampler=selectors.Fifo())]) as store:
        fill(store, [2])
        iterator = iter(dataset(store, "t", batch_size=3, prefetch=8, timeout=5))
        assert next(iterator).data["x"].shape == (3, 2)
        fill(store, [2, 2])
        assert next(iterator).data["x"].shape == (3, 2)


def test_items_that_fill_no_batch_are_part_of_the_next(dataset):
    limiter = rate_limiters.SampleToInsertRatio(2, 1, 3)
    with Store([Table("t", rate_limiter=limiter)]) as store:
        fill(store, [2])
        elements = dataset(store, "t", batch_size=3, prefetch=8, timeout=5, max_batches=4)
        call = BackgroundCall(lambda: fill(store, [2] * 6))
        assert [element.data["x"].shape for element in elements] == [(3, 2)] * 4
        call.result()
        assert store.info()["t"].samples == 12


def test_batches_passed_on_together_must_match_the_element_spec(dataset, tf):
    with Store([Table("t")]) as store:
        fill(store, [2, 2])
        iterator = iter(dataset(store, "t", batch_size=8, prefetch=4))
        next(iterator)
        fill(store, [3, 4])
        with pytest.raises(tf.errors.InvalidArgumentError, match="items of a batch differ in length"):
            for _ in range(1_000):
                next(iterator)


def test_a_waiting_iterator_can_be_dropped(dataset):
    with Server([queue()]) as server:
        store = server.store
        fill(store, [2])
        iterator = iter(dataset(store, "t").prefetch(3))
        next(iterator)
        wait_until(lambda: store.info()["t"].waiting_samples > 0)
        time.sleep(0.3)  # by now TensorFlow waits for an element, too
        del iterator
        wait_until(lambda: store.info()["t"].waiting_samples == 0)


def test_an_element_that_arrives_after_the_poll_interval_is_yielded(dataset):
    with Store([queue()]) as store:
        fill(store, [2])
        iterator = iter(dataset(store, "t", timeout=10))
        next(iterator)
        threading.Timer(0.3, lambda: fill(store, [1], first=7)).start()
        assert next(iterator).data["x"].numpy().tolist() == [7]


def test_closing_the_store_fails_an_iterator(dataset, tf):
    with Store([queue()]) as store:
        fill(store, [2])
        iterator = iter(dataset(store, "t"))
        next(iterator)
        store.close()
        with pytest.raises(tf.errors.UnknownError, match="ClosedError: the store is closed"):
            next(iterator)


def test_ctrl_c_ends_a_wait(dataset, tf):
    skip_if_python_runs_in_other_threads(tf)
    with Store([queue()]) as store:
        fill(store, [2])
        iterator = iter(dataset(store, "t"))
        next(iterator)
        main = threading.main_thread().ident
        threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(tf.errors.UnknownError, match="KeyboardInterrupt"):
            next(iterator)
        del iterator
        assert store.info()["t"].samples == 1


READS_AT_EXIT = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import time
from helpers.data_tables import fill, queue
from engram import Store
from engram.data.tensorflow import dataset
store = Store([queue()])
fill(store, [1, 1, 1])
iterator = iter(dataset(store, "t", batch_size=1).prefetch(8))
print(next(iterator).data["x"].numpy(), flush=True)
time.sleep(0.5)  # by now TensorFlow waits for a fourth item
"""


def test_a_process_exits_while_tensorflow_waits():
    command = [sys.executable, "-c", READS_AT_EXIT]
    tests = Path(__file__).parent.parent
    # On a busy machine, the import of TensorFlow alone takes half a minute.
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=tests)
    assert (done.returncode, done.stdout) == (0, "[[0]]\n"), done


STOPS_AND_EXITS = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from engram import Client
from engram.data.tensorflow import dataset
iterator = iter(dataset(Client(sys.argv[1]), "t", batch_size=1, prefetch=8))
for _ in range(3):
    next(iterator)
"""


def test_untaken_batches_are_returned_when_a_process_exits():
    with Store([Table("t")]) as store, Server(store, port=0) as server:
        fill(store, [1] * 3)
        command = [sys.executable, "-c", STOPS_AND_EXITS, server.address]
        subprocess.run(command, timeout=110, check=True)
        wait_until(lambda: store.info()["t"].samples == 3)


def test_steps_are_not_fetched_much_further_ahead_than_prefetch(open_store, dataset):
    store = open_store(Table("t"))
    fill(store, [1] * 100)
    iterator = iter(dataset(store, "t", steps=True, batch_size=4, prefetch=8))
    for _ in range(24):
        next(iterator)
    time.sleep(0.2)
    assert store.info()["t"].samples <= 24 * 4 + 3 * 8 * 4, "a block in TensorFlow, one fetched, one on its way"


def test_elements_before_an_error_in_a_block_count_as_sampled(open_store, dataset, tf):
    store = open_store(Table("t"))
    fill(store, [3] * 60 + [4])
    spec = {"x": tf.TensorSpec([3], tf.int64), "y": [tf.TensorSpec([3, 1], tf.float32)]}
    iterator = iter(dataset(store, "t", element_spec=spec))
    yielded = 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not match"):
        while True:
            next(iterator)
            yielded += 1
    del iterator
    gc.collect()
    wait_until(lambda: store.info()["t"].samples == yielded)


@pytest.mark.parametrize("options", slow_except({"batch_size": 2}, of=[{"batch_size": 2}, {}, {"steps": True}]))
def test_elements_of_a_table_that_became_a_queue_are_consumed_at_once(open_store, dataset, options):
    store = open_store(Table("t", max_size=4))
    fill(store, [1] * 4)
    elements = dataset(store, "t", **options)
    store.drop_table("t")
    store.create_table(Table.queue("t", max_size=4))
    fill(store, [1] * 4)
    iterator = iter(elements)
    next(iterator)
    fill(store, [1], timeout=10)


def test_the_column_that_differs_in_length_is_named(dataset, tf):
    limiter = rate_limiters.SampleToInsertRatio(5, 1, 5)
    with Store([Table("t", rate_limiter=limiter)]) as store:
        with store.writer(history=4) as writer:
            for length in (2, 3):
                for step in range(length):
                    writer.append({"a": np.int64(step), "x": np.int64(step)})
                history = writer.history
                writer.create_item("t", 1.0, {"a": history["a"][-1], "x": history["x"][-length:]})
        spec = {"a": tf.TensorSpec([8], tf.int64), "x": tf.TensorSpec([8, None], tf.int64)}
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"column `x`.*differ in length"):
            next(iter(dataset(store, "t", batch_size=8, prefetch=4, element_spec=spec)))
