"""Steps like ALF's `Experience`, whose properties read fields of another namedtuple; ALF's names of what is stored."""

from typing import Any, NamedTuple

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import FIRST, LAST, MID, ints
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

EPISODES = {"keep_episodic_info": True, "record_episodic_return": True, "gamma": 0.5}


class TimeStep(NamedTuple):
    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class Step(NamedTuple):
    time_step: TimeStep
    action: Any = ()

    step_type = property(lambda self: self.time_step.step_type)
    reward = property(lambda self: self.time_step.reward)
    discount = property(lambda self: self.time_step.discount)
    observation = property(lambda self: self.time_step.observation)
    sizes = property(lambda self: (len(self), "text"))

    def is_last(self):
        return self.step_type == LAST


def spec():
    tensor = alf_buffers.alf.TensorSpec
    time_step = TimeStep(tensor((), "int32"), tensor(()), tensor(()), {"goal": tensor((3,)), "x": tensor((), "int64")})
    return Step(time_step, tensor((2,)))


def step(x, step_type=MID, reward=0.0, discount=1.0):
    """A step of each environment, with the numbers `x`."""
    torch, size = alf_buffers.torch, (len(x),)
    return Step(
        TimeStep(
            torch.full(size, step_type, dtype=torch.int32),
            torch.full(size, reward),
            torch.full(size, discount),
            {"goal": torch.tensor(x, dtype=torch.float32)[:, None], "x": ints(x)},
        ),
        torch.zeros(len(x), 1),
    )


def filled(num_environments=1, max_length=4, **options):
    """A buffer with an episode of three steps, and the first two of another one."""
    buffer = alf_buffers.alf.ReplayBuffer(spec(), num_environments, max_length, **options)
    for x, step_type in enumerate([FIRST, MID, LAST, FIRST, MID]):
        numbers = [100 * env + x for env in range(num_environments)]
        buffer.add_batch(step(numbers, step_type, float(x), 0.0 if step_type == LAST else 1.0))
    return buffer


def test_episodes_and_returns_are_recorded():
    buffer = filled(**EPISODES)
    positions, envs = ints([1, 2, 3, 4]), ints([0] * 4)
    assert buffer.get_episode_begin_position(positions, envs).tolist() == [0, 0, 3, 3]
    assert buffer.steps_to_episode_end(positions, envs).tolist() == [1, 0, 1, 0]
    assert buffer.get_disc_0_begin_position(positions, envs).tolist() == [0, 2, 3, 3]
    batch, info = buffer.get_batch(40, 1)
    assert isinstance(batch, Step)
    assert batch.step_type.shape == (40, 1)
    known = dict(zip(info.positions.tolist(), info.discounted_return.tolist(), strict=True))
    assert known == {1: 2.0, 2: -1000.0, 3: -1000.0, 4: -1000.0}


@pytest.mark.parametrize("options", [{}, EPISODES])
def test_the_newest_step_of_a_loaded_state_is_last(options):
    loaded = alf_buffers.alf.ReplayBuffer(spec(), 2, 4, **options)
    loaded.load_state_dict(filled(2, **options).state_dict())
    assert loaded.gather_all()[0].step_type.tolist() == [[MID, LAST, FIRST, LAST]] * 2
    loaded.add_batch(step([50, 51], FIRST))
    assert loaded.gather_all()[0].step_type.tolist() == [[LAST, FIRST, LAST, FIRST]] * 2


def test_fields_are_found_by_the_names_of_properties():
    buffer = filled()
    envs, positions = ints([0, 0]), ints([2, 4])
    assert buffer.get_field("reward", envs, positions).tolist() == [2.0, 4.0]
    assert buffer.get_field("observation.x", envs, positions).tolist() == [2, 4]
    nest = buffer.get_field({"all": "observation", "end": "step_type"}, envs, positions)
    assert (nest["all"]["x"].tolist(), nest["end"].tolist()) == ([2, 4], [LAST, MID])
    assert buffer.get_field("time_step", envs, positions).reward.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("path", ["sizes", "is_last", "_fields", "count", "time_step.nothing", "reward.x"])
def test_other_attributes_are_no_fields(path):
    known = "time_step.step_type, time_step.reward, time_step.discount, time_step.observation.goal, "
    with raises(
        InvalidArgumentError,
        f"`field_name`: unknown path '{path}'; known paths: {known}time_step.observation.x, action",
    ):
        filled().get_field(path, ints([0]), ints([4]))


def test_values_of_size_1_are_repeated_along_the_axes_of_a_step():
    batch, _ = filled().get_batch(1, 4)
    assert batch.observation["goal"].tolist() == [[[1.0] * 3, [2.0] * 3, [3.0] * 3, [4.0] * 3]]
    assert batch.action.shape == (1, 4, 2)


def test_the_storage_has_the_names_of_alf():
    """They are not copies."""
    buffer = filled(2, **EPISODES)
    stored = buffer._buffer
    assert isinstance(stored, Step)
    assert stored.observation["x"].tolist() == [[4, 1, 2, 3], [104, 101, 102, 103]]
    sizes, ends = buffer._current_size, buffer._current_pos
    bounds, headless = buffer._indexed_pos, buffer._headless_indexed_pos
    returns, zeros = buffer._episodic_discounted_return, buffer._prev_disc_0_pos
    assert (sizes.tolist(), ends.tolist(), buffer._num_envs) == ([4, 4], [5, 5], 2)
    assert (bounds.tolist(), headless.tolist()) == ([[3, 0, 0, 4]] * 2, [2, 2])
    assert (returns.tolist(), zeros.tolist()) == ([[-1000.0, 2.0, -1000.0, -1000.0]] * 2, [[3, 0, 2, 3]] * 2)
    buffer.add_batch(step([5], LAST, 8.0, 0.0), ints([1]))
    assert (sizes.tolist(), ends.tolist()) == ([4, 4], [5, 6])
    assert stored.step_type.tolist() == [[MID, MID, LAST, FIRST], [MID, LAST, LAST, FIRST]]
    assert (bounds[1].tolist(), returns[1].tolist()) == ([3, 3, 0, 5], [8.0, -1000.0, -1000.0, 8.0])
    assert zeros[1].tolist() == [3, 5, 2, 3]


def test_slots_have_positions():
    buffer = filled(2)
    buffer.add_batch(step([5]), ints([1]))
    assert buffer._pad(ints([0, 1, 3]), ints([0, 0, 0])).tolist() == [4, 1, 3]
    assert buffer._pad(ints([[0, 1], [2, 3]]), ints([[0], [1]])).tolist() == [[4, 1], [2, 3]]
    assert buffer._pad(1, 1) == 5


def test_what_is_not_recorded_has_no_storage():
    with raises(AssertionError, "`_episodic_discounted_return` needs a buffer with `record_episodic_return=True`"):
        _ = filled(keep_episodic_info=True)._episodic_discounted_return
    with raises(AssertionError, "episodes need a buffer with `keep_episodic_info=True`"):
        _ = filled()._indexed_pos
