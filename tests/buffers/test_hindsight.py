"""Goals are replaced by achieved ones: which steps they are from, how often, and the rewards that follow."""

import numpy as np
import pytest
from buffer_model import Env
from hypothesis import given
from hypothesis import strategies as st
from support import raises

from engram import ArraySpec, selectors
from engram.buffers import HER, Episodes, FrameStack, ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import InvalidArgumentError, SignatureError
from engram.gymnasium import BufferWriter

STRATEGIES = ("future", "final", "episode")
NAMES = {"goal": "goal", "achieved": "achieved"}


def reward_of(achieved, goal):
    """A reward that differs for all pairs of goals of a test."""
    return achieved * 1000.0 + goal


def goal_step(number, *, terminated=False, truncated=False):
    """A step that achieves a goal of its own; what it should have achieved is negative."""
    return {
        "x": number,
        "goal": -number - 1,
        "achieved": number,
        "reward": 0.25,
        "next_obs": number + 0.5,
        "terminated": terminated,
        "truncated": truncated,
    }


def stack(steps):
    """Steps of one environment with the leading axes of `add_steps`."""
    return {name: np.array([[each[name] for each in steps]]) for name in steps[0]}


def check(batch, envs, strategy):
    """Checks the goals and rewards of a batch: each step has the number `position * len(envs) + env_id`, its key."""
    relabeled = batch.info.relabeled
    assert relabeled.dtype == bool
    assert len(relabeled) == len(batch)
    np.testing.assert_array_equal(batch.data["x"], batch.info.key)
    np.testing.assert_array_equal(batch.data["achieved"], batch.info.key)
    rows = zip(batch.info.key, batch.info.env_id, batch.info.position, relabeled, strict=True)
    for index, (key, env, position, is_new) in enumerate(rows):
        goal, reward = batch.data["goal"][index], batch.data["reward"][index]
        if is_new:
            allowed = {each * len(envs) + env for each in envs[env].achieved_by(int(position), strategy)}
            assert goal in allowed
            assert reward == np.float32(reward_of(np.float64(key), goal))
        else:
            assert goal == -int(key) - 1
            assert reward == 0.25


@given(st.data())
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_agree_with_the_model(strategy, data):
    num_envs, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    sampler = data.draw(st.sampled_from([selectors.Uniform(), selectors.Prioritized(0.5)]))
    items = data.draw(st.sampled_from([Steps(), Transitions(discount=0.5)]))
    her = HER(reward_of, strategy=strategy, relabel=data.draw(st.sampled_from([0.0, 0.5, 1.0])), **NAMES)
    buffer = ReplayBuffer(length * num_envs, num_envs, items=items, sampler=sampler, transforms=[her], seed=1)
    envs = [Env(length) for _ in range(num_envs)]
    for _ in range(data.draw(st.integers(1, 12))):
        action, env = data.draw(st.integers(0, 9)), data.draw(st.integers(0, num_envs - 1))
        if action == 0:
            buffer.clear()
            for each in envs:
                each.clear()
        elif action == 1:
            buffer.end_episodes(env_ids=[env])
            envs[env].end_episode()
        else:
            steps = []
            for _ in range(data.draw(st.integers(1, 20))):
                number = len(envs[env].rows) * num_envs + env
                ends = data.draw(st.sampled_from([(False, False)] * 5 + [(True, False), (False, True)]))
                steps.append(goal_step(number, terminated=ends[0], truncated=ends[1]))
                envs[env].add(steps[-1])
            buffer.add_steps(stack(steps), env_ids=[env])
        if len(buffer):
            check(buffer.sample(10), envs, strategy)
            for batch in buffer.epoch(7):
                check(batch, envs, strategy)


def probabilities(strategy, position, episode):
    """Probability with which each step of an episode provides the goal of the step at `position`."""
    if strategy == "final":
        return {episode[-1]: 1.0}
    if strategy == "future":
        later = [each for each in episode if each >= position]
        return dict.fromkeys(later, 1 / len(later))
    return dict.fromkeys(episode, 1 / len(episode))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sampler", [selectors.Uniform(), selectors.Prioritized(1.0)])
def test_goals_have_the_documented_distribution(strategy, sampler):
    # 25 steps in a ring of 20: the rest of an episode, whose first two steps were overwritten, one that wraps, and one
    # that has not ended.
    her = HER(reward_of, strategy=strategy, relabel=0.8, **NAMES)
    buffer = ReplayBuffer(20, transforms=[her], sampler=sampler, seed=3)
    buffer.add_steps(stack([goal_step(number, truncated=number in {2, 9, 21}) for number in range(3)]))
    buffer.add_steps(stack([goal_step(number, truncated=number in {9, 21}) for number in range(3, 25)]))
    episodes = [range(5, 10), range(10, 22), range(22, 25)]
    draws, batches = 0, [buffer.sample(1000) for _ in range(100)]
    x, goal, relabeled = (
        np.concatenate(each)
        for each in zip(*((b.data["x"], b.data["goal"], b.info.relabeled) for b in batches), strict=True)
    )
    draws = len(x)
    assert abs(relabeled.mean() - 0.8) < 4 * (0.16 / draws) ** 0.5
    statistic = degrees = 0
    for episode in episodes:
        for position in episode:
            chosen = goal[relabeled & (x == position)]
            expected = probabilities(strategy, position, list(episode))
            found, counts = np.unique(chosen, return_counts=True)
            assert set(found.tolist()) == set(expected)
            mean = len(chosen) * np.array([expected[each] for each in found.tolist()])
            statistic += ((counts - mean) ** 2 / mean).sum()
            degrees += len(expected) - 1
    # Mean and standard deviation of the chi-square distribution.
    assert statistic <= degrees + 4 * (2 * degrees) ** 0.5
    # Whether an item gets another goal does not depend on the item.
    shares = [relabeled[x == position].mean() for position in range(5, 25)]
    assert abs(np.array(shares) - 0.8).max() < 5 * (0.16 / (draws / 20)) ** 0.5


class Reach:
    """What `reset` and `step` of four environments return: goals as in Gymnasium-Robotics."""

    num_envs = 4
    metadata = {"autoreset_mode": "NEXT_STEP"}  # noqa: RUF012, as in Gymnasium

    def __init__(self):
        self.time = 0

    def observe(self):
        where = np.array([[env, self.time] for env in range(self.num_envs)], np.float32)
        goal = np.full((self.num_envs, 2), 99, np.float32)
        return {"observation": where * 2, "achieved_goal": where, "desired_goal": goal}

    def step(self):
        self.time += 1
        ended = np.full(self.num_envs, self.time % 10 == 0)
        return self.observe(), np.full(self.num_envs, -1.0), np.zeros(self.num_envs, bool), ended, {}


def test_the_defaults_are_the_names_of_gymnasium_robotics():
    def reward(achieved, goal):
        return -(np.abs(achieved - goal).max(axis=-1) > 0.5).astype(np.float32)

    envs, transforms = Reach(), [HER(reward, relabel=1.0)]
    buffer = ReplayBuffer(1000, 4, items=Transitions(discount=0.9), transforms=transforms, seed=0)
    writer = BufferWriter(buffer, envs)
    writer.reset(envs.observe())
    for _ in range(9):
        writer.step(np.zeros(4, int), *envs.step())
    batch = buffer.sample(500)
    obs, next_obs = batch.data["obs"], batch.data["next_obs"]
    np.testing.assert_array_equal(obs["desired_goal"], next_obs["desired_goal"])
    assert (obs["desired_goal"][:, 0] == obs["achieved_goal"][:, 0]).all()  # of the same environment
    assert (obs["desired_goal"][:, 1] > obs["achieved_goal"][:, 1]).all()
    reached = (next_obs["achieved_goal"] == next_obs["desired_goal"]).all(axis=1)
    assert 50 < reached.sum() < 450
    np.testing.assert_array_equal(batch.data["reward"], np.where(reached, 0, -1))
    assert batch.data["reward"].dtype == np.float32
    assert set(batch.data["discount"].tolist()) == {np.float32(0.9)}


@pytest.mark.parametrize("items", [Steps(), Transitions(discount=0.5)])
def test_episodes_can_terminate_with_the_new_goal(items):
    her = HER(lambda a, g: (a == g) * 1.0, terminated=lambda a, g: a == g, relabel=0.5, **NAMES)
    buffer = ReplayBuffer(100, items=items, transforms=[her], seed=0)
    buffer.add_steps(stack([goal_step(number, terminated=number == 9) for number in range(12)]))
    batch = buffer.sample(1000)
    reached = batch.data["achieved"] == batch.data["goal"]
    relabeled = batch.info.relabeled
    np.testing.assert_array_equal(batch.data["reward"], np.where(relabeled, reached, 0.25))
    terminated = np.where(relabeled, reached, batch.data["x"] == 9)
    if items == Steps():
        np.testing.assert_array_equal(batch.data["terminated"], terminated)
    else:
        np.testing.assert_array_equal(batch.data["discount"], np.where(terminated, 0, 0.5).astype(np.float32))


def test_functions_get_the_entries_of_the_whole_batch():
    seen = []

    def reward(achieved, goal):
        seen.append((achieved, goal))
        return np.zeros(len(goal["a"]), np.float32)

    her = HER(reward, goal="obs/goal", achieved="next_obs/reached", relabel=0.5)
    buffer = ReplayBuffer(10, transforms=[her], seed=0)
    goals = {"a": np.zeros(3, np.int8), "b": (1.0, [np.arange(2)])}
    buffer.add(
        {
            "obs": {"goal": goals, "x": 0},
            "next_obs": {"reached": goals},
            "reward": 1.0,
            "terminated": True,
            "truncated": False,
        }
    )
    batch = buffer.sample(5)
    [(achieved, goal)] = seen
    assert achieved["a"] is batch.data["next_obs"]["reached"]["a"]
    assert goal["b"][1][0].shape == (5, 2)
    assert batch.data["reward"].tolist() == np.where(batch.info.relabeled, 0, 1).tolist()


def test_goals_depend_only_on_the_seed(tmp_path):
    def create(seed):
        her = HER(reward_of, **NAMES)
        return ReplayBuffer(100, items=Transitions(discount=0.5), transforms=[her], seed=seed)

    def draw(buffer):
        batches = [buffer.sample(50), *buffer.epoch(20)]
        return [batch.data["goal"].tolist() for batch in batches]

    buffers = [create(seed) for seed in (1, 1, 2)]
    for buffer in buffers:
        buffer.add_steps(stack([goal_step(number, truncated=number % 7 == 0) for number in range(60)]))
    first, second, third = (draw(buffer) for buffer in buffers)
    assert first == second != third
    buffers[0].save(tmp_path / "save")
    restored = create(None)
    restored.restore(tmp_path / "save")
    assert draw(restored) == draw(buffers[0])


def test_batches_can_be_written_to_given_arrays():
    her = HER(reward_of, relabel=0.5, **NAMES)
    buffer = ReplayBuffer(100, items=Transitions(discount=0.5), transforms=[her], seed=0)
    env = Env(100)
    for number in range(50):
        env.add(goal_step(number))
    buffer.add_steps(stack(env.rows))
    batch = buffer.sample(30)
    again = buffer.sample(30, out=batch.data)
    assert again.data is batch.data
    check(again, [env], "future")


def test_large_goals_are_copied_by_several_threads():
    her = HER(lambda achieved, _: achieved[:, 0, 0] * 1.0, strategy="final", relabel=0.5, **NAMES)
    buffer = ReplayBuffer(100, transforms=[her], seed=0)
    for number in range(60):
        screen = np.full((100, 100), number, np.uint8)
        step = {"x": number, "goal": screen + 100, "achieved": screen, "reward": 0.0, "terminated": False}
        buffer.add({**step, "truncated": number % 10 == 9})
    batch = buffer.sample(500)
    x = batch.data["x"]
    expected = np.where(batch.info.relabeled, x // 10 * 10 + 9, x + 100)
    assert (batch.data["goal"] == expected[:, None, None]).all()


def test_other_columns_can_be_stacked():
    her = HER(reward_of, relabel=1.0, strategy="final", **NAMES)
    transforms = [FrameStack("x", 2), her]
    for order in (transforms, transforms[::-1]):
        buffer = ReplayBuffer(10, transforms=order, seed=0)
        buffer.add_steps(stack([goal_step(number) for number in range(20)]))
        batch = buffer.sample(50)
        assert (batch.data["x"] == np.stack([batch.info.position - 1, batch.info.position], 1)).all()
        assert (batch.data["goal"] == 19).all()


def test_buffers_without_her_state_nothing_about_goals():
    buffer = ReplayBuffer(10, seed=0)
    buffer.add(goal_step(1))
    assert buffer.sample(1).info.relabeled is None


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
    for signature, text in [
        ({"achieved": goal, **flags}, "HER: steps have no entry `goal`; got `achieved`, `terminated`, `truncated`"),
        ({"goal": goal, **flags}, "HER: steps have no entry `achieved`; got `goal`, `terminated`, `truncated`"),
        (
            {"goal": goal, "achieved": goal, **flags},
            "HER: steps have no entry `reward`; got `achieved`, `goal`, `terminated`, `truncated`",
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

    with raises(InvalidArgumentError, "HER: `reward` must return one value per item, shape [4]; it returned []"):
        sample(lambda *_: 1.0)
    with raises(InvalidArgumentError, "HER: `reward` must return one value per item, shape [4]; it returned [4, 1]"):
        sample(lambda achieved, goal: reward_of(achieved, goal)[:, None])
    with raises(
        InvalidArgumentError, "HER: `reward` must return float64 or values of the same kind; it returned complex128"
    ):
        sample(lambda achieved, _: achieved * 1j)
    with raises(InvalidArgumentError, "HER: `terminated` must return bools; it returned int64"):
        sample(terminated=lambda achieved, _: achieved)
    with raises(InvalidArgumentError, "HER: `terminated` must return one value per item, shape [4]; it returned []"):
        sample(terminated=lambda *_: True)
    with pytest.raises(ZeroDivisionError):
        sample(lambda *_: 1 / 0)


def test_a_scan_returns_the_goals_that_were_stored():
    buffer = ReplayBuffer(100, transforms=[HER(reward_of, relabel=1.0, **NAMES)], seed=0)
    buffer.add_steps(stack([goal_step(number) for number in range(10)]))
    for steps in (False, True):
        [batch] = buffer.scan(steps=steps)
        assert batch.data["goal"].tolist() == [-number - 1 for number in range(10)]
        assert batch.data["reward"].tolist() == [0.25] * 10
        assert batch.info.relabeled is None
