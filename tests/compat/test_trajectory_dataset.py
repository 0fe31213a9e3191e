"""`TrajectoryDataset`: its elements, how many items are in flight, waiting, and rejected items and arguments."""

import gc
import inspect
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.reverb_items import put_items, specs
from helpers.support import BackgroundCall, raises, skip_if_python_runs_in_other_threads, slow_except, wait_until

import engram
from engram.compat import reverb

pytestmark = pytest.mark.frameworks

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6]


def queue(size=100):
    return reverb.Table.queue("t", size)


def make_dataset(tf, client, length=None, **options):
    dtypes, shapes = specs(tf, length)
    options = {"max_in_flight_samples_per_worker": 10, **options}
    return reverb.TrajectoryDataset(client.server_address, "t", dtypes, shapes, **options)


def without_prefetching(tf, dataset):
    """The dataset without the prefetching that TensorFlow adds by default."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def error_text(error):
    """The text of an error without what TensorFlow adds to every text."""
    return re.search(r"Error: (.*?)\nTraceback ", str(error.value), re.DOTALL)[1]


def item_numbers(elements):
    """The number of each item, see `put_items`."""
    return [int(each.data["item_step"][0]) for each in elements]


def table_size(client):
    return client.server_info()["t"].current_size


def test_it_is_a_dataset_of_tensorflow(tf):
    with serving(table()) as (_, client):
        dataset = make_dataset(tf, client, 3)
    assert isinstance(dataset, tf.data.Dataset)
    assert isinstance(dataset, reverb.TrajectoryDataset)
    assert not isinstance(dataset, reverb.TimestepDataset)
    assert not isinstance(dataset.batch(2), reverb.TrajectoryDataset)
    assert issubclass(type(dataset), reverb.TrajectoryDataset)
    assert repr(dataset).startswith(
        "<TrajectoryDataset element_spec=ReplaySample(info=SampleInfo(key=TensorSpec(shape=()"
    )
    assert dataset.element_spec.data == {
        "cell": tf.TensorSpec([3, 2], tf.uint8),
        "item_step": tf.TensorSpec([3], tf.float32),
    }
    assert [spec.dtype for spec in dataset.element_spec.info] == [tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32]


def test_a_subclass_can_be_created_and_iterated(tf):
    class Mine(reverb.TrajectoryDataset):
        def __init__(self, address):
            super().__init__(address, "t", *specs(tf, None), 1)

        def first(self):
            return next(iter(self))

    with serving(table()) as (_, client):
        put_items(client, "t", lengths=[3])
        mine = Mine(client.server_address)
        assert isinstance(mine, reverb.TrajectoryDataset)
        assert isinstance(mine, tf.data.Dataset)
        assert mine.first().data["item_step"].shape == 3


@pytest.mark.parametrize("max_in_flight", slow_except(1, 7, of=[1, 2, 7, 100]))
def test_items_of_a_queue_are_in_order_and_have_their_info(tf, max_in_flight):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 20)
        elements = list(make_dataset(tf, client, 3, max_in_flight_samples_per_worker=max_in_flight).take(20))
        assert item_numbers(elements) == list(range(20))
        for i, each in enumerate(elements):
            np.testing.assert_array_equal(each.data["cell"], np.full((3, 2), i))
            np.testing.assert_array_equal(each.data["item_step"], np.float32([i, i + 0.01, i + 0.02]))
            assert each.info.priority == 1.0 + i
            assert each.info.probability == 1.0
            assert each.info.times_sampled == 1
        sizes = [int(each.info.table_size) for each in elements]
        assert sizes[0] == 20
        assert len({int(each.info.key) for each in elements}) == 20


@pytest.mark.parametrize("rank_is_known", [True, False])
def test_items_may_have_any_lengths(tf, rank_is_known):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=LENGTHS)
        dtypes, shapes = specs(tf, None)
        if not rank_is_known:
            shapes = {name: tf.TensorShape(None) for name in shapes}
        dataset = reverb.TrajectoryDataset(client.server_address, "t", dtypes, shapes, 10)
        elements = list(dataset.take(len(LENGTHS)))
        assert item_numbers(elements) == list(range(len(LENGTHS)))
        assert [each.data["item_step"].shape[0] for each in elements] == LENGTHS
        for i, each in enumerate(elements):
            np.testing.assert_array_equal(each.data["cell"], np.full((LENGTHS[i], 2), i))


def test_cells_may_have_any_shape(tf):
    with serving(queue()) as (_, client):
        for i, size in enumerate([2, 2, 5, 1]):
            client.insert([np.full((size, 3), i)], {"t": 1.0})
        shapes = [tf.TensorShape([1, None, 3])]
        elements = list(reverb.TrajectoryDataset(client.server_address, "t", [tf.int64], shapes, 10).take(4))
        assert [each.data[0].shape for each in elements] == [(1, 2, 3), (1, 2, 3), (1, 5, 3), (1, 1, 3)]
        assert [int(each.data[0][0, 0, 0]) for each in elements] == [0, 1, 2, 3]


@pytest.mark.parametrize("lengths", [[2, 2, 2], [2, 3, 1]])
def test_cells_may_be_empty(tf, lengths):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=lengths, shape=(0,))
        dtypes, shapes = specs(tf, None, shape=(0,))
        dataset = reverb.TrajectoryDataset(client.server_address, "t", dtypes, shapes, 10)
        elements = list(dataset.take(3))
        assert [element.data["cell"].shape for element in elements] == [(length, 0) for length in lengths]


def test_text_scalars_and_lists_are_supported(tf):
    with serving(queue()) as (_, client):
        with client.trajectory_writer(1) as writer:
            writer.append(["héllo", [np.float16(2.5)], np.complex64(1j)])
            history = writer.history
            writer.create_item("t", 1.0, [history[0][-1:], [history[1][0][-1]], history[2][-1]])
        dataset = reverb.TrajectoryDataset(
            client.server_address,
            "t",
            [tf.string, [tf.float16], np.complex64],
            [tf.TensorShape([1]), [tf.TensorShape([])], tf.TensorShape([])],
            4,
        )
        assert type(dataset.element_spec.data) is tuple
        (text, (half,), number) = next(iter(dataset)).data
        assert text.numpy().tolist() == ["héllo".encode()]
        assert half == 2.5
        assert number == 1j


@pytest.mark.parametrize("in_flight", [1, 10])
def test_small_and_large_columns_of_any_dtype_keep_their_values(tf, in_flight):
    names = ("bool", "uint8", "int16", "uint64", "float64", "complex128", "bfloat16")
    keys = {f"{name}_{size}": (tf.as_dtype(name), size) for name in names for size in (2, 300)}
    dtypes = {key: dtype for key, (dtype, _) in keys.items()}
    shapes = {key: tf.TensorShape([size]) for key, (_, size) in keys.items()}
    steps = [
        {key: (np.arange(size) % 7 + i).astype(dtype.as_numpy_dtype) for key, (dtype, size) in keys.items()}
        for i in range(12)
    ]
    with serving(queue()) as (_, client):
        with client.trajectory_writer(1) as writer:
            for step in steps:
                writer.append(step)
                writer.create_item("t", 1.0, {key: column[-1] for key, column in writer.history.items()})
        dataset = reverb.TrajectoryDataset(client.server_address, "t", dtypes, shapes, in_flight)
        for step, element in zip(steps, dataset.take(12), strict=True):
            for key, values in step.items():
                assert element.data[key].dtype == dtypes[key]
                np.testing.assert_array_equal(element.data[key].numpy(), values)


def test_elements_have_the_requested_nest(tf):
    import collections  # noqa: PLC0415, here only

    pair = collections.namedtuple("pair", "b a")  # noqa: PYI024, as users do
    with serving(queue()) as (_, client):
        client.insert({"x": 1, "y": 2}, {"t": 1.0})
        dataset = reverb.TrajectoryDataset(
            client.server_address, "t", pair(tf.int64, tf.int64), pair(tf.TensorShape([1]), tf.TensorShape([1])), 4
        )
        assert next(iter(dataset)).data == pair(1, 2)


def test_transformations_of_tensorflow_apply(tf):
    with serving(table(sampler=reverb.selectors.Uniform())) as (_, client):
        put_items(client, "t", lengths=[3] * 5)
        dataset = make_dataset(tf, client, 3)
        batch = next(iter(dataset.batch(4).prefetch(2)))
        assert batch.data["cell"].shape == (4, 3, 2)
        assert batch.info.key.shape == 4
        assert next(iter(dataset.map(lambda sample: sample.data["item_step"] * 2).shuffle(8).batch(2))).shape == (2, 3)
        both = tf.data.Dataset.zip((dataset, dataset)).take(2)
        assert len(list(both)) == 2
        choices = tf.data.Dataset.sample_from_datasets([dataset, dataset]).take(5)
        assert len(list(choices)) == 5


def test_a_dataset_can_be_created_in_a_graph(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 6)

        @tf.function
        def total():
            dataset = make_dataset(tf, client, 3)
            count = tf.constant(0.0)
            for sample in dataset.take(6):
                count += sample.data["item_step"][0]
            return count

        assert total() == 15


def test_address_and_table_may_be_tensors(tf):
    with serving(queue()) as (_, client), serving(queue()) as (_, other):
        put_items(client, "t", lengths=[3])
        put_items(other, "t", lengths=[3])
        addresses = tf.constant([client.server_address, other.server_address])
        names = tf.constant(["t", "t"])

        def make(address, name):
            return reverb.TrajectoryDataset(address, name, *specs(tf, 3), 1)

        dataset = tf.data.Dataset.from_tensor_slices((addresses, names)).interleave(make, cycle_length=2)
        assert item_numbers(dataset.take(2)) == [0, 0]
        assert table_size(client) == table_size(other) == 0


def test_the_iterator_keeps_the_dataset_alive(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 6)
        iterator = iter(make_dataset(tf, client, 3).map(lambda sample: sample.data["item_step"][0]).batch(2))
        gc.collect()
        assert [next(iterator).numpy().tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_max_samples_limits_the_items(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 20)
        assert item_numbers(make_dataset(tf, client, 3, max_samples=7)) == list(range(7))
        assert table_size(client) == 13
        info = client.server_info()["t"].rate_limiter_info
        assert info.sample_stats.completed == 7


def test_a_dataset_ends_after_the_rate_limiter_timeout(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 3)
        assert item_numbers(make_dataset(tf, client, 3, rate_limiter_timeout_ms=250)) == [0, 1, 2]
        assert item_numbers(make_dataset(tf, client, 3, rate_limiter_timeout_ms=0)) == []
        put_items(client, "t", lengths=[3])
        assert item_numbers(make_dataset(tf, client, 3, rate_limiter_timeout_ms=0)) == [0]


def test_items_that_do_not_fit_stay_in_the_table_if_the_timeout_is_zero(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[2, 3])
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Received incompatible tensor"):
                list(make_dataset(tf, client, 3, rate_limiter_timeout_ms=0))
        assert table_size(client) == 2


def test_items_are_yielded_although_more_may_be_in_flight(tf):
    with serving(queue()) as (_, client):
        iterator = iter(make_dataset(tf, client, 3, max_in_flight_samples_per_worker=1_000, num_workers_per_iterator=4))
        for i in range(3):
            put_items(client, "t", lengths=[3] * (i + 1))
            assert [int(next(iterator).data["item_step"][0]) for _ in range(i + 1)] == list(range(i + 1))


def test_items_are_in_order_over_several_streams(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 10)
        assert item_numbers(make_dataset(tf, client, 3, max_samples_per_stream=3, max_samples=10)) == list(range(10))


def test_order_is_kept_with_several_workers(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 40)
        assert item_numbers(make_dataset(tf, client, 3, num_workers_per_iterator=4).take(40)) == list(range(40))


@pytest.mark.parametrize(
    ("per_worker", "workers", "in_flight"),
    [
        (1, -1, 1),
        (7, -1, 7),
        (4, 3, 12),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((2, -1, 2), (3, -1, 3), (4, -1, 4), (9, -1, 9), (5, 3, 15))
        ),
    ],
)
def test_items_in_flight_are_limited(tf, per_worker, workers, in_flight):
    def sampled():
        return client.server_info()["t"].rate_limiter_info.sample_stats.completed

    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 40)
        dataset = make_dataset(
            tf, client, 3, max_in_flight_samples_per_worker=per_worker, num_workers_per_iterator=workers
        )
        iterator = iter(without_prefetching(tf, dataset))
        next(iterator)
        wait_until(lambda: sampled() >= in_flight)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert sampled() == in_flight
            time.sleep(0.01)
        del iterator
        wait_until(lambda: table_size(client) == 39)
        assert sampled() == 1


def test_undelivered_items_are_returned(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 30)
        iterator = iter(without_prefetching(tf, make_dataset(tf, client, 3, max_in_flight_samples_per_worker=20)))
        assert int(next(iterator).data["item_step"][0]) == 0
        del iterator
        # TensorFlow had a block of ten and yielded one element; the others are returned to the front of the queue.
        wait_until(lambda: table_size(client) == 29)
        assert item_numbers(make_dataset(tf, client, 3, max_in_flight_samples_per_worker=1).take(29)) == list(
            range(1, 30)
        )


def test_no_item_is_lost_between_two_iterations(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 10)
        dataset = make_dataset(tf, client, 3, max_in_flight_samples_per_worker=1)
        assert item_numbers(dataset.take(4)) == [0, 1, 2, 3]
        wait_until(lambda: table_size(client) == 6)
        assert item_numbers(dataset.take(6)) == [4, 5, 6, 7, 8, 9]


def test_an_iterator_that_waits_can_be_closed(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3])
        before = threading.active_count()
        iterator = iter(make_dataset(tf, client, 3).prefetch(4))
        assert int(next(iterator).data["item_step"][0]) == 0
        del iterator  # the thread that prefetches waits for items, and must end
        put_items(client, "t", lengths=[3] * 2)
        assert item_numbers(make_dataset(tf, client, 3).take(2)) == [0, 1]
        wait_until(lambda: threading.active_count() <= before + 2)


# At its end, the iterator still waits for items.
WAITING_AT_THE_END = """
import sys
from engram.compat import reverb
spec = reverb.tensor_spec.TensorSpec((1,), "float64")
server = reverb.Server([reverb.Table.queue("t", 9, signature=[spec])])
client = reverb.Client(f"localhost:{server.port}")
client.insert([1.0], {"t": 1.0})
assert "tensorflow" not in sys.modules
made = reverb.TrajectoryDataset.from_table_signature(client.server_address, "t", 10)
iterator = iter(made.prefetch(5))
print(next(iterator).data[0].numpy().tolist())
"""


def test_a_program_can_end_while_an_iterator_waits(tf):  # noqa: ARG001, TensorFlow must be installed
    done = subprocess.run([sys.executable, "-c", WAITING_AT_THE_END], capture_output=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, b"[1.0]\n")


def test_ctrl_c_ends_a_wait_of_tensorflow(tf):
    skip_if_python_runs_in_other_threads(tf)
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=LENGTHS[:1])
        iterator = iter(make_dataset(tf, client))
        next(iterator)
        main = threading.main_thread().ident
        threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(tf.errors.UnknownError, match="KeyboardInterrupt"):
            next(iterator)


def test_two_iterators_receive_different_items(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 8)
        dataset = make_dataset(tf, client, 3, max_in_flight_samples_per_worker=1)
        one, two = iter(dataset), iter(dataset)
        both = [int(next(each).data["item_step"][0]) for _ in range(3) for each in (one, two)]
        assert len(set(both)) == 6


def test_an_item_that_does_not_fit_is_an_error_and_stays_in_the_table(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3, 3, 2, 3])
        elements = []
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            elements.extend(int(each.data["item_step"][0]) for each in make_dataset(tf, client, 3))
        assert error_text(error) == (
            "Received incompatible tensor at flattened index 0 from table 't'.  Specification has (dtype, shape): "
            "(uint8, [3,2]).  Tensor has (dtype, shape): (uint8, [2,2])."
        )
        wait_until(lambda: table_size(client) == 2)  # the item that does not fit is still in the table
        assert [each.data["item_step"].shape[0] for each in make_dataset(tf, client).take(2)] == [2, 3]


@pytest.mark.parametrize(
    ("dtypes", "shapes", "text"),
    [
        (
            ["uint8"],
            [[3, 2]],
            (
                "Inconsistent number of tensors received from table 't'.  Specification has 1 tensors, but data coming "
                "from the table shows 2 tensors.  Received: 0: (uint8, [3,2]), 1: (float, [3])."
            ),
        ),
        (
            ["uint8", "float64"],
            [[3, 2], [3]],
            (
                "Received incompatible tensor at flattened index 1 from table 't'.  Specification has (dtype, shape): "
                "(double, [3]).  Tensor has (dtype, shape): (float, [3])."
            ),
        ),
        (
            ["uint8", "float32"],
            [[3, None, 1], None],
            (
                "Received incompatible tensor at flattened index 0 from table 't'.  Specification has (dtype, shape): "
                "(uint8, [3,?,1]).  Tensor has (dtype, shape): (uint8, [3,2])."
            ),
        ),
    ],
)
def test_specs_that_differ_from_the_data_are_rejected(tf, dtypes, shapes, text):
    with serving(table()) as (_, client):
        put_items(client, "t", lengths=[3])
        shapes = [tf.TensorShape(shape) for shape in shapes]
        dataset = reverb.TrajectoryDataset(
            client.server_address, "t", [tf.as_dtype(dtype) for dtype in dtypes], shapes, 1
        )
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            next(iter(dataset))
        assert error_text(error) == text


SIGNED = "Table signature: 0: (uint8, [?,2]), 1: (float, [?])."


@pytest.mark.parametrize(
    ("dtypes", "shapes", "text"),
    [
        (
            ["uint8"],
            [[3, 2]],
            (
                "Inconsistent number of tensors requested from table 't'.  Requested 1 tensors, but table signature "
                f"shows 2 tensors.  {SIGNED}"
            ),
        ),
        (
            ["uint8", "float32"],
            [[3, 5], [3]],
            (
                "Requested incompatible tensor at flattened index 0 from table 't'.  Requested (dtype, shape): "
                f"(uint8, [3,5]).  Signature (dtype, shape): (uint8, [?,2]).  {SIGNED}"
            ),
        ),
        (
            ["uint8", "int32"],
            [[3, 2], [3]],
            (
                "Requested incompatible tensor at flattened index 1 from table 't'.  Requested (dtype, shape): "
                f"(int32, [3]).  Signature (dtype, shape): (float, [?]).  {SIGNED}"
            ),
        ),
    ],
)
def test_specs_that_differ_from_the_signature_are_rejected(tf, dtypes, shapes, text):
    signature = {"cell": tf.TensorSpec([None, 2], tf.uint8), "time": tf.TensorSpec([None], tf.float32)}
    with serving(table(signature=signature)) as (_, client):  # no item: the check must not wait for one
        shapes = [tf.TensorShape(shape) for shape in shapes]
        dataset = reverb.TrajectoryDataset(
            client.server_address, "t", [tf.as_dtype(dtype) for dtype in dtypes], shapes, 1
        )
        iterator = iter(dataset)  # no error yet
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            next(iterator)
        assert error_text(error) == text


def test_a_dataset_may_be_created_before_its_server(tf):
    with serving(queue()) as (server, _):
        port = server.port
    iterator = iter(reverb.TrajectoryDataset(f"localhost:{port}", "t", *specs(tf, 3), 1))
    with serving(queue(), port=port) as (_, client):
        put_items(client, "t", lengths=[3])
        assert int(next(iterator).data["item_step"][0]) == 0


@pytest.mark.parametrize("tables", [1, 40])
def test_an_unknown_table_is_an_error_that_names_the_known_ones(tf, tables):
    with serving(*(table(f"t{number:02}") for number in range(tables))) as (_, client):
        dataset = reverb.TrajectoryDataset(client.server_address, "nix", *specs(tf, 3), 1)
        with pytest.raises(tf.errors.UnknownError) as error:
            next(iter(dataset))
        known = ", ".join(f"`t{number:02}`" for number in range(tables))
        assert error_text(error) == f"Priority table nix was not found; known tables: {known}"


def test_iteration_continues_after_a_restart_of_the_server(tf):
    with serving(queue()) as (server, client):
        put_items(client, "t", lengths=[3])
        port = server.port
        iterator = iter(make_dataset(tf, client, 3))
        assert int(next(iterator).data["item_step"][0]) == 0
        waiting = BackgroundCall(lambda: next(iterator))
    with serving(queue(), port=port) as (_, client):
        put_items(client, "t", lengths=[3])
        assert int(waiting.result(30).data["item_step"][0]) == 0


def test_an_iterator_without_a_server_can_be_closed(tf):
    dtypes, shapes = specs(tf, 3)
    dataset = reverb.TrajectoryDataset("localhost:1", "t", dtypes, shapes, 1)
    iterator = iter(dataset.prefetch(1))
    del iterator  # must not block


def test_a_table_created_by_the_engine_can_be_read(tf):
    with engram.Server([engram.Table.queue("t", max_size=9)]) as server:
        server.store.insert({"a": {"b": np.ones((3, 2))}, "c": (np.zeros(3),)}, {"t": 1.0}, time_axis=True)
        dtypes = {"a": {"b": tf.float64}, "c": [tf.float64]}
        shapes = {"a": {"b": tf.TensorShape([3, 2])}, "c": [tf.TensorShape([3])]}
        elements = next(iter(reverb.TrajectoryDataset(server.address, "t", dtypes, shapes, 1)))
        assert elements.data["a"]["b"].shape == (3, 2)
        assert elements.data["c"][0].shape == 3


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("max_in_flight_samples_per_worker", 0, "max_in_flight_samples_per_worker (0) must be a positive integer"),
        ("num_workers_per_iterator", 0, "num_workers_per_iterator (0) must be a positive integer or -1"),
        ("max_samples_per_stream", -2, "max_samples_per_stream (-2) must be a positive integer or -1"),
        ("max_samples", 0, "max_samples (0) must be a positive integer or -1"),
        ("rate_limiter_timeout_ms", -2, "rate_limiter_timeout_ms (-2) must be an integer >= -1"),
    ],
)
def test_invalid_arguments_are_rejected(tf, option, value, text):
    with serving(table()) as (_, client), raises(ValueError, text):
        make_dataset(tf, client, **{option: value})


@pytest.mark.parametrize("option", ["max_in_flight_samples_per_worker", "max_samples", "rate_limiter_timeout_ms"])
def test_arguments_must_be_integers(tf, option):
    with serving(table()) as (_, client), raises(TypeError, f"`{option}` must be an integer; got 1.5 (float)"):
        make_dataset(tf, client, **{option: 1.5})


def test_dtypes_and_shapes_must_have_the_same_nest(tf):
    with pytest.raises(ValueError, match="don't have the same nested structure"):
        reverb.TrajectoryDataset("localhost:1", "t", {"a": tf.int8}, {"b": tf.TensorShape([])}, 1)


def test_arguments_are_those_of_reverb(tf):
    limits = ["max_in_flight_samples_per_worker", "num_workers_per_iterator", "max_samples_per_stream"]
    names = list(inspect.signature(reverb.TrajectoryDataset).parameters)
    assert names == [
        *("server_address", "table", "dtypes", "shapes", *limits),
        *("rate_limiter_timeout_ms", "max_samples"),
    ]
    names = list(inspect.signature(reverb.TrajectoryDataset.from_table_signature).parameters)
    assert names == [
        *("server_address", "table", *limits),
        *("rate_limiter_timeout_ms", "get_signature_timeout_secs", "max_samples"),
    ]
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3])
        dataset = reverb.TrajectoryDataset(client.server_address, "t", *specs(tf, 3), 10, -1, -1, 0, -1)
        assert item_numbers(dataset) == [0]
