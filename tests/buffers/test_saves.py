"""Saves of replay buffers: what is restored, and into which buffers."""

from collections import deque
from typing import NamedTuple

import numpy as np
import optree
import pytest
from helpers.buffer_model import row, stacked
from helpers.support import raises

from engram import ArraySpec, _engram, selectors
from engram.buffers import ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import InvalidArgumentError, PriorityError, SignatureError

KINDS = {
    "steps": Steps(),
    "transitions": Transitions(n_step=3, discount=0.9),
    "sequences": Sequences(length=3, burn_in=2),
    "continued": Sequences(length=3, burn_in=2, at_end="continue"),
}
SAMPLERS = {"uniform": selectors.Uniform(), "prioritized": selectors.Prioritized(0.6)}
NUM_ENVS = 3


def open_buffer(items, sampler, capacity=30, seed=0, **options):
    return ReplayBuffer(capacity, NUM_ENVS, items=items, sampler=sampler, seed=seed, **options)


class Driver:
    """Does the same random things to several buffers."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.number = 0

    def change(self, *buffers):
        """Adds steps, ends episodes, and changes priorities; episodes are unfinished afterwards."""
        for _ in range(6):
            env_ids = self.rng.permutation(NUM_ENVS)[: self.rng.integers(1, NUM_ENVS + 1)]
            steps = []
            count = self.rng.integers(1, 7)
            for _ in env_ids:
                ends = self.rng.random((count, 2)) < 0.1
                numbers = range(self.number, self.number + count)
                steps.append([row(n, terminated=t, truncated=u) for n, (t, u) in zip(numbers, ends, strict=True)])
                self.number += count
            columns = stacked([stacked(rows) for rows in steps])
            ended = self.rng.integers(0, NUM_ENVS, 1)
            for buffer in buffers:
                buffer.add_steps(columns, env_ids=env_ids)
                buffer.end_episodes(env_ids=ended)
        keys = self.rng.integers(0, 60, 20)
        priorities = self.rng.choice([0, 0.5, 1, 3], 20)
        for buffer in buffers:
            if isinstance(buffer._sampler, selectors.Prioritized):
                buffer.update_priorities(keys, priorities)


def assert_equal(one, other):
    """Checks that two batches have the same items."""
    assert len(one) == len(other)
    for name, column in one.data.items():
        np.testing.assert_array_equal(column, other.data[name], err_msg=name)
    for name in ("key", "env_id", "position", "probability", "priority"):
        expected, found = getattr(one.info, name), getattr(other.info, name)
        assert (expected is None) == (found is None)
        if expected is not None:
            np.testing.assert_array_equal(expected, found, err_msg=name)


def assert_equal_samples(one, other):
    """Checks that two buffers have the same items, and the same random state."""
    assert (len(one), one.num_items) == (len(other), other.num_items)
    for _ in range(2):
        assert_equal(one.sample(20), other.sample(20))
    if isinstance(one._sampler, selectors.Uniform):
        assert_equal(one.sample(10, replacement=False), other.sample(10, replacement=False))
    for batch, expected in zip(one.epoch(7), other.epoch(7), strict=True):
        assert_equal(batch, expected)


def restored(path, items=KINDS["steps"], sampler=SAMPLERS["uniform"], **options):
    buffer = open_buffer(items, sampler, seed=99, **options)
    assert buffer.restore(path) is None
    return buffer


def items_by_key(buffer):
    """All items and their priorities by key."""
    found = {}
    for batch in buffer.epoch(100):
        columns = dict(batch.data) | {} if batch.info.priority is None else batch.data | {"": batch.info.priority}
        for index, key in enumerate(batch.info.key.tolist()):
            found[key] = {name: np.asarray(column[index]).tolist() for name, column in columns.items()}
    return found


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_buffer_continues_as_if_it_had_not_been_interrupted(tmp_path, kind, sampler):
    driver, buffer = Driver(), open_buffer(KINDS[kind], SAMPLERS[sampler])
    driver.change(buffer)
    for round_number in range(4):
        if round_number == 2:
            buffer.clear()
        buffer.sample(3) if buffer.num_items else None
        size = buffer.save(tmp_path / "save")
        assert size == (tmp_path / "save").stat().st_size
        other = restored(tmp_path / "save", KINDS[kind], SAMPLERS[sampler])
        assert (len(other), other.num_items) == (len(buffer), buffer.num_items)
        if round_number != 2:
            assert_equal_samples(buffer, other)
        driver.change(buffer, other)
        assert_equal_samples(buffer, other)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [18, 29, 45])
def test_a_buffer_of_another_capacity_gets_the_newest_steps(tmp_path, kind, sampler, capacity):
    driver, buffer = Driver(1), open_buffer(KINDS[kind], SAMPLERS[sampler])
    smaller = open_buffer(KINDS[kind], SAMPLERS[sampler], capacity)
    driver.change(buffer, smaller)
    driver.change(buffer, smaller)
    buffer.save(tmp_path / "save")
    other = restored(tmp_path / "save", KINDS[kind], SAMPLERS[sampler], capacity=capacity)
    found, all_items = items_by_key(other), items_by_key(buffer)
    expected = items_by_key(smaller)
    assert found.keys() == all_items.keys() & expected.keys()
    if capacity < buffer.capacity:
        assert found.keys() == expected.keys()
    assert found == {key: all_items[key] for key in found}
    # Later steps wrap around as in any buffer.
    driver.change(other)
    assert len(other) == other.capacity


@pytest.mark.parametrize("items", ["transitions", "sequences", "continued"])
def test_items_may_differ_from_those_of_the_save(tmp_path, items):
    driver = Driver(2)
    one, other = (
        open_buffer(Transitions(n_step=1, discount=1.0), SAMPLERS["uniform"]),
        open_buffer(KINDS[items], SAMPLERS["uniform"]),
    )
    driver.change(one, other)
    one.save(tmp_path / "save")
    assert items_by_key(restored(tmp_path / "save", KINDS[items])) == items_by_key(other)


def test_a_save_of_single_steps_has_no_episodes_except_those_of_its_columns(tmp_path):
    buffer = ReplayBuffer(4, items=Steps(), seed=0)
    for number in range(6):
        buffer.add(row(number, truncated=number == 3))
    buffer.save(tmp_path / "save")
    other = ReplayBuffer(4, items=Sequences(length=2, burn_in=2), seed=0)
    other.restore(tmp_path / "save")
    found = items_by_key(other)
    # Steps 2 and 3 are one episode, 4 and 5 another: the first step that is stored counts as the first of its episode.
    assert {key: item["action"] for key, item in found.items()} == {
        2: [2, 2, 2, 3],
        3: [2, 2, 3, 0],
        4: [4, 4, 4, 5],
    }
    assert {key: item["is_first"] for key, item in found.items()} == {
        2: [True, True, True, False],
        3: [True, True, False, False],
        4: [True, True, True, False],
    }


def test_priorities_are_kept_with_prioritized_only(tmp_path):
    driver, buffer = Driver(3), open_buffer(KINDS["transitions"], SAMPLERS["prioritized"])
    driver.change(buffer)
    buffer.save(tmp_path / "save")
    uniform = restored(tmp_path / "save", KINDS["transitions"])
    assert uniform.sample(1).info.priority is None
    uniform.save(tmp_path / "uniform")
    again = restored(tmp_path / "uniform", KINDS["transitions"], SAMPLERS["prioritized"])
    assert set(again.sample(100).info.priority.tolist()) == {1.0}
    # Steps that were no items in the save get the largest priority.
    keys = buffer.sample(100).info.key
    buffer.update_priorities(keys, np.full(100, 7.0))
    buffer.save(tmp_path / "save")
    before = items_by_key(buffer)
    after = items_by_key(restored(tmp_path / "save", Transitions(n_step=1, discount=1.0), SAMPLERS["prioritized"]))
    assert after.keys() > before.keys()
    assert {key: item[""] for key, item in after.items()} == {
        key: before[key][""] if key in before else 7.0 for key in after
    }


class Step(NamedTuple):
    obs: dict
    action: np.ndarray


@pytest.mark.parametrize(
    "step",
    [
        Step(
            {"b": np.arange(6, dtype=np.uint16).reshape(2, 3), "a": (np.ones(1, np.float16), np.complex64(1j))},
            np.bool_(1),
        ),
        np.arange(3.0),
        {"empty": np.zeros((0, 2)), "x": np.int8(-1)},
        [np.zeros(70_000, np.uint8), {"": np.float32(2)}],
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_any_nest_of_steps_is_restored(tmp_path, step, declared):
    buffer = ReplayBuffer(20, seed=0)
    for _ in range(25):
        buffer.add(step)
    buffer.save(tmp_path / "save")
    signature = None
    if declared:
        first = buffer.sample(1).data
        other = ReplayBuffer(20, signature=_specs(first), seed=0)
    else:
        other = ReplayBuffer(20, signature=signature, seed=0)
    other.restore(tmp_path / "save")
    batch, expected = other.sample(5), buffer.sample(5)
    assert repr(batch) == repr(expected)
    assert type(batch.data) is type(expected.data)
    np.testing.assert_equal(batch.data, expected.data)
    other.add(step)


def _specs(nest):
    """The signature of steps of a batch."""
    leaves, _, structure = _engram.flatten(nest)
    return _engram.unflatten(structure, [ArraySpec(leaf.shape[1:], leaf.dtype) for leaf in leaves])


def test_an_empty_buffer_with_a_signature_is_saved(tmp_path):
    spec = {"x": ArraySpec((2,), "float32")}
    ReplayBuffer(5, signature=spec, seed=3).save(tmp_path / "save")
    buffer = ReplayBuffer(5, seed=4)
    buffer.restore(tmp_path / "save")
    assert (len(buffer), buffer.num_items) == (0, 0)
    with raises(SignatureError, "column `x` must have shape [2]; got [3]"):
        buffer.add({"x": np.zeros(3)})
    expected = ReplayBuffer(5, signature=spec, seed=3)
    for each in (buffer, expected):
        each.add_steps({"x": np.arange(8.0).reshape(1, 4, 2)})
    assert_equal(buffer.sample(20), expected.sample(20))


def saved(path):
    """Saves ten steps with priorities; returns their buffer."""
    buffer = ReplayBuffer(20, sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_steps({"x": np.arange(10)[None]})
    buffer.save(path)
    return buffer


def test_the_buffer_must_fit_the_save(tmp_path):
    path = tmp_path / "save"
    saved(path)
    buffer = ReplayBuffer(20, seed=0)
    buffer.add({"x": 7})
    text = (
        f"{path}: a save can be restored only into a buffer to which no step was added; create another buffer, and "
        "restore the save first"
    )
    with raises(InvalidArgumentError, text):
        buffer.restore(path)
    buffer.clear()
    with raises(InvalidArgumentError, text):
        buffer.restore(path)
    assert len(buffer) == 0
    with raises(
        InvalidArgumentError,
        f"{path}: the save has 1 environment, and this buffer has 4; create the buffer with `num_envs=1`",
    ):
        ReplayBuffer(20, 4).restore(path)
    differs = f"{path}: its steps differ from those of this buffer: "
    for signature, difference in [
        ({"x": ArraySpec((), "int32")}, "the file has `x` int64[]; this buffer has `x` int32[]"),
        (ArraySpec((2,), "int64"), "the file has `x` int64[]; this buffer has int64[2]"),
        (
            {"a": ArraySpec((3, 4), "bool"), "x": ArraySpec((), "int64")},
            "the file has `x` int64[]; this buffer has `a` bool[3, 4], `x` int64[]",
        ),
    ]:
        buffer = ReplayBuffer(20, signature=signature)
        with raises(SignatureError, differs + difference):
            buffer.restore(path)
    with raises(
        SignatureError,
        "items=Sequences(...) needs steps with `terminated`, `truncated`; `terminated`, `truncated` missing; got `x`",
    ):
        ReplayBuffer(20, items=Sequences(length=2)).restore(path)
    buffer = saved(path)
    buffer.update_priorities([3], [1e200])
    buffer.save(path)
    with pytest.raises(PriorityError, match=r"its weight, `priority \*\* 2` .* must be at most 1e290; got inf"):
        ReplayBuffer(20, sampler=selectors.Prioritized(2.0)).restore(path)
    with raises(InvalidArgumentError, "`path` must be a path, as a str or os.PathLike; got None"):
        ReplayBuffer(20).restore(None)


class Pair(NamedTuple):
    x: int


def test_the_nesting_must_be_that_of_the_save(tmp_path):
    saved(tmp_path / "save")
    buffer = ReplayBuffer(20, signature=Pair(ArraySpec((), "int64")))
    with raises(
        SignatureError,
        f"{tmp_path / 'save'}: its steps differ from those of this buffer: the columns are nested in other containers; "
        "both have `x` int64[]",
    ):
        buffer.restore(tmp_path / "save")


@optree.dataclasses.dataclass(namespace="engram")
class Registered:
    x: object
    y: object


REGISTERED = {
    "registered": lambda value: Registered(value, {"z": value}),
    "deque": lambda value: {"x": deque([value, {"y": value}])},
    "both": lambda value: deque([Registered(value, 1), value]),
}


@pytest.mark.parametrize("make", REGISTERED.values(), ids=REGISTERED)
def test_nodes_of_registered_types_are_added_before_and_after_a_restore(make, tmp_path):
    buffer = ReplayBuffer(10)
    buffer.add(make(1))
    buffer.add(make(2))
    buffer.save(tmp_path / "buffer")
    restored = ReplayBuffer(10)
    restored.restore(tmp_path / "buffer")
    with pytest.raises(SignatureError, match="all steps of a replay buffer must have the same columns"):
        restored.add([1, [2]])
    for each in (buffer, restored):
        each.add(make(3))
        columns = _engram.flatten(each.sample(3, replacement=False).data)[0]
        assert sorted(columns[0].tolist()) == [1, 2, 3]
        assert sorted(columns[-1].tolist()) == [1, 2, 3]
