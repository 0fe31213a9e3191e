"""Texts of writers' errors that no other test reaches."""

import numpy as np
import pytest
from helpers.support import raises

from engram import Table
from engram.errors import DeadlineExceededError, ExpiredStepError, InvalidArgumentError, SignatureError


def test_a_missing_value_of_a_single_leaf_is_called_the_data(open_store):
    with open_store(Table("t")).writer() as writer:
        writer.append(1.0)
        writer.append(None)
        text = (
            "the trajectory refers to the data at step 1 of this writer (counted from 0 over all episodes), where it "
            "has no value; select only steps with a value"
        )
        with raises(InvalidArgumentError, text):
            writer.create_item("t", num_steps=2)


def test_cleared_steps_are_rejected(open_store):
    advice = "create items before the episode ends, or end it with `clear=False`"
    with open_store(Table("t")).writer() as writer:
        writer.append({"x": 1})
        column = writer.history["x"][:]
        writer.end_episode(clear=True)
        cleared = (
            "the trajectory refers to column `x` at step 0 of this writer (counted from 0 over all episodes), which "
            "was cleared at the end of its episode"
        )
        with raises(ExpiredStepError, f"{cleared}; no steps are available; {advice}"):
            writer.create_item("t", trajectory={"x": column})
        writer.append({"x": 2})
        with raises(ExpiredStepError, f"{cleared}; only step 1 is available; {advice}"):
            writer.create_item("t", trajectory={"x": column})


def test_a_late_flush_of_one_item_is_reported_in_the_singular(open_store):
    writer = open_store(Table.queue("q", max_size=1)).writer()
    for value in range(2):
        writer.append({"x": value})
        writer.create_item("q", num_steps=1)
    text = "1 item is not in its table after 0.05 s; it stays queued; `q`: inserting waits: Queue"
    with pytest.raises(DeadlineExceededError, match=text):
        writer.flush(timeout=0.05)


class Unconvertible:
    def __array__(self, *_, **__):
        raise TypeError("call `detach` first")


@pytest.mark.parametrize(("data", "column"), [({"x": Unconvertible()}, "column `x`"), (Unconvertible(), "the data")])
def test_values_that_are_no_arrays_are_rejected(open_store, data, column):
    store = open_store(Table("t"))
    text = f"{column} has type Unconvertible and does not convert to a NumPy array: call `detach` first"
    with raises(SignatureError, text):
        store.insert(data, {"t": 1.0})
    with store.writer() as writer, raises(SignatureError, text):
        writer.append(data)
    store.insert({"x": np.float32(1)}, {"t": 1.0})
