"""`ReplayDataset`, the dataset of Reverb before 0.8."""

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.reverb_items import put_items, specs
from helpers.support import raises

from engram.compat import reverb

pytestmark = pytest.mark.frameworks


def queue(**options):
    return reverb.Table.queue("t", 100, **options)


def make_dataset(tf, client, length, **options):
    options = {"max_in_flight_samples_per_worker": 10, "rate_limiter_timeout_ms": 300, **options}
    return reverb.ReplayDataset(client.server_address, "t", *specs(tf, length), **options)


def test_elements_are_steps_by_default(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[2, 3])
        dataset = make_dataset(tf, client, ())
        assert isinstance(dataset, tf.data.Dataset)
        assert isinstance(dataset, reverb.ReplayDataset)
        assert [int(each.data["item_step"]) for each in dataset] == [0, 0, 1, 1, 1]


def test_info_is_repeated_for_each_step_of_a_sequence(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3] * 4)
        dataset = make_dataset(tf, client, 3, sequence_length=3, emit_timesteps=False)
        assert dataset.element_spec.info.key == tf.TensorSpec([3], tf.uint64)
        elements = list(dataset)
        assert [each.data["cell"].shape for each in elements] == [(3, 2)] * 4
        for i, each in enumerate(elements):
            assert each.info.key.shape == 3
            assert each.info.priority.numpy().tolist() == [1.0 + i] * 3


def test_sequences_may_have_any_length(tf):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3, 1, 1, 4])
        dataset = make_dataset(tf, client, None, emit_timesteps=False)
        assert dataset.element_spec.info.key == tf.TensorSpec([None], tf.uint64)
        elements = list(dataset)
        assert [each.info.priority.numpy().tolist() for each in elements] == [[1] * 3, [2], [3], [4] * 4]
        assert [each.data["item_step"].shape for each in elements] == [3, 1, 1, 4]


@pytest.mark.parametrize("emit_timesteps", [True, False])
def test_an_item_of_another_length_than_sequence_length_is_an_error(tf, emit_timesteps):
    with serving(queue()) as (_, client):
        put_items(client, "t", lengths=[3, 3, 2])
        length = () if emit_timesteps else 3
        dataset = make_dataset(tf, client, length, sequence_length=3, emit_timesteps=emit_timesteps)
        elements = []
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            elements.extend(np.ravel(each.info.priority)[0] for each in dataset)
        assert ("Received sequence of invalid length from table 't': it has 2 steps, `sequence_length` is 3.") in str(
            error.value
        )
        assert sorted(set(elements)) == [1, 2]


def test_invalid_shapes_are_rejected(tf):
    text = "every shape must begin with sequence_length (4) if emit_timesteps is False; got (3, 2)"
    with serving(table()) as (_, client), raises(ValueError, text):
        make_dataset(tf, client, 3, sequence_length=4, emit_timesteps=False)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("sequence_length", 0, "sequence_length (0) must be None or a positive integer"),
        ("flexible_batch_size", 0, "flexible_batch_size (0) must be a positive integer or -1"),
        ("num_workers_per_iterator", 0, "num_workers_per_iterator (0) must be a positive integer or -1"),
    ],
)
def test_invalid_arguments_are_rejected(tf, option, value, text):
    with serving(table()) as (_, client):
        with raises(ValueError, text):
            make_dataset(tf, client, (), **{option: value})
        with raises(TypeError, f"`{option}` must be an integer; got 1.5 (float)"):
            make_dataset(tf, client, (), **{option: 1.5})


@pytest.mark.parametrize("emit_timesteps", [True, False])
def test_from_table_signature_accepts_a_signature_of_steps(tf, emit_timesteps):
    signature = {"cell": tf.TensorSpec([2], tf.uint8), "time": tf.TensorSpec([], tf.float32)}
    with serving(queue(signature=signature)) as (_, client):
        with client.writer(3) as writer:
            for t in range(3):
                writer.append({"cell": np.uint8([t, t]), "time": np.float32(t)})
            writer.create_item("t", 3, 1.0)
        dataset = reverb.ReplayDataset.from_table_signature(
            client.server_address,
            "t",
            10,
            sequence_length=3,
            emit_timesteps=emit_timesteps,
            rate_limiter_timeout_ms=300,
        )
        cells = [each.data["cell"].numpy().tolist() for each in dataset]
        steps = [[0, 0], [1, 1], [2, 2]]
        assert cells == (steps if emit_timesteps else [steps])
