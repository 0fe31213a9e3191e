"""Arguments of `HER`, columns of steps and results of functions that are rejected, and errors that functions raise."""

import numpy as np
import pytest
from helpers.goal_steps import NAMES, goal_step, reward_of, stack
from helpers.support import raises

from engram import ArraySpec, selectors
from engram.buffers import HER, Episodes, FrameStack, ReplayBuffer, Sequences, Transitions
from engram.errors import InvalidArgumentError, SignatureError


def test_wrong_arguments_are_rejected():
    def her(**options):
        return HER(reward_of, **options)

    for options, text in [
        ({"strategy": "random"}, 'HER: `strategy` must be "future", "final" or "episode"; got \'random\' (str)'),
        ({"relabel": 4}, "HER: `relabel` must be from 0 to 1; got 4"),
        ({"goal": 1}, "HER: `goal` must be a str; got 1 (int)"),
        ({"achieved": None}, "HER: `achieved` must be a str; got None"),
        ({"terminated": True}, "HER: `terminated` must be a function or None; got True (bool)"),
    ]:
        with raises(InvalidArgumentError, text):
            her(**options)
    for achieved in ("obs/goal", "next_obs/goal"):
        text = (
            "HER: `achieved` must not be the `goal` 'obs/goal' or its entry of the next step, 'next_obs/goal', which "
            f"HER replaces; got '{achieved}'"
        )
        with raises(InvalidArgumentError, text):
            her(goal="obs/goal", achieved=achieved)
    with raises(InvalidArgumentError, "HER: `reward` must be a function of `achieved` and `goal`; got 1.0"):
        HER(1.0)
    for items in (Transitions(n_step=2, discount=1.0), Sequences(length=2), Episodes(max_length=3)):
        with raises(
            InvalidArgumentError,
            f"HER needs items of single steps: items=Steps() or Transitions(n_step=1, ...); got {items!r}",
        ):
            ReplayBuffer(10, items=items, transforms=[her()])
    with raises(InvalidArgumentError, "`transforms` must have at most one HER; got 2"):
        ReplayBuffer(10, transforms=[her(), her()])
    for column, other in [
        ("obs", "obs/desired_goal"),
        ("obs/desired_goal", "obs/desired_goal"),
        ("obs/achieved_goal", "next_obs/achieved_goal"),
    ]:
        with raises(
            InvalidArgumentError,
            f"`transforms` must not stack the goals of HER; got FrameStack for `{column}`, and HER for `{other}`",
        ):
            ReplayBuffer(10, transforms=[her(), FrameStack(column, 2)])


def test_wrong_columns_are_rejected():
    flags = {"terminated": ArraySpec((), bool), "truncated": ArraySpec((), bool)}
    goal, reward = ArraySpec((2,), np.float32), {"reward": ArraySpec((), np.float32)}
    for following in (goal, {"a": goal}):
        observation = {"desired_goal": following, "achieved_goal": following}
        signature = {"obs": observation, "next_obs": observation, **reward, **flags}
        with raises(
            SignatureError,
            "HER: `achieved` must be the goal that is achieved after the step's action; got `obs/achieved_goal`, but "
            "steps also have `next_obs/achieved_goal`; use that",
        ):
            ReplayBuffer(10, signature=signature, transforms=[HER(reward_of, achieved="obs/achieved_goal")])
    for signature, text in [
        (
            {"achieved": goal, **flags},
            "HER: steps have no entry `goal`; got the columns `achieved`, `terminated`, `truncated`",
        ),
        (
            {"goal": goal, **flags},
            "HER: steps have no entry `achieved`; got the columns `goal`, `terminated`, `truncated`",
        ),
        (
            {"goal": goal, "achieved": goal, **flags},
            "HER: steps have no entry `reward`; got the columns `achieved`, `goal`, `terminated`, `truncated`",
        ),
        (
            {"goal": goal, "achieved": goal, **reward},
            (
                "transforms=[HER(...)] needs steps with `terminated`, `truncated`; `terminated`, `truncated` missing; "
                "got `achieved`, `goal`, `reward`"
            ),
        ),
        (
            {"goal": goal, "achieved": goal, "reward": goal, **flags},
            "HER: column `reward` must be one number per step; got float32[2]",
        ),
        (
            {"goal": goal, "achieved": goal, "reward": {"a": goal, "b": goal}, **flags},
            "HER: column `reward` must be one number per step; got a nest",
        ),
        (
            {"goal": goal, "achieved": goal, "reward": {"a": ArraySpec((), float)}, **flags},
            "HER: column `reward` must be one number per step; got a nest",
        ),
        (
            {"goal": {"a": goal}, "achieved": {"b": goal}, **reward, **flags},
            (
                "HER: `goal` and `achieved` of a step must have the same structure; got the columns `goal/a` and "
                "`achieved/b`"
            ),
        ),
        (
            {"goal": goal, "achieved": ArraySpec((3,), np.float32), **reward, **flags},
            "HER: columns `goal` and `achieved` must have one dtype and shape; got float32[2] and float32[3]",
        ),
        (
            {"goal": goal, "next_goal": ArraySpec((2,), float), "achieved": goal, **reward, **flags},
            "HER: columns `next_goal` and `achieved` must have one dtype and shape; got float64[2] and float32[2]",
        ),
    ]:
        with raises(SignatureError, text):
            ReplayBuffer(10, signature=signature, transforms=[HER(reward_of, **NAMES)])


def test_wrong_results_of_functions_are_rejected():
    def sample(reward=reward_of, terminated=None):
        her = HER(reward, terminated=terminated, relabel=1.0, **NAMES)
        buffer = ReplayBuffer(10, transforms=[her], seed=0)
        buffer.add(goal_step(1))
        buffer.sample(4)

    for result, got in [
        (1.0, "[]"),
        (np.zeros((4, 1)), "[4, 1]"),
        (np.zeros(5), "[5]"),
        (None, "None"),
        ({"reward": 1.0}, "{'reward': 1.0}"),
        ([1.0, [1.0, 2.0]], "[1.0, [1.0, 2.0]]"),
    ]:
        text = (
            f"must return one value per item, shape [4]; it returned {got}; it is called once for all items of a batch"
        )
        with raises(InvalidArgumentError, f"HER: `reward` {text}"):
            sample(lambda *_, result=result: result)
        with raises(InvalidArgumentError, f"HER: `terminated` {text}"):
            sample(terminated=lambda *_, result=result: result)
    masked = np.ma.masked_equal([0.0, 1.0, 2.0, 3.0], 2.0)
    with raises(InvalidArgumentError, "HER: `reward` must return a value for each item; it returned a masked array"):
        sample(lambda *_: masked)
    with raises(InvalidArgumentError, "HER: `reward` must return float64 or values of the same kind; it returned <U1"):
        sample(lambda *_: ["x"] * 4)
    with raises(
        InvalidArgumentError, "HER: `reward` must return float64 or values of the same kind; it returned complex128"
    ):
        sample(lambda achieved, _: achieved * 1j)
    with raises(InvalidArgumentError, "HER: `terminated` must return bools; it returned int64"):
        sample(terminated=lambda achieved, _: achieved)


def test_rewards_are_in_the_range_of_their_column():
    def sample(rewards, dtype):
        buffer = ReplayBuffer(10, transforms=[HER(lambda *_: np.array(rewards), relabel=1.0, **NAMES)], seed=0)
        buffer.add(goal_step(1) | {"reward": dtype(1)})
        return buffer.sample(2).data["reward"]

    for rewards, dtype, text in [
        ([1, 300], np.int8, "HER: `reward` returned 300, which int8 cannot hold"),
        ([1, -1], np.uint8, "HER: `reward` returned -1, which uint8 cannot hold"),
        ([1.5, 2], np.int8, "HER: `reward` must return int8 or values of the same kind; it returned float64"),
    ]:
        with raises(InvalidArgumentError, text):
            sample(rewards, dtype)
    for rewards, dtype in [([-128, 127], np.int8), ([0, 255], np.uint8), ([1, 2], np.float32)]:
        assert sample(rewards, dtype).tolist() == rewards
        assert sample(rewards, dtype).dtype == dtype


def test_functions_are_called_even_if_no_item_got_another_goal():
    def sample(relabel):
        buffer = ReplayBuffer(10, transforms=[HER(lambda *_: 1 / 0, relabel=relabel, **NAMES)], seed=0)
        buffer.add(goal_step(1))
        return buffer.sample(1).info.relabeled.tolist()

    with pytest.raises(ZeroDivisionError):
        sample(1e-9)
    assert sample(0) == [False]


@pytest.mark.parametrize("failing", ["reward", "terminated"])
def test_a_buffer_continues_after_an_error_of_a_function(failing):
    is_failing = False

    def fails():
        if is_failing:
            raise ZeroDivisionError("of the test")

    def create(check):
        her = HER(
            lambda achieved, goal: (check() if failing == "reward" else None, reward_of(achieved, goal))[1],
            terminated=lambda achieved, goal: (check() if failing == "terminated" else None, achieved == goal)[1],
            **NAMES,
        )
        buffer = ReplayBuffer(
            30, items=Transitions(discount=0.5), sampler=selectors.Prioritized(0.5), transforms=[her], seed=0
        )
        buffer.add_steps(stack([goal_step(number) for number in range(40)]))
        return buffer

    buffer, other = create(fails), create(lambda: None)
    out = buffer.sample(8).data
    other.sample(8)
    is_failing = True
    epoch = buffer.epoch(8)
    for call in (lambda: next(epoch), lambda: buffer.sample(8), lambda: buffer.sample(8, out=out)):
        with pytest.raises(ZeroDivisionError, match="of the test"):
            call()
    is_failing = False
    assert list(epoch) == []
    next(other.epoch(8)), other.sample(8), other.sample(8)
    for each in (buffer, other):
        each.add(goal_step(40))
        assert (len(each), each.num_items) == (30, 30)
        assert each.update_priorities(np.arange(11, 41), np.arange(30.0)) == 30
    batch, expected = buffer.sample(50, out=buffer.sample(50).data), (other.sample(50), other.sample(50))[1]
    for name, column in expected.data.items():
        np.testing.assert_array_equal(batch.data[name], column)


def test_functions_can_use_the_buffer():
    def reward(achieved, goal):
        buffer.add(goal_step(len(buffer)))
        return reward_of(achieved, goal)

    buffer = ReplayBuffer(30, transforms=[HER(reward, relabel=1.0, **NAMES)], seed=0)
    buffer.add(goal_step(0))
    assert [len(batch) for batch in (buffer.sample(2), buffer.sample(2))] == [2, 2]
    assert len(buffer) == 3
