"""`TimestepDataset`: its elements, and items and specs that do not fit."""

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.reverb_items import put_items, specs
from helpers.support import wait_until

from engram.compat import reverb

pytestmark = pytest.mark.frameworks


def queue():
    return reverb.Table.queue("t", 100)


def dataset(tf, client, **options):
    options = {"max_in_flight_samples_per_worker": 10, **options}
    return reverb.TimestepDataset(client.server_address, "t", *specs(tf, ()), **options)


def test_it_is_a_dataset_of_tensorflow(tf):
    with serving(table()) as (_, client):
        made = dataset(tf, client)
    assert isinstance(made, tf.data.Dataset)
    assert isinstance(made, reverb.TimestepDataset)
    assert not isinstance(made, reverb.TrajectoryDataset)
    assert made.element_spec.data == {"cell": tf.TensorSpec([2], tf.uint8), "item_step": tf.TensorSpec([], tf.float32)}


@pytest.mark.parametrize("max_in_flight", [1, 5, 100])
@pytest.mark.parametrize("lengths", [[3] * 6, [1, 4, 2, 5, 5, 3]])
def test_steps_of_items_are_in_order(tf, max_in_flight, lengths):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=lengths)
        elements = list(dataset(tf, client, max_in_flight_samples_per_worker=max_in_flight, max_samples=len(lengths)))
        expected = np.float32([i + t / 100 for i, length in enumerate(lengths) for t in range(length)])
        np.testing.assert_array_equal([each.data["item_step"] for each in elements], expected)
        np.testing.assert_array_equal([each.data["cell"][1] for each in elements], expected.astype(int))
        assert [int(each.info.priority) - 1 for each in elements] == expected.astype(int).tolist()
        assert len({int(each.info.key) for each in elements}) == len(lengths)


def test_steps_can_be_batched_into_batches_of_sequences(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 8)
        sample = next(iter(dataset(tf, client).batch(3).batch(4)))
        assert sample.info.key.shape == (4, 3)
        assert sample.data["cell"].shape == (4, 3, 2)
        np.testing.assert_array_equal(sample.data["item_step"][:, 0], [0, 1, 2, 3])


def test_items_of_one_row_or_without_a_time_axis_are_one_step(tf):
    with serving(queue()) as (_, client):
        with client.trajectory_writer(3) as writer:
            for t in range(3):
                writer.append([np.float32([t, t]), np.int32(t)])
            writer.create_item("t", 1.0, [writer.history[0][-1], writer.history[1][-1]])
            writer.create_item("t", 1.0, [writer.history[0][-1:], writer.history[1][-2]])
        dtypes, shapes = [tf.float32, tf.int32], [tf.TensorShape([2]), tf.TensorShape([])]
        elements = list(reverb.TimestepDataset(client.server_address, "t", dtypes, shapes, 1, max_samples=2))
        assert [int(each.data[1]) for each in elements] == [2, 1]
        assert [each.data[0].numpy().tolist() for each in elements] == [[2, 2], [2, 2]]


def test_items_whose_columns_differ_in_length_are_rejected(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[2])
        with client.trajectory_writer(3) as writer:
            for t in range(3):
                writer.append({"cell": np.uint8([7, 7]), "item_step": np.float32(t)})
            history = writer.history
            writer.create_item("t", 1.0, {"cell": history["cell"][-3:], "item_step": history["item_step"][-1]})
        iterator = iter(dataset(tf, client))
        assert [float(next(iterator).data["item_step"]) for _ in range(2)] == [0.0, np.float32(0.01)]
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"decomposed into timesteps: columns of an item of table `t` have 3 and 1 steps\.",
        ):
            next(iterator)
        wait_until(lambda: client.server_info()["t"].current_size == 1)  # the item is still in the table


def test_specs_that_differ_from_the_data_are_rejected(tf):
    with serving(table()) as (_, client):
        put_items(client, "t", lengths=[3])
        made = reverb.TimestepDataset(client.server_address, "t", *specs(tf, 3), 1)
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            next(iter(made))
        assert (
            "Received incompatible tensor at flattened index 0 from table 't'.  Specification has (dtype, shape): "
            "(uint8, [3,2]).  Tensor has (dtype, shape): (uint8, [2])."
        ) in str(error.value)


def test_from_table_signature_yields_steps(tf):
    signature = {"cell": tf.TensorSpec([None], tf.uint8), "time": tf.TensorSpec([], tf.float32)}
    with serving(reverb.Table.queue("t", 9, signature=signature)) as (_, client):
        with client.writer(2) as writer:
            for t in range(2):
                writer.append({"cell": np.uint8([t, t]), "time": np.float32(t)})
            writer.create_item("t", 2, 1.0)
        made = reverb.TimestepDataset.from_table_signature(client.server_address, "t", 10, max_samples=1)
        assert isinstance(made, reverb.TimestepDataset)
        assert made.element_spec.data["cell"] == tf.TensorSpec([None], tf.uint8)
        assert [each.data["cell"].numpy().tolist() for each in made] == [[0, 0], [1, 1]]
