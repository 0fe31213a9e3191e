"""Datasets whose types and shapes are those of a table's signature."""

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.reverb_items import put_items
from helpers.support import raises

from engram.compat import reverb

pytestmark = pytest.mark.frameworks


def test_from_table_signature_uses_its_dtypes_and_shapes(tf):
    signature = {
        "item_step": tf.TensorSpec([None], tf.float32, "label"),
        "cell": reverb.tensor_spec.BoundedTensorSpec([None, 2], np.uint8, 0, 9),
    }
    with serving(table(signature=signature)) as (_, client):
        put_items(client, "t", lengths=[3])
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "t", 10, max_samples=1)
        assert isinstance(dataset, reverb.TrajectoryDataset)
        assert dataset.element_spec.data == {
            "cell": tf.TensorSpec([None, 2], tf.uint8),
            "item_step": tf.TensorSpec([None], tf.float32),
        }
        (elements,) = list(dataset)
        assert elements.data["cell"].shape == (3, 2)


def test_a_missing_table_or_signature_or_server_is_rejected(tf):  # noqa: ARG001, TensorFlow must be installed
    with serving(table("a"), table("b")) as (_, client):
        address = client.server_address
        text = f"Server at {address} does not contain any table named c. Found: a, b."
        with raises(ValueError, text):
            reverb.TrajectoryDataset.from_table_signature(address, "c", 1)
        with raises(ValueError, f"Table a at {address} does not have a signature."):
            reverb.TrajectoryDataset.from_table_signature(address, "a", 1)
        with raises(TypeError, "`table` must be text; got 5 (int)"):
            reverb.TrajectoryDataset.from_table_signature(address, 5, 1)
    with pytest.raises(reverb.DeadlineExceededError, match="did not complete within provided timeout of 1s"):
        reverb.TrajectoryDataset.from_table_signature("localhost:1", "a", 1, get_signature_timeout_secs=1)
