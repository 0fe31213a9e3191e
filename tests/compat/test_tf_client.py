"""`TFClient`, eagerly and in graphs."""

import contextlib

import numpy as np
import pytest
from helpers.compat_tables import serving, steps, table
from helpers.reverb_items import put_items
from helpers.support import raises, wait_until

import engram
from engram.compat import reverb
from engram.compat.reverb._errors import translated
from engram.compat.reverb._tf_errors import call_from_tensorflow

pytestmark = pytest.mark.frameworks


@pytest.fixture(params=["eager", "graph"])
def run(request, tf):
    """Returns a function that makes a call, eagerly or in a `tf.function`."""

    def run_it(call):
        return call() if request.param == "eager" else tf.function(call)()

    return run_it


def tf_client_of(client):
    return reverb.TFClient(client.server_address)


def test_sample_is_the_first_step(tf, run):
    with serving(table()) as (_, client):
        put_items(client, "t", lengths=[3, 3])
        sample = run(lambda: tf_client_of(client).sample("t", {"item_step": tf.float32, "cell": tf.uint8}))
        assert isinstance(sample, reverb.ReplaySample)
        assert sample.data["item_step"] == 0.0
        np.testing.assert_array_equal(sample.data["cell"], [0, 0])
        assert sample.info.key.dtype == tf.uint64
        assert sample.info.key.shape == ()
        assert (sample.info.probability, sample.info.table_size, sample.info.priority) == (1.0, 2, 1.0)
        assert sample.info.times_sampled == 1


def test_sample_takes_one_item(tf, run):
    with serving(reverb.Table.queue("t", 9)) as (_, client):
        put_items(client, "t", lengths=[1, 1, 1])
        for i in range(3):
            assert run(lambda: tf_client_of(client).sample("t", [tf.uint8, tf.float32])).data[1] == i
        assert client.server_info()["t"].current_size == 0


@pytest.mark.parametrize(
    ("dtypes", "error", "text"),
    [
        (
            ["uint8"],
            "InvalidArgumentError",
            "Specification has 1 tensors, but data coming from the table shows 2 tensors",
        ),
        (["uint8", "int32"], "InternalError", "Received incompatible tensor at flattened index 1 from table"),
    ],
)
def test_sample_of_other_columns_consumes_no_item(tf, run, dtypes, error, text):
    with serving(reverb.Table.queue("t", 9)) as (_, client):
        put_items(client, "t", lengths=[1])
        with pytest.raises(getattr(tf.errors, error), match=text):
            run(lambda: tf_client_of(client).sample("t", [tf.as_dtype(each) for each in dtypes]))
        wait_until(lambda: client.server_info()["t"].current_size == 1)


def test_sample_of_an_item_that_cannot_be_split_into_steps_is_rejected(tf, run):
    with serving(table()) as (_, client):
        with client.trajectory_writer(3) as writer:
            for t in range(3):
                writer.append([t, t])
            writer.create_item("t", 1.0, [writer.history[0][-3:], writer.history[1][-1]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be decomposed into timesteps"):
            run(lambda: tf_client_of(client).sample("t", [tf.int64, tf.int64]))


def test_sample_from_a_table_with_a_signature_of_trajectories_is_rejected(tf, run):
    signature = [tf.TensorSpec([None], tf.int64)]
    with serving(table(signature=signature)) as (_, client):
        client.insert([7], {"t": 1.0})
        with pytest.raises(tf.errors.InvalidArgumentError, match="Requested incompatible tensor at flattened index 0"):
            run(lambda: tf_client_of(client).sample("t", [tf.int64]))


def test_insert_adds_an_item_to_each_table(tf, run):
    with serving(table(), table("u")) as (_, client):

        def insert():
            tensors = [tf.constant([1.0, 2.0]), tf.constant("text")]
            tf_client_of(client).insert(tensors, tf.constant(["t", "u"]), tf.constant([1.5, 2.5], tf.float64))

        run(insert)
        for name, priority in (("t", 1.5), ("u", 2.5)):
            (sample,) = next(client.sample(name))
            assert sample.data[0].tolist() == [1.0, 2.0]
            assert sample.data[1].item() == b"text"
            assert sample.info.priority == priority


def test_a_table_named_twice_receives_two_items(tf, run):
    with serving(table()) as (_, client):

        def insert():
            tf_client_of(client).insert([tf.constant(5)], tf.constant(["t", "t"]), tf.constant([1.0, 2.0], tf.float64))

        run(insert)
        assert client.server_info()["t"].current_size == 2


def test_insert_works_in_a_loop_of_a_graph(tf):
    with serving(table()) as (_, client):
        writer = tf_client_of(client)

        @tf.function
        def fill():
            for i in tf.range(5):
                writer.insert([i], tf.constant(["t"]), tf.constant([1.0], tf.float64))

        fill()
        assert [step[0].item() for step in steps(client, n=2)] == [0, 0]
        assert client.server_info()["t"].current_size == 5


@pytest.mark.parametrize(
    ("tables", "priorities", "text"),
    [
        (["t"], ("float32", [1.0]), "priorities must be a float64 tensor of rank 1; got float32 of shape (1,)"),
        ("t", ("float64", [1.0]), "tables must be a string tensor of rank 1; got string of shape ()"),
        ([1], ("float64", [1.0]), "tables must be a string tensor of rank 1; got int32 of shape (1,)"),
        (["t"], ("float64", 1.0), "priorities must be a float64 tensor of rank 1; got float64 of shape ()"),
        (["t"], ("float64", [1.0, 2.0]), "priorities and tables must have the same shape; got (2,) and (1,)"),
    ],
)
def test_invalid_inserts_of_a_tf_client_are_rejected(tf, tables, priorities, text):
    with serving(table()) as (_, client), raises(ValueError, text):
        dtype, values = priorities
        tf_client_of(client).insert([tf.constant(1)], tf.constant(tables), tf.constant(values, dtype))


@pytest.mark.parametrize(
    ("name", "priority", "columns", "text"),
    [
        ("nix", 1.0, 1, "Unable to find signatures for table 'nix'"),
        ("t", float("nan"), 1, "NaN"),
        ("t", 1.0, 0, "data must have at least one tensor"),
    ],
)
def test_rejected_inserts_are_invalid_argument_errors(tf, run, name, priority, columns, text):  # noqa: PLR0917
    with serving(table()) as (_, client):

        def insert():
            tensors = [tf.constant(1)] * columns
            tf_client_of(client).insert(tensors, tf.constant([name]), tf.constant([priority], tf.float64))

        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            run(insert)
        assert text.lower() in str(error.value).lower()
        assert client.server_info()["t"].current_size == 0


def test_update_priorities_ignores_unknown_keys(tf, run):
    with serving(table(sampler=reverb.selectors.MaxHeap())) as (_, client):
        put_items(client, "t", lengths=[1, 1, 1])
        (best,) = next(client.sample("t"))
        assert best.info.priority == 3.0

        def update():
            keys = tf.constant([best.info.key, 12345], tf.uint64)
            tf_client_of(client).update_priorities("t", keys, tf.constant([0.5, 9.0], tf.float64))

        run(update)
        (now,) = next(client.sample("t"))
        assert now.info.priority == 2.0


@pytest.mark.parametrize(
    ("keys", "priorities", "text"),
    [
        ([1], [1.0, 2.0], "Tensors `keys` and `priorities` do not match in shape ([1] vs. [2])"),
        (1, 1.0, "Tensors `keys` and `priorities` must be of rank 1."),
        ([1], [float("nan")], "NaN"),
    ],
)
def test_invalid_updates_are_rejected(tf, run, keys, priorities, text):
    with serving(table(sampler=reverb.selectors.Prioritized(1.0))) as (_, client):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            run(lambda: (tf_client_of(client).update_priorities("t", keys, priorities), None)[1])
        assert text in str(error.value)


def test_an_unknown_table_is_a_not_found_error(tf, run):
    with serving(table()) as (_, client):
        text = "Priority table nix was not found; known tables: `t`"
        with pytest.raises(tf.errors.NotFoundError, match=text):
            run(lambda: tf_client_of(client).sample("nix", [tf.int64, tf.string]))
        with pytest.raises(tf.errors.NotFoundError, match=text):
            run(lambda: (tf_client_of(client).update_priorities("nix", [1], [1.0]), None)[1])
        with pytest.raises(tf.errors.NotFoundError, match="Priority table xé"):
            run(lambda: tf_client_of(client).sample("x" + "é" * 400, [tf.int64]))


def test_keys_must_be_uint64(tf):
    with serving(table()) as (_, client), pytest.raises(ValueError, match="uint64"):
        tf_client_of(client).update_priorities("t", tf.constant([1], tf.int64), [1.0])


def test_server_address_and_repr_contain_the_address(tf):  # noqa: ARG001, TensorFlow must be installed
    with serving(table()) as (_, client):
        tf_client = reverb.TFClient(client.server_address, shared_name="one", name="two")
        assert tf_client.server_address == client.server_address
        assert repr(tf_client) == f"TFClient, server_address={client.server_address}"


TENSORFLOW_ERRORS = {
    "InvalidArgumentError": ["InvalidArgument", "Signature", "Priority", "Unsatisfiable", "ExpiredStep"],
    "NotFoundError": ["UnknownTable"],
    "DeadlineExceededError": ["DeadlineExceeded"],
    "UnavailableError": ["Unavailable", "Closed"],
    "UnauthenticatedError": ["Handshake"],
    "ResourceExhaustedError": ["OutOfMemory", "Backpressure"],
    "InternalError": ["Storage", "Forked", "Item", "Engram"],
}


@pytest.mark.parametrize("convert", [contextlib.nullcontext, translated])
def test_every_error_of_an_eager_call_is_one_of_tensorflow(tf, convert):
    kinds = []
    for name, engram_kinds in TENSORFLOW_ERRORS.items():
        for kind in engram_kinds:
            kinds.append(f"{kind}Error")

            def fail(kind=kind):
                with convert():
                    raise getattr(engram.errors, f"{kind}Error")("a text")

            with raises(getattr(tf.errors, name), "a text"):
                call_from_tensorflow(fail, [], [])
    assert sorted(kinds) == sorted(engram.errors.__all__)


def test_an_eager_call_does_not_advise_a_token(tf):
    with engram.Server([engram.Table("t")], token="t") as server:
        client = reverb.TFClient(server.address)
        with pytest.raises(tf.errors.UnauthenticatedError, match="Reverb's API has no token"):
            client.sample("t", [tf.int64])


def test_errors_of_other_code_in_an_eager_call_stay(tf):  # noqa: ARG001, TensorFlow must be installed
    def fail():
        raise ZeroDivisionError("a text")

    with raises(ZeroDivisionError, "a text"):
        call_from_tensorflow(fail, [], [])
