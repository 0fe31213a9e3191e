"""`Writer`: valid and invalid steps and items, use after an error, and when items are sent."""

import time
import warnings

import numpy as np
import pytest
from helpers.compat_tables import SIGNATURE, items, step, table, tables_sampled_once
from helpers.support import BackgroundCall, raises, wait_until

from engram.compat.reverb.tensor_spec import TensorSpec

TRAJECTORY = {"a": TensorSpec([3, 2], np.float32), "b": TensorSpec([None], np.int64)}


@pytest.fixture
def client():
    signed = [
        table(name, signature=signature, max_times_sampled=1)
        for name, signature in (("step", SIGNATURE), ("trajectory", TRAJECTORY))
    ]
    with tables_sampled_once(*signed) as client:
        yield client


@pytest.fixture
def writer(client):
    with client.writer(3) as writer:
        writer.append(step(0))
        writer.append(step(1))
        yield writer


def flush(writer):
    """Waits until all items are in their tables. The first call may only send the items of an incomplete chunk."""
    writer.flush()
    writer.flush()


def still_works(client, writer):
    """Checks that the rejected call added no step and no item, and that the writer still works."""
    writer.append(step(7))
    writer.create_item("t", 2, 1.0)
    flush(writer)
    assert items(client) == [[[[1.0, 1.0], [7.0, 7.0]], [1, 7]]]


def test_items_are_the_last_steps(client, writer):
    writer.create_item("t", 2, 1.5)
    writer.append(step(2))
    writer.create_item("t", 3, -2.0)
    writer.create_item("t", 1, float("inf"))
    writer.append(step(3))
    writer.create_item("t", 3, 1)
    flush(writer)
    assert [item[1] for item in items(client)] == [[0, 1], [0, 1, 2], [2], [1, 2, 3]]


def test_append_sequence_appends_each_row_as_a_step(client):
    with client.writer(4, chunk_length=2) as writer:
        writer.append_sequence({"x": np.array([1, 2, 3]), "y": np.array(["a", "b", "c"])})
        writer.append_sequence({"x": np.zeros(0, np.int64), "y": np.zeros(0, object)})
        writer.append({"x": 4, "y": "d"})
        writer.create_item("t", 4, 1.0)
    assert items(client) == [[[1, 2, 3, 4], [b"a", b"b", b"c", b"d"]]]


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (
            {"a": np.zeros(2, np.float32)},
            ValueError,
            "Number of tensors per timestep was inconsistent. Previously it was 2, but is now 1.",
        ),
        ({}, ValueError, "Number of tensors per timestep was inconsistent. Previously it was 2, but is now 0."),
        (
            {"a": np.zeros(2, np.float32), "b": 1.5},
            ValueError,
            "Tensor of wrong dtype provided for column 1. Got double but expected int64.",
        ),
        (
            {"a": np.zeros(2, np.float32), "b": None},
            TypeError,
            "cannot convert None to a tensor; a value must be an array, a number or text",
        ),
        (
            {"a": np.zeros(3), "b": 1},
            ValueError,
            "Tensor of wrong dtype provided for column 0. Got double but expected float.",
        ),
    ],
    ids=repr,
)
def test_invalid_steps_are_rejected(client, writer, data, error, text):
    with raises(error, text):
        writer.append(data)
    still_works(client, writer)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "AppendSequence called with empty data."),
        ([np.zeros((2, 2), np.float32), 1], "AppendSequence called with scalar tensor at index 1."),
        (
            [np.zeros((2, 2), np.float32), np.zeros(3, np.int64)],
            (
                "AppendSequence called with tensors of non equal batch dimension: 0: Tensor<dtype: float, "
                "shape: [2,2]>, 1: Tensor<dtype: int64, shape: [3]>."
            ),
        ),
        (
            [np.zeros((2, 2), np.float32), np.zeros(2)],
            "Tensor of wrong dtype provided for column 1. Got double but expected int64.",
        ),
    ],
    ids=repr,
)
def test_invalid_sequences_are_rejected(client, writer, data, text):
    with raises(ValueError, text):
        writer.append_sequence(data)
    still_works(client, writer)


def test_empty_steps_are_rejected(client):
    with client.writer(1) as writer:
        with raises(ValueError, "Append called with empty data; a step must have at least one column."):
            writer.append({})
        writer.append([1])


def test_containers_may_change(client, writer):
    """Only the leaves and their order are compared."""
    writer.append([np.full(2, 2, np.float32), 2])
    writer.append({"x": (np.full(2, 3, np.float32),), "y": {"z": 3}})
    writer.create_item("t", 3, 1.0)
    writer.close()
    assert items(client) == [[[[1, 1], [2, 2], [3, 3]], [1, 2, 3]]]


def test_shapes_may_change_between_items(client):
    with client.writer(2) as writer:
        for shape in (2, 3):
            writer.append([np.zeros(shape)])
            writer.create_item("t", 1, 1.0)
        with pytest.raises(ValueError, match="has cells of different shapes"):
            writer.create_item("t", 2, 1.0)
    assert items(client) == [[[[0, 0]]], [[[0, 0, 0]]]]


def test_a_rejected_step_does_not_change_the_shapes(client):
    with client.writer(2) as writer:
        writer.append([np.zeros(2, np.float32), 1])
        with raises(ValueError, "Tensor of wrong dtype provided for column 1. Got double but expected int64."):
            writer.append([np.zeros(4, np.float32), 1.5])
        writer.create_item("step", 1, 1.0)
        writer.append([np.zeros(4, np.float32), 1])
        with raises(ValueError, "Tensor of wrong dtype provided for column 1. Got double but expected int64."):
            writer.append([np.zeros(2, np.float32), 1.5])
        with pytest.raises(ValueError, match=r"saw a tensor of dtype float, shape \[4\], but expected"):
            writer.create_item("step", 1, 1.0)
    assert items(client, "step") == [[[[0, 0]], [1]]]


def test_steps_of_an_item_must_have_the_same_shape_even_if_the_newest_fits(client):
    with client.writer(2) as writer:
        writer.append([np.zeros(3, np.float32), 1])
        writer.append([np.zeros(2, np.float32), 1])
        with pytest.raises(ValueError, match="has cells of different shapes"):
            writer.create_item("step", 2, 1.0)
    assert client.server_info()["step"].current_size == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("t", 0, 1.0), ValueError, "num_timesteps (0) must be a positive integer"),
        (
            ("t", 3, 1.0),
            ValueError,
            "Argument `num_timesteps` is larger than number of buffered timesteps: it is 3, there are 2.",
        ),
        (("t", 1.5, 1.0), TypeError, "`num_timesteps` must be an integer; got 1.5 (float)"),
        (("t", 1, float("nan")), ValueError, "`priority` must not be nan."),
        (("t", 1, None), TypeError, "`priority` must be a number; got None"),
        ((3, 1, 1.0), TypeError, "`table` must be text; got 3 (int)"),
        (
            ("nope", 1, 1.0),
            ValueError,
            (
                "Unable to find signatures for table 'nope'. Available tables: ['prioritized', 'queue', 'step', 't', "
                "'trajectory']."
            ),
        ),
        (("prioritized", 1, -1.0), ValueError, None),
    ],
    ids=repr,
)
def test_invalid_items_are_rejected(client, writer, arguments, error, text):
    with pytest.raises(error) as raised:
        writer.create_item(*arguments)
    assert text is None or str(raised.value) == text
    still_works(client, writer)


def test_items_longer_than_the_writer_keeps_are_rejected(client):
    with client.writer(2) as writer:
        for value in range(4):
            writer.append([value])
        with pytest.raises(ValueError, match="larger than number of buffered timesteps: it is 3, there are 2"):
            writer.create_item("t", 3, 1.0)


def test_a_signature_may_describe_a_step_or_the_item(client, writer):
    for length in (1, 2):
        writer.create_item("step", length, 1.0)
    with raises(
        ValueError,
        "Unable to CreateItem in table 'trajectory' because Append was called with a tensor signature inconsistent "
        "with the table signature. At flattened index 0, saw a tensor of dtype float, shape [2], but expected tensor "
        "'a' of dtype float and shape compatible with [3,2]. (Flattened) table signature: 0: Tensor<name: 'a', "
        "dtype: float, shape: [3,2]>, 1: Tensor<name: 'b', dtype: int64, shape: [?]>, data signature: 0: "
        "Tensor<dtype: float, shape: [2]>, 1: Tensor<dtype: int64, shape: []>.",
    ):
        writer.create_item("trajectory", 2, 1.0)
    writer.append(step(2))
    writer.create_item("trajectory", 3, 1.0)
    with client.writer(1) as other:
        other.append([1])
        with raises(
            ValueError,
            "Unable to CreateItem in table 'step' because Append was called with a tensor signature inconsistent with "
            "table signature. Append was called with 1 tensors, but table requires 2 tensors per entry. (Flattened) "
            "table signature: 0: Tensor<name: 'a/n', dtype: float, shape: [2]>, 1: Tensor<name: 'b', dtype: int64, "
            "shape: []>, data signature: 0: Tensor<dtype: int64, shape: []>.",
        ):
            other.create_item("step", 1, 1.0)
    writer.close()
    assert [item[1] for item in items(client, "step") + items(client, "trajectory")] == [[1], [0, 1], [0, 1, 2]]


def test_flush_waits_only_if_no_item_waits_for_its_chunk(client):
    writer = client.writer(3)
    for value in range(2):
        writer.append([value])
        writer.create_item("queue", 1, 1.0)
    writer.flush()
    waiting = BackgroundCall(writer.flush)
    wait_until(lambda: client.server_info()["queue"].current_size == 1)
    assert waiting.is_alive()
    assert next(client.sample("queue"))[0].data == [0]
    waiting.result()
    writer.close()


def test_full_chunks_are_sent_immediately(client):
    with client.writer(1) as writer:
        for value in range(3):
            writer.append([value])
            writer.create_item("t", 1, 1.0)
            assert next(client.sample("t"))[0].data == [value]


@pytest.mark.parametrize("limit", [1, 3])
def test_append_waits_while_more_items_are_in_flight_than_the_limit(client, limit):
    writer = client.writer(1, max_in_flight_items=limit)
    created = []

    def write():
        for value in range(8):
            writer.append([value])
            writer.create_item("queue", 1, 1.0)
            created.append(value)
        writer.close()

    waiting = BackgroundCall(write)
    for sampled in range(8):
        # Besides the sampled items: one in the table, `limit` in flight, and the one whose creation exceeds the limit.
        expected = list(range(min(sampled + 1 + limit + 1, 8)))
        wait_until(lambda: created == expected)  # noqa: B023, called immediately
        time.sleep(0.05)
        assert created == expected
        assert next(client.sample("queue"))[0].data == [sampled]
    waiting.result()


def test_close_sends_items_and_later_calls_are_rejected(client, writer):
    writer.create_item("t", 2, 1.0)
    assert repr(writer) == (
        "Writer(chunk_length=3, max_timesteps=3, delta_encoded=0, max_in_flight_items=25, timesteps=2, closed=0)"
    )
    writer.close()
    assert items(client) == [[[[0, 0], [1, 1]], [0, 1]]]
    with raises(ValueError, "close() has already been called on Writer."):
        writer.close()
    with raises(ValueError, "Cannot reuse already closed Writer"), writer:
        pass
    calls = (
        lambda: writer.append(step(1)),
        lambda: writer.append_sequence([np.zeros((1, 2))]),
        lambda: writer.create_item("t", 1, 1.0),
        writer.flush,
    )
    for call in calls:
        with raises(RuntimeError, "the writer is closed: close() was called, or its `with` block was left"):
            call()


def test_leaving_the_with_block_closes_the_writer_also_after_an_error(client):
    with pytest.raises(ZeroDivisionError), client.writer(1) as writer:
        writer.append([1])
        writer.create_item("t", 1, 1.0)
        1 / 0  # noqa: B018, an error
    assert items(client) == [[[1]]]
    assert repr(writer).endswith("closed=1)")


def test_garbage_collected_writers_warn_and_send(client):
    writer = client.writer(2)
    writer.append([1])
    writer.create_item("t", 1, 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del writer
    assert [str(each.message) for each in caught] == [
        "a Writer was dropped without close(); close it, or use it as a context manager"
    ]
    wait_until(lambda: client.server_info()["t"].current_size == 1)
