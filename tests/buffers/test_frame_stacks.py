"""Stacks of frames that a replay buffer stores once."""

import numpy as np
from helpers.support import raises

from engram import ArraySpec
from engram.buffers import FrameStack, ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import InvalidArgumentError, SignatureError


def step(number, *, ends=False):
    """A step whose screen is full of its number."""
    screen = np.full((2, 2), number, np.uint8)
    return {
        "obs": {"screen": screen, "lives": np.int64(number)},
        "next_obs": {"screen": screen + 1, "lives": np.int64(number + 1)},
        "reward": 1.0,
        "terminated": ends,
        "truncated": False,
    }


def filled(items, frames=3, column="obs/screen"):
    """A buffer with an episode of 4 steps, and 4 steps of the next one."""
    buffer = ReplayBuffer(100, items=items, transforms=[FrameStack(column, frames)], seed=0)
    for number in [0, 1, 2, 3, 10, 11, 12, 13]:
        buffer.add(step(number, ends=number == 3))
    return buffer


def in_order(buffer):
    [batch] = buffer.epoch(100)
    order = np.argsort(batch.info.key)
    return batch.data, order


def test_transitions_have_the_stacks_of_both_observations():
    data, order = in_order(filled(Transitions(n_step=2, discount=1.0)))
    assert data["obs"]["screen"].shape == (7, 3, 2, 2)
    assert data["obs"]["screen"].dtype == np.uint8
    assert data["obs"]["screen"][order, :, 0, 0].tolist() == [
        [0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [10, 10, 10], [10, 10, 11], [10, 11, 12]
    ]  # fmt: skip
    assert data["next_obs"]["screen"][order, :, 1, 1].tolist() == [
        [0, 1, 2], [1, 2, 3], [2, 3, 4], [2, 3, 4], [10, 11, 12], [11, 12, 13], [12, 13, 14]
    ]  # fmt: skip
    assert data["obs"]["lives"].shape == (7,)


def test_all_columns_of_a_nest_are_stacked():
    data, _ = in_order(filled(Steps(), column="obs"))
    assert data["obs"]["lives"].shape == data["next_obs"]["lives"].shape == (8, 3)


def test_sequences_have_a_stack_per_step():
    buffer = filled(Sequences(length=3, burn_in=1), frames=2)
    data, order = in_order(buffer)
    assert data["obs"]["screen"].shape == (6, 4, 2, 2, 2)
    screens = data["obs"]["screen"][order, :, :, 0, 0].tolist()
    assert screens[0] == [[0, 0], [0, 0], [0, 1], [1, 2]]
    assert screens[1] == [[0, 0], [0, 1], [1, 2], [2, 3]]
    assert screens[3] == [[1, 2], [2, 3], [0, 0], [0, 0]]  # zeros follow the end of the episode
    assert screens[4] == [[10, 10], [10, 10], [10, 11], [11, 12]]


def test_steps_whose_frames_were_overwritten_are_not_sampled():
    buffer = ReplayBuffer(6, items=Steps(), transforms=[FrameStack("obs/screen", 3)], seed=0)
    for number in range(20):
        buffer.add(step(number))
    data, order = in_order(buffer)
    assert data["obs"]["screen"][order, :, 0, 0].tolist() == [[n - 2, n - 1, n] for n in (16, 17, 18, 19)]


def test_a_stack_can_be_written_to_given_arrays():
    buffer = filled(Steps())
    batch = buffer.sample(4)
    again = buffer.sample(4, out=batch.data)
    assert again.data is batch.data


def test_wrong_stacks_are_rejected():
    with raises(InvalidArgumentError, "FrameStack: `frames` must be at least 2; got 1"):
        FrameStack("obs", 1)
    with raises(InvalidArgumentError, "FrameStack: `column` must be a str; got 3 (int)"):
        FrameStack(3, 4)
    with raises(
        InvalidArgumentError,
        "`transforms` must be a sequence of engram.buffers.FrameStack(...) or HER(...); got FrameStack(column='obs', "
        "frames=4) (FrameStack)",
    ):
        ReplayBuffer(100, transforms=FrameStack("obs", 4))
    with raises(
        InvalidArgumentError,
        "each of `transforms` must be engram.buffers.FrameStack(...) or HER(...); got 'obs' (str)",
    ):
        ReplayBuffer(100, transforms=["obs"])
    with raises(
        InvalidArgumentError,
        "`transforms` must stack each column at most once; got FrameStack for `obs` and `obs/screen`",
    ):
        ReplayBuffer(100, transforms=[FrameStack("obs", 4), FrameStack("obs/screen", 4)])
    with raises(
        InvalidArgumentError,
        "`capacity` must be at least 4 for 1 environment and items of up to 1 step and 3 "
        "steps before them, for FrameStack; got 3",
    ):
        ReplayBuffer(3, transforms=[FrameStack("obs", 4)])


def test_steps_that_cannot_be_stacked_are_rejected():
    flags = {"terminated": ArraySpec((), bool), "truncated": ArraySpec((), bool)}
    frame = ArraySpec((2, 2), np.uint8)
    with raises(
        SignatureError, "FrameStack: steps have no column `screen`; got the columns `obs`, `terminated`, `truncated`"
    ):
        ReplayBuffer(100, signature={"obs": frame, **flags}, transforms=[FrameStack("screen", 4)])
    with raises(SignatureError, "FrameStack: steps have no column `screen`; got a single array"):
        ReplayBuffer(100, signature=frame, transforms=[FrameStack("screen", 4)])
    with raises(
        SignatureError,
        "transforms=[FrameStack(...)] needs steps with `terminated`, `truncated`; `terminated`, `truncated` missing; "
        "got `obs`",
    ):
        ReplayBuffer(100, signature={"obs": frame}, transforms=[FrameStack("obs", 4)])
    with raises(
        SignatureError,
        "FrameStack: columns `obs` and `next_obs` must have one dtype and shape; got uint8[2, 2] and uint8[3, 2]",
    ):
        ReplayBuffer(
            100,
            signature={"obs": frame, "next_obs": ArraySpec((3, 2), np.uint8), **flags},
            transforms=[FrameStack("obs", 4)],
        )
