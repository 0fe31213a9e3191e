"""Datasets that are created in a traced TensorFlow function, as in Acme."""

import logging

import numpy as np
import pytest
from helpers.compat_tables import serving, table

from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec

pytestmark = pytest.mark.frameworks


@pytest.fixture
def address():
    """The address of a server whose table has one item of one step."""
    with serving(table(signature={"x": TensorSpec([2], np.float32)})) as (server, client):
        client.insert({"x": np.float32([1.5, 2.5])}, {"t": 1.0})
        yield f"localhost:{server.port}"


@pytest.fixture
def warnings():
    """Collects TensorFlow's warnings."""
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.mark.parametrize("kind", [reverb.TimestepDataset, reverb.ReplayDataset])
def test_autograph_does_not_warn(tf, address, warnings, kind):
    """AutoGraph would rewrite all functions that the constructor calls, and warn about those it cannot rewrite."""

    def make_dataset(number):
        if number == 0:
            return kind.from_table_signature(address, "t", 1)
        return kind(address, "t", {"x": tf.float32}, {"x": tf.TensorShape([2])}, 1)

    for number in range(2):
        dataset = tf.data.Dataset.range(2).interleave(lambda _, number=number: make_dataset(number), cycle_length=2)
        assert [each.data["x"].numpy().tolist() for each in dataset.take(2)] == [[1.5, 2.5]] * 2
    assert warnings == []
