"""The same calls on TF-Agents' own classes, where TF-Agents is installed: results, errors, and its defects."""

import importlib
import itertools

import numpy as np
import pytest
from helpers.support import slow_except
from helpers.tf_agents_buffers import batch, data_spec, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

L = 4


@pytest.fixture
def original(tf):  # noqa: ARG001, needs TensorFlow
    """The package `tf_agents.replay_buffers`."""
    return pytest.importorskip("tf_agents.replay_buffers", exc_type=ImportError)


@pytest.fixture
def both(original, replay_buffers):
    """Creates a buffer of Engram and one of TF-Agents with the same arguments."""

    def create_both(*args, **options):
        classes = (replay_buffers.TFUniformReplayBuffer, original.TFUniformReplayBuffer)
        return tuple(each(*args, **options) for each in classes)

    return create_both


def fill(buffers, count, first=0):
    for number, buffer in itertools.product(range(first, first + count), buffers):
        buffer.add_batch(batch(int(buffer.capacity) // L, number))


def same(tf, nests):
    """Checks that two nests have the same structure, dtypes, shapes and values."""
    tf.nest.assert_same_structure(*nests)
    for a, b in zip(*map(tf.nest.flatten, nests), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


def passes(buffer, *args):
    """The elements of a deterministic pass: data, ids, and probabilities."""
    dataset = buffer.as_dataset(*args, single_deterministic_pass=True)
    return [(values(data).tolist(), info.ids.numpy().tolist(), info.probabilities) for data, info in dataset]


@pytest.mark.parametrize("count", slow_except(0, L + 1, of=[0, 1, L - 1, L, L + 1, 2 * L, 2 * L + 1]))
def test_contents(tf, both, count):
    buffers = both(data_spec(tf), 2, L)
    fill(buffers, 3)
    for buffer in buffers:
        buffer.clear()
    fill(buffers, count, first=3)
    for call in ("gather_all", "num_frames"):
        same(tf, [getattr(buffer, call)() for buffer in buffers])
    same(tf, [buffer.capacity for buffer in buffers])


@pytest.mark.parametrize("in_graph", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("n", slow_except(400, of=[None, 400]))
@pytest.mark.parametrize("num_steps", slow_except(None, 3, of=[None, 1, 3]))
@pytest.mark.parametrize("time_stacked", [True, False])
def test_get_next(tf, both, in_graph, n, num_steps, time_stacked):  # noqa: PLR0917, pytest's parameters
    """All shapes; with 400 draws, each of the at most 8 sequences is drawn by both."""
    buffers = both(data_spec(tf), 2, L)
    fill(buffers, 6)
    drawn, structures = [], []
    for buffer in buffers:

        def call(buffer=buffer):
            # TF-Agents' containers cannot be returned from a function.
            return tf.nest.flatten(buffer.get_next(n, num_steps, time_stacked))

        flat = (tf.function(call) if in_graph else call)()
        structures.append(buffer.get_next(n, num_steps, time_stacked))
        data, info = tf.nest.pack_sequence_as(structures[-1], flat)
        types = [(tensor.dtype, tensor.shape.as_list()) for tensor in tf.nest.flatten((data, info))]
        first_step = data if num_steps is None or time_stacked else data[0]
        ids = info.ids if num_steps is None or time_stacked else info.ids[0]
        numbers, ids = (np.asarray(each).reshape(n or 1, -1)[:, 0] for each in (values(first_step), ids))
        starts = set(zip(numbers.tolist(), ids.tolist(), strict=True))
        drawn.append((types, starts if n else None, np.unique(info.probabilities).tolist()))
    assert drawn[0] == drawn[1]
    tf.nest.assert_same_structure(*structures)


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("shift", slow_except(None, 3, of=[None, 1, 3]))
@pytest.mark.parametrize(
    ("batch_size", "count"),
    [pytest.param(1, 3, marks=pytest.mark.slow), (1, L + 1), pytest.param(2, 2, marks=pytest.mark.slow), (2, L)],
)
def test_deterministic_passes_where_tf_agents_is_right(tf, both, drop_remainder, shift, batch_size, count):  # noqa: PLR0917, pytest's parameters
    """One segment; or several, in a ring that has not wrapped, and windows that end with it."""
    buffers = both(data_spec(tf), batch_size, L, dataset_drop_remainder=drop_remainder, dataset_window_shift=shift)
    fill(buffers, count)
    for n, num_steps in itertools.product([None, 1, 2], [None, 2]):
        if n is not None and (n > batch_size or (num_steps is not None and batch_size > n and shift is not None)):
            continue
        mine, original = (passes(buffer, n, num_steps) for buffer in buffers)
        assert mine == original, (n, num_steps)


def test_the_documented_examples(both, tf):
    """Those of section 1.6: the last window of TF-Agents' documentation, `[4, 5]`, does not exist."""
    for shift, drop, expected in [
        (None, False, [[0, 1], [2, 3]]),
        (1, False, [[0, 1], [1, 2], [2, 3], [3]]),
        (1, True, [[0, 1], [1, 2], [2, 3]]),
        (3, False, [[0, 1], [3]]),
    ]:
        buffers = both(data_spec(tf), 1, L, dataset_drop_remainder=drop, dataset_window_shift=shift)
        fill(buffers, L)
        for buffer in buffers:
            assert [ids for _, ids, _ in passes(buffer, None, 2)] == expected
    buffers = both(data_spec(tf), 6, L)
    fill(buffers, L)
    mine, original = (passes(buffer, 3, 2) for buffer in buffers)
    assert mine == original
    assert [data for data, _, _ in mine][2] == [[3000, 3001], [4000, 4001], [5000, 5001]]


def test_a_pass_of_tf_agents_leaves_its_segment(tf, both):
    buffers = both(data_spec(tf), 2, L)
    fill(buffers, L + 1)
    mine, original = ([data for data, _, _ in passes(buffer)] for buffer in buffers)
    assert mine == [1, 2, 3, 4, 1001, 1002, 1003, 1004]
    assert original[3] == 1004, "segment 1's item, read for segment 0"
    assert sorted(original) == sorted(mine)


def test_windows_of_tf_agents_leave_their_group(tf, both):
    buffers = both(data_spec(tf), 2, L)
    fill(buffers, 3)
    mine, original = ([data for data, _, _ in passes(buffer, 1, 2)] for buffer in buffers)
    assert mine == [[[0, 1]], [[1000, 1001]]]
    assert original[1] == [[2, 1000]]


def test_a_failed_add_of_tf_agents_adds_an_item(tf, both):
    buffers = both(data_spec(tf), 2, L)
    for buffer in buffers:
        with pytest.raises(tf.errors.InvalidArgumentError):
            buffer.add_batch(batch(3, 0))
    assert [int(buffer.num_frames()) for buffer in buffers] == [0, 2]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_calls(tf, original, replay_buffers, data):
    batch_size = data.draw(st.integers(1, 3))
    classes = [replay_buffers.TFUniformReplayBuffer, original.TFUniformReplayBuffer]
    buffers, number = [each(data_spec(tf), batch_size, L) for each in classes], 0
    for count in data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)):
        if count == 0:
            for buffer in buffers:
                buffer.clear()
        fill(buffers, count, first=number)
        number += count
        for call in ("gather_all", "num_frames"):
            same(tf, [getattr(buffer, call)() for buffer in buffers])
        num_steps = data.draw(st.integers(1, L + 1))
        drawn = []
        for buffer in buffers:
            try:
                sequences, info = buffer.get_next(120, num_steps)
            except tf.errors.InvalidArgumentError as error:
                drawn.append(str(error)[:82])
            else:
                starts = zip(values(sequences)[:, 0].tolist(), info.ids.numpy()[:, 0].tolist(), strict=True)
                drawn.append((set(starts), info.probabilities.numpy().tolist()))
        assert drawn[0] == drawn[1]


EMPTY = "TFUniformReplayBuffer is empty. Make sure to add items before sampling the buffer."
DROPPED = "ALL data will be dropped"
INVALID = "InvalidArgumentError"  # of `tf.errors`
ERRORS = {
    "empty": (lambda buffer: buffer.get_next(1), INVALID, EMPTY),
    "too long": (lambda buffer: [fill([buffer], 3), buffer.get_next(1, 4)], INVALID, EMPTY),
    "longer than the ring": (lambda buffer: [fill([buffer], L), buffer.get_next(1, L + 1)], INVALID, EMPTY),
    "empty dataset": (lambda buffer: next(iter(buffer.as_dataset(2, 2))), INVALID, EMPTY),
    "empty pass": (passes, INVALID, ""),
    "structure": (lambda buffer: buffer.add_batch({"a": np.zeros((2, 2), np.float32)}), ValueError, ""),
    "dtype": (lambda buffer: buffer.add_batch(batch(2, 0) | {"a": float64_tensor()}), ValueError, ""),
    "batch size": (lambda buffer: buffer.add_batch(batch(1, 0)), INVALID, ""),
    "groups": (lambda buffer: buffer.as_dataset(3, single_deterministic_pass=True), ValueError, DROPPED),
    "windows": (lambda buffer: buffer.as_dataset(1, L + 1, single_deterministic_pass=True), ValueError, DROPPED),
    "preprocessing": (lambda buffer: buffer._as_dataset(1, 1, lambda items: items), NotImplementedError, ""),
}
"""Calls that fail, and the type and a part of the text of their errors."""


def float64_tensor():
    return importlib.import_module("tensorflow").zeros([2, 2], "float64")


@pytest.mark.parametrize("name", ERRORS)
def test_errors(tf, both, name):
    call, kind, text = ERRORS[name]
    for buffer in both(data_spec(tf), 2, L, dataset_drop_remainder=True):
        with pytest.raises(getattr(tf.errors, kind) if kind == INVALID else kind, match=text):
            call(buffer)


def test_element_specs(tf, both):
    """Sizes that TF-Agents leaves unknown may be known."""
    buffers = both(data_spec(tf), 4, L)
    for n, num_steps, deterministic in itertools.product([None, 3], [None, 2], [False, True]):
        mine, original = (
            buffer.as_dataset(n, num_steps, single_deterministic_pass=deterministic).element_spec for buffer in buffers
        )
        tf.nest.assert_same_structure(mine, original)
        for each, expected in zip(tf.nest.flatten(mine), tf.nest.flatten(original), strict=True):
            assert each.dtype == expected.dtype
            assert each.shape.is_compatible_with(expected.shape)


def test_tables(tf, original, replay_buffers):
    spec = {
        "x": tf.TensorSpec([2], tf.float32, "x"),
        "y": (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string, "x")),
    }
    tf.compat.v1.reset_default_graph()  # TF-Agents makes the names unique among those of earlier tests
    tables = [package.table.Table(spec, 4) for package in (replay_buffers, original)]
    same_slots = [table.slots for table in tables]
    assert dict(same_slots[0]) == dict(same_slots[1])
    written = {"x": np.ones((2, 2), np.float32), "y": (np.array([3, 4]), np.array([b"a", b"b"], object))}
    for table in tables:
        table.write([3, 0], written)
        table.write(1, [tf.constant(7, tf.int64)], ["slot"])
    for rows, slots in [(0, None), ([0, 3], None), ([[1], [2]], None), ([1, 0], {"a": "slot"}), (3, "x")]:
        same(tf, [table.read(rows, slots) for table in tables])
    assert len(tables[0].variables()) == len(tables[1].variables())
    for a, b in zip(*(table.variables() for table in tables), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_a_driver_and_an_agent_of_tf_agents(tf, replay_buffers):
    """A driver adds items in a traced loop; an agent trains on a dataset."""
    pytest.importorskip("tf_agents", exc_type=ImportError)
    module = importlib.import_module
    array_spec = module("tf_agents.specs.array_spec")
    environment = module("tf_agents.environments.tf_py_environment").TFPyEnvironment(
        module("tf_agents.environments.random_py_environment").RandomPyEnvironment(
            array_spec.BoundedArraySpec((3,), np.float32, -1, 1), array_spec.BoundedArraySpec((), np.int32, 0, 1)
        )
    )
    network = module("tf_agents.networks.q_network").QNetwork(
        environment.observation_spec(), environment.action_spec(), fc_layer_params=(4,)
    )
    agent = module("tf_agents.agents.dqn.dqn_agent").DqnAgent(
        environment.time_step_spec(), environment.action_spec(), network, tf.keras.optimizers.legacy.Adam()
    )
    agent.initialize()
    buffer = replay_buffers.TFUniformReplayBuffer(agent.collect_data_spec, environment.batch_size, 100)
    driver = module("tf_agents.drivers.dynamic_step_driver").DynamicStepDriver(
        environment, agent.collect_policy, observers=[buffer.add_batch], num_steps=20
    )
    driver.run()
    num_frames = int(buffer.num_frames())
    assert num_frames >= 20
    dataset = buffer.as_dataset(num_parallel_calls=3, sample_batch_size=8, num_steps=2).prefetch(3)
    iterator = iter(dataset)
    for _ in range(3):
        experience, info = next(iterator)
        assert type(experience).__name__ == "Trajectory"
        assert experience.observation.shape == (8, 2, 3)
        np.testing.assert_array_equal(info.probabilities, np.full(8, 1 / (num_frames - 1), np.float32))
        assert np.isfinite(agent.train(experience).loss)
    driver.run()
    assert buffer.num_frames() >= num_frames + 20
