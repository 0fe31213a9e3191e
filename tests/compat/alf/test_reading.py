"""Reading stored steps: all of them, or fields of some."""

from typing import Any, NamedTuple

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import fill, ints, replay_buffer, steps, x_of
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("convert", [True, False])
def test_all_steps_are_gathered_in_order(count, convert):
    buffer = replay_buffer(2, 4)
    for position in range(count):
        buffer.add_batch(steps([position, 100 + position]))
    data, info = buffer.gather_all(convert_to_default_device=convert)
    first = max(0, count - 4)
    assert x_of(data) == [[*range(first, count)], [*range(100 + first, 100 + count)]]
    assert data["nested"]["x"].shape == (2, min(count, 4), 2)
    assert (info.env_ids.tolist(), info.positions.tolist()) == ([0, 1], [first, first])
    assert info.replay_buffer is buffer
    assert (info.importance_weights, info.discounted_return) == ((), ())
    assert buffer.total_size.tolist() == 2 * min(count, 4)


def test_gathered_steps_are_copies():
    """Also if no seam is between them, where ALF returns a view."""
    buffer = fill(replay_buffer(1, 4), 4)
    data, _ = buffer.gather_all()
    fill(buffer, 4)
    assert x_of(data) == [[0, 1, 2, 3]]


def test_the_earliest_steps_can_be_left_out():
    buffer = fill(replay_buffer(1, 4, num_earliest_frames_ignored=2), 6)
    data, info = buffer.gather_all(ignore_earliest_frames=True)
    assert (x_of(data), info.positions.tolist()) == ([[4, 5]], [4])
    assert x_of(buffer.gather_all()[0]) == [[2, 3, 4, 5]]
    buffer.remove_up_to(2)
    with raises(
        AssertionError, "each environment must have more than 2 steps, the `num_earliest_frames_ignored`; got 2"
    ):
        buffer.gather_all(ignore_earliest_frames=True)


def test_environments_must_be_in_step_to_gather_all():
    buffer = fill(replay_buffer(2, 4), 2, 1)
    with raises(AssertionError, "all environments must have the same number of steps; got [2, 1]"):
        buffer.gather_all()
    fill(buffer, 4, 3)
    with raises(AssertionError, "all environments must have the same current position; got [6, 4]"):
        buffer.gather_all()


# --- fields ---------------------------------------------------------------------------------------


def test_fields_of_some_steps():
    buffer = fill(replay_buffer(2, 4), 6, 3)
    envs, positions = ints([0, 1, 0]), ints([5, 0, 2])
    assert buffer.get_field("nested.x", envs, positions).tolist() == [[5, -5], [100, -100], [2, -2]]
    assert x_of({"nested": buffer.get_field("nested", envs, positions)}) == [5, 100, 2]
    for whole in (None, ""):
        step = buffer.get_field(whole, envs, positions)
        assert ({*step}, x_of(step)) == ({"discount", "nested", "reward", "step_type"}, [5, 100, 2])
    nest = buffer.get_field(Pair("reward", {"x": "nested.x"}), envs, positions)
    assert isinstance(nest, Pair)
    assert (nest.first.tolist(), nest.second["x"][:, 0].tolist()) == ([0.0] * 3, [5, 100, 2])


def test_environments_and_positions_are_broadcast():
    buffer = fill(replay_buffer(2, 4), 4, 4)
    field = buffer.get_field("nested.x", ints([[0], [1]]), ints([1, 2, 3]))
    assert field[..., 0].tolist() == [[1, 2, 3], [101, 102, 103]]
    assert buffer.get_field("reward", 1, 2).shape == ()


def test_a_field_is_a_copy():
    buffer = fill(replay_buffer(1, 2), 2)
    field = buffer.get_field("nested.x", ints([0]), ints([0]))
    fill(buffer, 2)
    assert field.tolist() == [[0, 0]]


def test_fields_in_sequences_and_tuples():
    alf = alf_buffers.alf
    buffer = alf.ReplayBuffer((Pair(alf.TensorSpec(()), [alf.TensorSpec((2,))]),), 1)
    buffer.add_batch((Pair([1.0], [alf_buffers.torch.tensor([[2.0, 3.0]])]),))
    assert buffer.get_field("0.first", ints([0]), ints([0])).tolist() == [1.0]
    assert buffer.get_field("0.second.0", ints([0]), ints([0])).tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
def test_only_stored_steps_can_be_read(count):
    """In ALF, a ring that is not full returns steps that were never added, or were removed."""
    buffer = fill(replay_buffer(1, 4), count)
    oldest = max(0, count - 4)
    assert buffer.get_field("nested.x", 0, ints([*range(oldest, count)]))[:, 0].tolist() == [*range(oldest, count)]
    for bad in (oldest - 1, count):
        stored = f"positions {oldest} to {count - 1}"
        with raises(AssertionError, f"each of `positions` must be stored; environment 0 has {stored}; got {bad}"):
            buffer.get_field("reward", ints([0]), ints([bad]))
    buffer.remove_up_to(4)
    with raises(AssertionError, f"each of `positions` must be stored; environment 0 has no steps; got {count - 1}"):
        buffer.get_field("reward", ints([0]), ints([count - 1]))


def test_unknown_fields_are_rejected():
    buffer = fill(replay_buffer(), 1)
    for path in ("nested.y", "reward.x", "other"):
        known = "discount, nested.x, reward, step_type"
        with raises(InvalidArgumentError, f"`field_name`: unknown path '{path}'; known paths: {known}"):
            buffer.get_field(path, ints([0]), ints([0]))


# --- what programs do with it ---------------------------------------------------------------------


def test_hindsight_goals():
    """A future step of the same episode, as hindsight experience replay draws it."""
    torch = alf_buffers.torch
    torch.manual_seed(0)
    buffer = replay_buffer(2, 16, keep_episodic_info=True)
    for position in range(20):
        buffer.add_batch(steps([position, 100 + position], [0 if position % 6 == 0 else 1, 0 if position == 3 else 1]))
    _, info = buffer.get_batch(64, 2)
    last = info.positions + 1
    distance = info.replay_buffer.steps_to_episode_end(last, info.env_ids)
    future = last + (torch.rand(64) * (distance + 1)).to(torch.int64)
    goals = info.replay_buffer.get_field("nested.x", info.env_ids, future)[:, 0]
    assert (goals == future + 100 * info.env_ids).all()
    ends = torch.where(info.env_ids == 0, torch.clamp(last // 6 * 6 + 5, max=19), ints(19))
    assert ((future >= last) & (future <= ends)).all()


def test_stacked_frames_repeat_the_first_one_of_the_episode():
    buffer = replay_buffer(1, 8, num_earliest_frames_ignored=2)
    for position in range(11):
        buffer.add_batch(steps([position], 0 if position in (0, 7) else 1))
    _, info = buffer.get_batch(6, 1)
    previous = info.positions[:, None] + ints([-2, -1, 0])
    begin = buffer.get_episode_begin_position(info.positions, info.env_ids)
    previous = previous.maximum(begin[:, None])
    assert (previous >= buffer.get_earliest_position(info.env_ids)[:, None]).all()
    stacked = buffer.get_field("nested.x", info.env_ids[:, None], previous)[..., 0].tolist()
    expected = {5: [3, 4, 5], 6: [4, 5, 6], 7: [7, 7, 7], 8: [7, 7, 8], 9: [7, 8, 9], 10: [8, 9, 10]}
    assert stacked == [expected[position] for position in info.positions.tolist()]
