"""`PatternDataset`: patterns applied to steps without a server."""

import collections
import copy

import numpy as np
import pytest
from helpers.compat_tables import serving
from helpers.support import raises, slow_except

from engram.compat import reverb

pytestmark = pytest.mark.frameworks

STEP = {"a": None, "b": None, "end": None}


def config(make, conditions=()):
    pattern = reverb.structured.pattern_from_transform(STEP, make)
    return reverb.structured.create_config(pattern, "t", conditions)


def steps(tf, n=8, ends=(3, 5)):
    """A dataset of `n` steps, in which the steps `ends` are the last of their episodes."""
    a = np.arange(n, dtype=np.int32)
    b = np.stack([a, a + 100], 1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices({"a": a, "b": b, "end": np.isin(a, ends)})


def is_end(step):
    return step["end"]


def two_and_one(step):
    return {"two": step["a"][-2:], "one": step["b"][-1]}


def test_items_do_not_cross_respected_episode_boundaries(tf):
    dataset = reverb.PatternDataset(
        steps(tf), [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=is_end
    )
    assert isinstance(dataset, tf.data.Dataset)
    assert isinstance(dataset, reverb.PatternDataset)
    assert dataset.element_spec == {"two": tf.TensorSpec([2], tf.int32), "one": tf.TensorSpec([2], tf.float32)}
    elements = list(dataset)
    assert [each["two"].numpy().tolist() for each in elements] == [[0, 1], [1, 2], [2, 3], [4, 5], [6, 7]]
    assert [each["one"].numpy().tolist() for each in elements] == [[i, i + 100] for i in (1, 2, 3, 5, 7)]


def test_items_cross_episode_boundaries_otherwise(tf):
    dataset = reverb.PatternDataset(
        steps(tf), [config(two_and_one)], respect_episode_boundaries=False, is_end_of_episode=is_end
    )
    assert [each["two"][0].numpy() for each in dataset] == list(range(7))


def test_every_iteration_starts_from_the_beginning(tf):
    dataset = reverb.PatternDataset(
        steps(tf), [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=is_end
    )
    assert len(list(dataset)) == len(list(dataset)) == 5


def test_an_axis_whose_lengths_differ_is_unknown(tf):
    condition = reverb.structured.Condition
    configs = [
        config(lambda step: [step["a"][-3:], step["end"][-1:]]),
        config(lambda step: [step["a"][-1:], step["end"][-1:]], [condition.is_end_episode()]),
    ]
    dataset = reverb.PatternDataset(steps(tf), configs, respect_episode_boundaries=True, is_end_of_episode=is_end)
    assert dataset.element_spec == (tf.TensorSpec([None], tf.int32), tf.TensorSpec([1], tf.bool))
    assert [each[0].numpy().tolist() for each in dataset] == [[0, 1, 2], [1, 2, 3], [3], [5]]


def test_steps_and_windows_of_equal_shape_may_be_the_same_column(tf):
    configs = [config(lambda step: [step["a"][-2:]]), config(lambda step: [step["b"][-1]])]
    source = steps(tf, 3).map(lambda step: {**step, "b": tf.cast(step["b"], tf.int32)})
    dataset = reverb.PatternDataset(source, configs, respect_episode_boundaries=True, is_end_of_episode=is_end)
    assert dataset.element_spec == (tf.TensorSpec([2], tf.int32),)
    assert [each[0].numpy().tolist() for each in dataset] == [[0, 100], [0, 1], [1, 101], [1, 2], [2, 102]]


def test_steps_of_a_window_must_have_the_same_shape(tf):
    source = steps(tf, 3).map(lambda step: {**step, "b": step["b"][: step["a"]]})
    configs = [config(lambda step: [step["b"][-2:]])]
    dataset = reverb.PatternDataset(source, configs, respect_episode_boundaries=True, is_end_of_episode=is_end)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has cells of different shapes, \\[0\\] and"):
        list(dataset)


def conditions(which):
    condition = reverb.structured.Condition
    return {
        "step": [condition.step_index() % 2 == 0],
        "since": [condition.steps_since_applied() >= 3],
        "end": [condition.is_end_episode()],
        "data": [condition.data(STEP)["a"] % 3 == 1],
        "both": [condition.step_index() >= 1, condition.data(STEP)["end"] == 0],
    }[which]


@pytest.mark.parametrize("which", slow_except("end", "both", of=["step", "since", "end", "data", "both"]))
@pytest.mark.parametrize("clear", [True, False])
def test_elements_are_the_items_of_a_structured_writer(tf, which, clear):
    def pattern(step):
        return {"x": step["a"][-3:-1], "y": step["b"][-2], "z": step["end"][-1:]}

    source = steps(tf, 40, ends=(2, 9, 10, 27, 39))
    configs = [config(pattern, conditions(which))]
    dataset = list(reverb.PatternDataset(source, configs, respect_episode_boundaries=clear, is_end_of_episode=is_end))
    with serving(reverb.Table.queue("t", 100)) as (_, client):
        writer = client.structured_writer(configs)
        for step in source.as_numpy_iterator():
            writer.append(step)
            if step["end"]:
                writer.end_episode(clear_buffers=clear)
        writer.flush()
        count = client.server_info()["t"].current_size
        assert len(dataset) == count > 0
        for each, sample in zip(dataset, client.sample("t", count, emit_timesteps=False), strict=True):
            for mine, written in zip(tf.nest.flatten(each), sample.data, strict=True):
                np.testing.assert_array_equal(mine, written)


def test_steps_may_be_generated_and_have_any_shape(tf):
    def stream():
        for i in range(4):
            yield {"a": i, "b": ["x" * i] * i, "end": False}

    spec = {"a": tf.TensorSpec([], tf.int64), "b": tf.TensorSpec([None], tf.string), "end": tf.TensorSpec([], tf.bool)}
    source = tf.data.Dataset.from_generator(stream, output_signature=spec)
    dataset = reverb.PatternDataset(
        source,
        [config(lambda step: (step["b"][-1], step["a"][-2:]))],
        respect_episode_boundaries=True,
        is_end_of_episode=is_end,
    )
    assert dataset.element_spec == (tf.TensorSpec([None], tf.string), tf.TensorSpec([2], tf.int64))
    assert [each[0].numpy().tolist() for each in dataset] == [[b"x"], [b"xx"] * 2, [b"xxx"] * 3]


@pytest.mark.parametrize("known_size", [True, False])
def test_text_of_elements_keeps_trailing_zero_bytes(tf, known_size):
    source = tf.data.Dataset.from_tensor_slices({"a": [b"a\0", b"bcd\0\0"], "b": [0, 1], "end": [False, False]})
    if not known_size:
        source = source.filter(lambda _: True)
    configs = [config(lambda step: (step["a"][-2:], step["a"][-1]))]
    dataset = reverb.PatternDataset(source, configs, respect_episode_boundaries=True, is_end_of_episode=is_end)
    assert [[each[0].numpy().tolist(), each[1].numpy()] for each in dataset] == [[[b"a\0", b"bcd\0\0"], b"bcd\0\0"]]


def test_a_pattern_may_be_a_defaultdict(tf):
    def pattern(step):
        return collections.defaultdict(list, a=[step["a"][-1]])

    dataset = reverb.PatternDataset(
        steps(tf), [config(pattern)], respect_episode_boundaries=True, is_end_of_episode=is_end
    )
    first = next(iter(dataset))
    assert first["a"][0].numpy() == 0


def test_respect_episode_boundaries_must_be_a_bool(tf):
    with raises(TypeError, "`respect_episode_boundaries` must be True or False; got 'no' (str)"):
        reverb.PatternDataset(
            steps(tf), [config(two_and_one)], respect_episode_boundaries="no", is_end_of_episode=is_end
        )


def test_a_pattern_dataset_can_be_created_in_a_graph(tf):
    source = steps(tf)

    @tf.function
    def total():
        dataset = reverb.PatternDataset(
            source, [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=is_end
        )
        return dataset.reduce(0, lambda state, item: state + item["two"][1])

    assert total() == 1 + 2 + 3 + 5 + 7


def test_with_info_yields_samples_whose_info_is_zero(tf):
    dataset = reverb.pattern_dataset.pattern_dataset_with_info(
        steps(tf), [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=is_end
    )
    sample = next(iter(dataset))
    assert isinstance(sample, reverb.ReplaySample)
    assert [float(field) for field in sample.info] == [0.0] * 5
    assert sample.data["two"].numpy().tolist() == [0, 1]


def test_configs_are_not_modified(tf):
    one = config(two_and_one)
    before = copy.deepcopy(one)
    list(reverb.PatternDataset(steps(tf), [one], respect_episode_boundaries=True, is_end_of_episode=is_end))
    assert one == before


def test_is_end_of_episode_must_return_a_bool(tf):
    text = (
        "Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its return type is "
        "TensorSpec(shape=(), dtype=tf.int32, name=None)."
    )
    with raises(ValueError, text):
        reverb.PatternDataset(
            steps(tf), [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=lambda step: step["a"]
        )


def test_invalid_configs_are_rejected(tf):
    with raises(ValueError, "At least one config must be provided."):
        reverb.PatternDataset(steps(tf), [], respect_episode_boundaries=True, is_end_of_episode=is_end)
    with pytest.raises(ValueError, match="Invalid configuration at position 1: "):
        bad = config(lambda step: {"two": step["a"][1:], "one": step["b"][-1]})
        reverb.PatternDataset(
            steps(tf), [config(two_and_one), bad], respect_episode_boundaries=True, is_end_of_episode=is_end
        )
    with pytest.raises(ValueError, match="`step_spec` has only 1 leaf"):
        only = steps(tf).map(lambda step: {"a": step["a"]})
        reverb.PatternDataset(only, [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=is_end)


def test_the_input_must_be_a_dataset(tf):  # noqa: ARG001, TensorFlow must be installed
    with raises(TypeError, "`input_dataset` must be a tf.data.Dataset; got 3 (int)"):
        reverb.PatternDataset(3, [config(two_and_one)], respect_episode_boundaries=True, is_end_of_episode=is_end)
