"""Goals are replaced by achieved ones: which steps they are from, how often, and the rewards that follow."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import examples
from helpers.buffer_model import Env
from helpers.goal_steps import NAMES, goal_step, reward_of, stack
from hypothesis import given
from hypothesis import strategies as st

from engram import selectors
from engram.buffers import HER, FrameStack, MappedFile, ReplayBuffer, Steps, Transitions
from engram.gymnasium import BufferWriter

STRATEGIES = ("future", "final", "episode")


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


@examples.of_each(STRATEGIES)
@given(st.sampled_from(STRATEGIES), st.data())
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


@pytest.mark.parametrize("items", [Steps(), Transitions(discount=0.5), Transitions(discount=0)])
def test_episodes_can_terminate_with_the_new_goal(items):
    # One episode terminates because of its goal, one for another reason; one is truncated when it achieves its goal.
    steps = [goal_step(number, terminated=number in {4, 9}, truncated=number == 14) for number in range(17)]
    for number in (4, 14):
        steps[number]["goal"] = number
    her = HER(lambda a, g: (a == g) * 1.0, terminated=lambda a, g: a == g, relabel=0.5, strategy="episode", **NAMES)
    buffer = ReplayBuffer(100, items=items, transforms=[her], seed=0)
    buffer.add_steps(stack(steps))
    for batch in (buffer.sample(1000), buffer.sample(1000, out=buffer.sample(1000).data), *buffer.epoch(100)):
        x, relabeled = batch.data["x"], batch.info.relabeled
        reached = batch.data["achieved"] == batch.data["goal"]
        np.testing.assert_array_equal(batch.data["reward"], np.where(relabeled, reached, 0.25))
        terminated = np.where(relabeled, reached | (x == 9), (x == 4) | (x == 9))
        if items == Steps():
            np.testing.assert_array_equal(batch.data["terminated"], terminated)
        else:
            discount = np.where(terminated, 0, items.discount).astype(np.float32)
            np.testing.assert_array_equal(batch.data["discount"], discount)


def test_without_a_function_terminations_stay_as_they_were_stored():
    buffer = ReplayBuffer(100, items=Transitions(discount=0.5), transforms=[HER(reward_of, **NAMES)], seed=0)
    buffer.add_steps(stack([goal_step(number, terminated=number == 9) for number in range(12)]))
    batch = buffer.sample(1000)
    np.testing.assert_array_equal(batch.data["discount"], np.where(batch.data["x"] == 9, 0, 0.5))


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
            "obs": {"goal": goals, "goal_id": 0},
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


def test_goals_can_be_in_tuples():
    her = HER(reward_of, goal="obs/1", achieved="next_obs/2", relabel=1.0, strategy="final")
    buffer = ReplayBuffer(10, transforms=[her], seed=0)
    for number in range(5):
        flags = {"reward": 0.5, "terminated": False, "truncated": False}
        obs, next_obs = (tuple(map(np.asarray, (n, -1, n))) for n in (number, number + 1))
        buffer.add({"obs": obs, "next_obs": next_obs, **flags})
    batch = buffer.sample(20)
    position = batch.info.position
    for name, number in [("obs", position), ("next_obs", position + 1)]:
        np.testing.assert_array_equal(np.stack(batch.data[name]), [number, np.full(20, 5), number])
    np.testing.assert_array_equal(batch.data["reward"], reward_of(position + 1, 5))


class Observation(NamedTuple):
    wanted: Any
    reached: Any


@pytest.mark.parametrize("items", [Steps(), Transitions(discount=0.5)])
@pytest.mark.parametrize(
    ("observation", "entries", "get"),
    [
        (Observation, ("wanted", "reached"), lambda obs: obs),
        (lambda goal, reached: {0: goal, 1: reached}, ("0", "1"), lambda obs: (obs[0], obs[1])),
        (
            lambda goal, reached: {"a": 1, "a/b": {"": [np.asarray(goal)]}, "c": Observation(0, reached)},
            (r"a\/b/\0/0", "c/reached"),
            lambda obs: (obs["a/b"][""][0], obs["c"].reached),
        ),
        # A goal that is a nest.
        (
            lambda goal, reached: {"wanted": {"a/": (np.asarray(goal),)}, "reached": {"a/": (np.asarray(reached),)}},
            ("wanted", "reached"),
            lambda obs: (obs["wanted"]["a/"][0], obs["reached"]["a/"][0]),
        ),
    ],
)
def test_goals_can_be_anywhere_in_a_nest(items, observation, entries, get):
    def value(goal):
        return goal["a/"][0] if isinstance(goal, dict) else goal

    her = HER(
        lambda achieved, goal: reward_of(value(achieved), value(goal)),
        terminated=lambda achieved, goal: value(achieved) == value(goal),
        goal=f"obs/{entries[0]}",
        achieved=f"next_obs/{entries[1]}",
        relabel=1.0,
        strategy="final",
    )
    buffer = ReplayBuffer(10, items=items, transforms=[her], seed=0)
    for number in range(5):
        flags = {"reward": 0.5, "terminated": number == 2, "truncated": False}
        buffer.add({"obs": observation(-1, number), "next_obs": observation(-1, number + 1), **flags})
    batch = buffer.sample(20)
    position = batch.info.position
    last = np.where(position < 3, 3, 5)
    for name, number in [("obs", position), ("next_obs", position + 1)]:
        np.testing.assert_array_equal(get(batch.data[name]), [last, number])
    np.testing.assert_array_equal(batch.data["reward"], reward_of(position + 1, last))
    terminated = (position == 2) | (position == 4)
    stated = batch.data["terminated"] if items == Steps() else batch.data["discount"] == 0
    np.testing.assert_array_equal(stated, terminated)


@pytest.mark.parametrize("storage", ["save", "file"])
def test_a_running_episode_continues_in_a_restored_buffer(tmp_path, storage):
    path = tmp_path / "buffer"

    def create(path=None):
        options = {} if path is None else {"storage": MappedFile(path)}
        her = HER(reward_of, relabel=1.0, **NAMES)
        return ReplayBuffer(30, items=Transitions(discount=0.5), transforms=[her], seed=0, **options)

    env, kept = Env(30), create()
    buffer = create(path if storage == "file" else None)
    for first, end in [(0, 20), (20, 24), (24, 37)]:
        for number in range(first, end):
            env.add(goal_step(number, truncated=number in {7, 33}))
        for each in (kept, buffer):
            each.add_steps(stack(env.rows[first:end]))
        if storage == "file":
            buffer.close()
            buffer = create(path)
        else:
            buffer.save(path)
            buffer = create()
            buffer.restore(path)
        batch, expected = buffer.sample(500), kept.sample(500)
        check(batch, [env], "future")
        np.testing.assert_array_equal(batch.data["goal"], expected.data["goal"])


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


def test_a_scan_returns_the_goals_that_were_stored():
    buffer = ReplayBuffer(100, transforms=[HER(reward_of, relabel=1.0, **NAMES)], seed=0)
    buffer.add_steps(stack([goal_step(number) for number in range(10)]))
    for steps in (False, True):
        [batch] = buffer.scan(steps=steps)
        assert batch.data["goal"].tolist() == [-number - 1 for number in range(10)]
        assert batch.data["reward"].tolist() == [0.25] * 10
        assert batch.info.relabeled is None
