"""`client.insert`: valid and invalid data, and waiting."""

import numpy as np
import pytest
from helpers.compat_tables import FITTING_STEP, four_tables, keys, serving, steps, table
from helpers.support import BackgroundCall, raises, wait_until

from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec


@pytest.fixture
def client():
    with four_tables() as client:
        yield client


def test_one_step_can_be_inserted_into_several_tables(client):
    client.insert({"b": 1, "a": [2.0, "text"]}, {"t": 1.5, "prioritized": 2.5})
    for name, priority in (("t", 1.5), ("prioritized", 2.5)):
        ((step,),) = client.sample(name)
        assert step.info[1:] == (1.0, 1, priority, 1)
        assert [column.tolist() for column in step.data] == [2.0, b"text", 1]
    assert keys(client, "t") == keys(client, "prioritized")


@pytest.mark.parametrize("priorities", [{}, None, []])
def test_priorities_are_required(client, priorities):
    with raises(ValueError, "priorities must contain at least one item"):
        client.insert([1], priorities)


@pytest.mark.parametrize(
    ("data", "priorities", "error", "text"),
    [
        (1, {"x": 1.0}, ValueError, "Unable to find signatures for table 'x'. Available tables: {tables}."),
        (1, {"t": 1.0, "x": 1.0}, ValueError, "Unable to find signatures for table 'x'. Available tables: {tables}."),
        (1, [("t", 1.0)], TypeError, "`priorities` must map tables to priorities; got [('t', 1.0)] (list)"),
        (1, {3: 1.0}, TypeError, "each key of `priorities` must be text; got 3 (int)"),
        (1, np.ones(2), TypeError, "`priorities` must map tables to priorities; got array([1., 1.]) (ndarray)"),
        (1, "x" * 200, TypeError, f"`priorities` must map tables to priorities; got '{'x' * 99}... (str)"),
        (1, {"t": "a"}, TypeError, "`priorities['t']` must be a number; got 'a' (str)"),
        (1, {"t": float("nan")}, ValueError, "priority for table `t` is NaN; it must be a number"),
        (
            1,
            {"t": 1.0, "prioritized": -1.0},
            ValueError,
            "priority for table `prioritized` is -1; a Prioritized selector needs a finite value that is not negative",
        ),
        ([], {"t": 1.0}, ValueError, "`data` must have at least one leaf; got an empty nest"),
        (
            [None],
            {"t": 1.0},
            TypeError,
            "cannot convert None to a tensor; a value must be an array, a number or text",
        ),
        (
            {"x": {1}},
            {"t": 1.0},
            TypeError,
            "cannot convert {{1}} (set) to a tensor: it contains an object of type set",
        ),
    ],
)
def test_invalid_inserts_are_rejected(client, data, priorities, error, text):
    with raises(error, text.format(tables=["prioritized", "queue", "signed", "t"])):
        client.insert(data, priorities)
    assert all(info.current_size == 0 for info in client.server_info().values())


WRONG_SHAPE = (
    "flattened index 0 is of dtype float and shape [3], but 'a/n' is of dtype float and shape compatible with [2]"
)
SIGNATURE_TEXT = "0: Tensor<name: 'a/n', dtype: float, shape: [2]>, 1: Tensor<name: 'b', dtype: int64, shape: []>"


@pytest.mark.parametrize(
    ("data", "wrong", "data_text"),
    [
        (
            [np.zeros(2, np.float32)],
            "it has 1 column, the signature has 2",
            "0: Tensor<dtype: float, shape: [2]>",
        ),
        (
            [np.zeros(3, np.float32), 1],
            WRONG_SHAPE,
            "0: Tensor<dtype: float, shape: [3]>, 1: Tensor<dtype: int64, shape: []>",
        ),
        (
            [np.zeros(2, np.float32), 1.0],
            "flattened index 1 is of dtype double and shape [], but 'b' is of dtype int64 and shape compatible with []",
            "0: Tensor<dtype: float, shape: [2]>, 1: Tensor<dtype: double, shape: []>",
        ),
    ],
)
def test_data_that_does_not_fit_the_signature_is_rejected(client, data, wrong, data_text):
    text = (
        f"Unable to insert into table 'signed' since the data is inconsistent with the table signature: {wrong}. "
        f"Table signature: {SIGNATURE_TEXT}. Data signature: {data_text}."
    )
    with raises(ValueError, text):
        client.insert(data, {"t": 1.0, "signed": 1.0})
    assert client.server_info()["t"].current_size == 0


def test_data_that_fits_the_signature_is_inserted(client):
    client.insert(FITTING_STEP, {"signed": 1.0})
    client.insert([np.zeros(2, np.float32), 1], {"signed": 1.0})  # only the flattened columns are compared
    assert client.server_info()["signed"].current_size == 2


def test_a_signature_may_describe_the_item_with_its_time_axis():
    with serving(table(signature=TensorSpec([None, 2], np.int64))) as (_, client):
        client.insert(np.zeros(2, np.int64), {"t": 1.0})
        client.insert(np.zeros((5, 2), np.int64), {"t": 1.0})
        assert client.server_info()["t"].current_size == 2


def test_insert_waits_for_the_rate_limiter():
    with serving(reverb.Table.queue("q", 1)) as (server, client):
        client.insert([0], {"q": 1.0})
        waiting = BackgroundCall(lambda: server.localhost_client().insert([1], {"q": 1.0}))
        wait_until(lambda: server._server_store.store.info()["q"].waiting_inserts == 1)
        assert steps(client, "q", 2) == [[0], [1]]
        waiting.result()
