"""States: loading them, what they contain, and copies of buffers."""

import copy
import io

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import FIRST, LAST, MID, fill, ints, replay_buffer, steps, x_of
from helpers.support import raises

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

ALL = {"prioritized_sampling": True, "keep_episodic_info": True, "record_episodic_return": True, "gamma": 0.5}


def used_buffer(count=7, sequence_length=2, **options):
    """A buffer with two environments, one of them with fewer steps, and priorities."""
    buffer = replay_buffer(2, 4, **(ALL | options))
    for position in range(count):
        last = position % 3 == 2
        kind = FIRST if position % 3 == 0 else LAST if last else MID
        envs = [0, 1] if position < 3 else [0]
        batch = steps([100 * env + position for env in envs], kind, float(position), 0.0 if last else 1.0)
        buffer.add_batch(batch, ints(envs))
    buffer.get_batch(1, sequence_length)
    starts = [(0, count - 4 + age, age + 0.5) for age in range(4)] + [(1, age, age + 2.0) for age in range(3)]
    envs, positions, priorities = zip(*starts, strict=True)
    buffer.update_priority(ints([*envs]), ints([*positions]), alf_buffers.torch.tensor(priorities))
    return buffer


def saved(buffer):
    """The state after it was written to a file and read again."""
    torch = alf_buffers.torch
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def results(buffer):
    """What a program can observe of a buffer, with fixed random numbers."""
    torch = alf_buffers.torch
    torch.manual_seed(1)
    batch, info = buffer.get_batch(16, 2)
    envs, positions = info.env_ids, info.positions
    return [
        x_of(batch),
        [each.tolist() for each in (envs, positions, info.importance_weights, info.discounted_return)],
        buffer.steps_to_episode_end(positions, envs).tolist(),
        buffer.get_episode_begin_position(positions, envs).tolist(),
        buffer.get_disc_0_begin_position(positions, envs).tolist(),
        buffer.initial_priority.tolist(),
        buffer.total_size.tolist(),
    ]


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_buffer_continues_as_the_saved_one(assign):
    """Priorities, the length that they are for, their number, episodes and returns included."""
    buffer, loaded = used_buffer(), replay_buffer(2, 4, **ALL)
    fill(loaded, 9, 9)
    loaded.load_state_dict(saved(buffer), assign=assign)
    assert results(loaded) == results(buffer)
    for each in (buffer, loaded):
        each.add_batch(steps([50, 51], FIRST))
        each.add_batch(steps([60, 61], LAST, 1.0, 0.0))
        each.update_priority(ints([0]), ints([7]), alf_buffers.torch.tensor([9.0]))
    assert results(loaded) == results(buffer)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
def test_importance_weights_survive(count):
    buffer = fill(replay_buffer(1, 4, prioritized_sampling=True), count)
    loaded = replay_buffer(1, 4, prioritized_sampling=True)
    loaded.load_state_dict(saved(buffer))
    assert loaded.get_batch(9, 1)[1].importance_weights.tolist() == [1.0] * 9


def test_the_newest_step_of_each_environment_becomes_last():
    """Because the environments of the program that loads the state begin again."""
    buffer, loaded = used_buffer(count=8), replay_buffer(3, 4)
    small = replay_buffer(3, 4)
    fill(small, 6, 2, 0)
    loaded.load_state_dict(saved(small))
    assert loaded.state_dict()["step_type"].tolist() == [[1, 2, 1, 1], [1, 2, 0, 0], [0] * 4]
    assert small.state_dict()["step_type"].tolist() == [[1] * 4, [1, 1, 0, 0], [0] * 4]
    assert buffer.state_dict()["step_type"].tolist() == [[MID, LAST, FIRST, MID], [FIRST, MID, LAST, 0]]


def test_data_without_step_types_can_be_loaded():
    alf = alf_buffers.alf
    buffers = [alf.ReplayBuffer(alf.TensorSpec((), "int64"), 1, 4) for _ in range(2)]
    buffers[0].add_batch(ints([5]))
    buffers[1].load_state_dict(saved(buffers[0]))
    assert buffers[1].gather_all()[0].tolist() == [[5]]


def test_what_the_state_contains():
    state = used_buffer().state_dict()
    data = ["step_type", "reward", "discount", "nested|x"]
    assert {*state} == {
        "_current_size",
        "_current_pos",
        *data,
        "_priorities.values",
        "_priorities.sequence_length",
        "_episodes.bounds",
        "_episodes.headless_end",
        "_returns.values",
        "_returns.disc_0_begin",
    }
    assert all(state[key].shape[:2] == (2, 4) for key in data)
    assert {*replay_buffer().state_dict()} == {"_current_size", "_current_pos", *data}


def test_a_state_of_alf_without_priorities_and_episodes_can_be_loaded():
    """It has these names, with the paths of the fields."""
    torch, loaded = alf_buffers.torch, replay_buffer(1, 4)
    loaded.load_state_dict(
        {
            "_current_size": ints([2]),
            "_current_pos": ints([6]),
            "step_type": torch.tensor([[1, 1, 0, 0]], dtype=torch.int32),
            "reward": torch.tensor([[4.0, 5.0, 0.0, 0.0]]),
            "discount": torch.ones(1, 4),
            "nested|x": ints([[[4, -4], [5, -5], [0, 0], [0, 0]]]),
        }
    )
    batch, info = loaded.gather_all()
    assert (x_of(batch), batch["step_type"].tolist(), info.positions.tolist()) == ([[4, 5]], [[MID, LAST]], [4])


def test_priorities_that_were_not_saved_are_those_of_new_steps():
    plain = fill(replay_buffer(1, 4), 6)
    loaded = replay_buffer(1, 4, prioritized_sampling=True, initial_priority=3.0)
    loaded.load_state_dict(saved(plain), strict=False)
    assert loaded.initial_priority == 3.0
    assert {*loaded.get_batch(40, 1)[1].positions.tolist()} == {2, 3, 4, 5}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("_current_size", 5, "_current_size must be from 0 to _current_pos and to 4, the `max_length`"),
        ("_current_size", -1, "_current_size must be from 0 to _current_pos and to 4, the `max_length`"),
        ("_current_pos", 2, "_current_size must be from 0 to _current_pos and to 4, the `max_length`"),
        ("_priorities.values", -1.0, "_priorities.values must be from 0 to 1e+30, and _priorities.sequence_length"),
        ("_priorities.values", float("nan"), "_priorities.values must be from 0 to 1e+30, and _priorities."),
        ("_priorities.sequence_length", 0, "_priorities.values must be from 0 to 1e+30, and _priorities."),
    ],
)
def test_damaged_states_are_rejected(key, value, text):
    state = saved(used_buffer())
    state[key].view(-1)[0] = value
    loaded = fill(replay_buffer(2, 4, **ALL), 2, 2)
    with pytest.raises(RuntimeError) as caught:
        loaded.load_state_dict(state)
    assert text in str(caught.value)
    assert loaded.get_batch(4, 2)[0] is not None


def test_priorities_of_impossible_starts_are_dropped():
    state = saved(used_buffer(sequence_length=1))
    state["_priorities.values"].fill_(2.0)
    loaded = replay_buffer(2, 4, **ALL)
    loaded.load_state_dict(state)
    assert loaded._priorities.values.tolist() == [2.0] * 7 + [0.0]
    assert loaded._priorities.non_zero() == 7


@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_buffers_can_be_copied(how):
    torch, buffer = alf_buffers.torch, used_buffer()
    if how == "deepcopy":
        clone = copy.deepcopy(buffer)
    else:
        file = io.BytesIO()
        torch.save(buffer, file)
        file.seek(0)
        clone = torch.load(file, weights_only=False)
    assert results(clone) == results(buffer)
    before = results(buffer)
    clone.add_batch(steps([7, 8]))
    assert results(buffer) == before
    assert results(clone) != before


@pytest.mark.parametrize("assign", [False, True])
def test_shared_buffers_stay_shared(assign):
    loaded = replay_buffer(2, 4, allow_multiprocess=True, **ALL)
    loaded.load_state_dict(saved(used_buffer()), assign=assign)
    assert all(value.is_shared() for value in loaded.state_dict().values())


def test_shared_buffers_cannot_be_copied():
    buffer = replay_buffer(allow_multiprocess=True)
    text = "a buffer with `allow_multiprocess=True` cannot be copied or pickled; inherit it by fork"
    with raises(TypeError, text):
        copy.deepcopy(buffer)


@pytest.mark.parametrize("enabled", [False, True])
def test_whether_the_checkpoints_of_alf_contain_the_buffer(enabled):
    """They read this attribute."""
    buffer = replay_buffer(enable_checkpoint=enabled, name="replay")
    assert (buffer._alf_checkpoint_enabled, buffer.name) == (enabled, "replay")
    assert "reward" in buffer.state_dict()
