"""The names, arguments and calls of TF-Agents' documentation, and what is raised without TensorFlow."""

import inspect
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from helpers.support import raises, run_python
from helpers.tf_agents_buffers import BufferModel, batch, data_spec, fill, values


@pytest.mark.frameworks
def test_module_paths(tf, replay_buffers):  # noqa: ARG001, needs TensorFlow
    from engram.compat import tf_agents  # noqa: PLC0415, needs TensorFlow
    from engram.compat.tf_agents.replay_buffers import (  # noqa: PLC0415, needs TensorFlow
        TFUniformReplayBuffer,
        replay_buffer,
        table,
        tf_uniform_replay_buffer,
    )

    assert tf_agents.replay_buffers is replay_buffers
    assert tf_uniform_replay_buffer.TFUniformReplayBuffer is TFUniformReplayBuffer
    assert tf_agents.replay_buffers.table.Table is table.Table
    assert issubclass(TFUniformReplayBuffer, replay_buffer.ReplayBuffer)
    assert tf_uniform_replay_buffer.BufferInfo._fields == ("ids", "probabilities")


@pytest.mark.frameworks
def test_signatures(replay_buffers):
    def parameters(method):
        found = inspect.signature(getattr(replay_buffers.TFUniformReplayBuffer, method)).parameters
        return {name: each.default for name, each in found.items() if name != "self"}

    required = inspect.Parameter.empty
    assert list(parameters("__init__").items()) == [
        ("data_spec", required),
        ("batch_size", required),
        ("max_length", 1000),
        ("scope", "TFUniformReplayBuffer"),
        ("device", "cpu:*"),
        ("table_fn", replay_buffers.table.Table),
        ("dataset_drop_remainder", False),
        ("dataset_window_shift", None),
        ("stateful_dataset", False),
    ]
    assert list(parameters("get_next").items()) == [
        ("sample_batch_size", None),
        ("num_steps", None),
        ("time_stacked", True),
    ]
    assert list(parameters("as_dataset").items()) == [
        ("sample_batch_size", None),
        ("num_steps", None),
        ("num_parallel_calls", None),
        ("single_deterministic_pass", False),
    ]
    assert parameters("add_batch") == {"items": required}
    assert parameters("clear") == parameters("gather_all") == parameters("num_frames") == {}


@pytest.mark.frameworks
def test_all_arguments_and_methods(tf, create):
    spec = data_spec(tf)
    buffer = create(
        data_spec=spec,
        batch_size=2,
        max_length=4,
        scope="Mine",
        device="cpu:*",
        dataset_drop_remainder=True,
        dataset_window_shift=1,
        stateful_dataset=True,
    )
    fill(buffer, BufferModel(2, 4), 3)
    assert (buffer.data_spec, buffer.scope, buffer.device, buffer.stateful_dataset) == (spec, "Mine", "cpu:*", True)
    assert type(buffer.data_spec) is dict
    assert (buffer.capacity, buffer.capacity.dtype) == (8, tf.int64)
    assert isinstance(buffer, tf.Module)
    assert buffer.name == "tf_uniform_replay_buffer"
    data, info = buffer.get_next(sample_batch_size=3, num_steps=2, time_stacked=True)
    assert (data["a"].shape, info.ids.shape, info.probabilities.shape) == ((3, 2, 2), (3, 2), (3,))
    dataset = buffer.as_dataset(
        sample_batch_size=3, num_steps=2, num_parallel_calls=tf.constant(2), single_deterministic_pass=False
    )
    assert next(iter(dataset))[0]["a"].shape == (3, 2, 2)
    autotuned = buffer.as_dataset(3, num_parallel_calls=tf.data.AUTOTUNE)
    assert next(iter(autotuned))[0]["a"].shape == (3, 2)
    deterministic = buffer.as_dataset(sample_batch_size=2, num_steps=2, single_deterministic_pass=True)
    assert [info.ids.numpy().tolist() for _, info in deterministic] == [[[0, 1], [4, 5]], [[1, 2], [5, 6]]]
    assert buffer.gather_all()["a"].shape == (2, 3, 2)
    assert buffer.num_frames() == 6
    buffer.add_batch(items=batch(2, 0))
    buffer.clear()
    assert buffer.num_frames() == 0


@pytest.mark.frameworks
@pytest.mark.parametrize("create", ["ring", "tables"], indirect=True)
def test_private_names_that_programs_for_tf_agents_use(tf, create):
    buffer, model = create(data_spec(tf), 2, 4), BufferModel(2, 4)
    assert (buffer._capacity, buffer._capacity.dtype) == (8, tf.int64)
    assert (buffer._get_last_id(), buffer._get_last_id().dtype) == (-1, tf.int64)
    fill(buffer, model, 3)
    assert tf.function(buffer._get_last_id)() == 2
    buffer._clear(clear_all_variables=True)
    assert buffer._get_last_id() == -1
    assert buffer.num_frames() == 0
    assert not any(np.any(each) for each in buffer.variables()[:-1])


@pytest.mark.frameworks
def test_specs_with_lists_have_no_datasets(tf, create):
    for spec in (
        [tf.TensorSpec([], tf.float32)],
        {"a": (tf.TensorSpec([], tf.float32), [tf.TensorSpec([], tf.float32)])},
    ):
        buffer = create(spec, 1, 2)
        items = tf.nest.map_structure(lambda _: np.ones(1, np.float32), spec)
        buffer.add_batch(items)
        tf.nest.assert_same_structure(buffer.get_next()[0], spec)
        for deterministic in (False, True):
            text = "as_dataset: `data_spec` must not contain lists, which datasets treat as tensors; use tuples"
            with raises(ValueError, text):
                buffer.as_dataset(single_deterministic_pass=deterministic)


@pytest.mark.frameworks
def test_the_hooks_of_the_base_class_reject_preprocessing(tf, create):
    buffer = create(data_spec(tf), 1, 2)
    text = "TFUniformReplayBuffer: `sequence_preprocess_fn` must be None; use the dataset's map"
    for hook in (buffer._as_dataset, buffer._single_deterministic_pass_dataset):
        with raises(NotImplementedError, text):
            hook(2, 2, lambda items: items)


@pytest.mark.frameworks
def test_the_base_class_calls_its_hooks(tf, replay_buffers):
    buffer = replay_buffers.ReplayBuffer(data_spec(tf), 7)
    assert buffer.capacity == 7
    for call in (buffer.num_frames, buffer.gather_all, buffer.clear, buffer.get_next, buffer.as_dataset):
        with pytest.raises(NotImplementedError):
            call()
    with pytest.raises(NotImplementedError):
        buffer.as_dataset(single_deterministic_pass=True)
    with pytest.raises(NotImplementedError):
        buffer.add_batch(batch(1, 0))


@pytest.mark.frameworks
def test_the_page_about_tf_agents_runs(tf, capsys, tmp_path):
    tf.random.set_seed(0)
    page = Path(__file__).parents[3] / "docs" / "coming-from-tf-agents.md"
    code_and_output = r"^```\{\.python\}\n(.*?)^```\n\n```text\n(.*?)^```"
    blocks = re.findall(code_and_output, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    file = tmp_path / "page.py"  # AutoGraph reads the source
    file.write_text("\n".join(code for code, _ in blocks), encoding="utf-8")
    runpy.run_path(str(file))
    assert capsys.readouterr().out == "".join(printed for _, printed in blocks)


@pytest.mark.frameworks
def test_the_example_of_the_class_runs(tf, replay_buffers):
    lines = inspect.cleandoc(replay_buffers.TFUniformReplayBuffer.__doc__).splitlines()
    create, add, *loop = [line[4:] for line in lines if line.startswith("    ")]
    spec, learned = data_spec(tf), []

    def learn(items):
        learned.append(values(items).shape)
        if len(learned) == 2:
            raise StopIteration

    names = {"TFUniformReplayBuffer": replay_buffers.TFUniformReplayBuffer, "data_spec": spec, "tf": tf, "learn": learn}
    names["item"] = tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype), spec)
    with pytest.raises(StopIteration):
        exec("\n".join([create, add, add, *loop]), names)  # noqa: S102, trusted code
    assert learned == [(32, 2)] * 2


@pytest.mark.parametrize(
    "module", ["replay_buffers", "replay_buffers.tf_uniform_replay_buffer", "replay_buffers.table"]
)
def test_without_tensorflow_the_error_names_the_extra(module):
    code = f"""
import sys
sys.modules["tensorflow"] = None  # as if it were not installed
import engram.compat.tf_agents
try:
    import engram.compat.tf_agents.{module}
except ImportError as error:
    print(error)
"""
    text = "needs TensorFlow, which is not installed; install it with `pip install 'engram-replay[tensorflow]'`"
    assert run_python(code) == f"engram.compat.tf_agents {text}\n"


def test_the_package_imports_no_tensorflow():
    code = """
import sys
from engram.compat import tf_agents
print("tensorflow" in sys.modules)
"""
    assert run_python(code) == "False\n"
