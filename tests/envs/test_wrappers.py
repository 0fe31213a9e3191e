"""OAR and pixel wrappers, for dm_env and Gymnasium."""

import pickle

import numpy as np
import pytest
from helpers.support import raises

from engram.errors import InvalidArgumentError

dm_env = pytest.importorskip("dm_env")
gym = pytest.importorskip("gymnasium")

from dm_env import specs  # noqa: E402, needs dm_env

from engram.envs import (  # noqa: E402, as above
    OAR,
    BatchedCue,
    BatchedObservationActionReward,
    Cue,
    ObservationActionReward,
    PixelObservation,
)
from engram.envs import gymnasium as wrappers  # noqa: E402, needs Gymnasium
from engram.envs.images import convert_image  # noqa: E402, as above


class Counting(dm_env.Environment):
    """Observes the number of steps, with rewards 1, 2, 3; `frame` makes an observation of it."""

    color = "green"

    def __init__(self, frame=np.int32, spec=None, reward_shape=(), groups=None):
        self._frame, self._spec, self._reward_shape = frame, spec, reward_shape
        self._action_spec = (
            specs.BoundedArray((groups,), np.int32, 0, 4) if groups else specs.DiscreteArray(5, np.int32)
        )
        self._count = 0

    def reset(self):
        self._count = 0
        return dm_env.restart(self._frame(0))

    def step(self, action):
        assert np.shape(action) == self._action_spec.shape
        if self._count == 3:
            return self.reset()
        self._count += 1
        reward = np.full(self._reward_shape, self._count, np.float32) if self._reward_shape else float(self._count)
        make = dm_env.termination if self._count == 3 else dm_env.transition
        return make(reward, self._frame(self._count))

    def observation_spec(self):
        return self._spec or specs.Array((), np.int32)

    def action_spec(self):
        return self._action_spec

    def reward_spec(self):
        return specs.Array(self._reward_shape, np.float32)


def test_an_observation_has_the_action_and_the_reward_that_led_to_it():
    """Upstream's wrapper is one step late."""
    env = ObservationActionReward(Counting())
    steps = [env.reset()]
    steps.extend(env.step(action) for action in (4, 3, 2, 1, 4))
    assert [step.observation for step in steps] == [
        (0, 0, 0.0),
        (1, 4, 1.0),
        (2, 3, 2.0),
        (3, 2, 3.0),
        (0, 0, 0.0),  # the step after the last one begins an episode, whatever the action
        (1, 4, 1.0),
    ]
    assert [step.reward for step in steps] == [None, 1.0, 2.0, 3.0, None, 1.0]
    for step in steps:
        for spec, value in zip(env.observation_spec(), step.observation, strict=True):
            spec.validate(value)


def test_events_and_decomposed_actions():
    env = ObservationActionReward(Counting(reward_shape=(3,), groups=2))
    first = env.reset().observation
    action = np.array([3, 1], np.int32)
    second = env.step(action).observation
    action[:] = 0  # the caller may reuse its array
    for oar in (first, second):
        env.observation_spec().action.validate(oar.action)
        env.observation_spec().reward.validate(oar.reward)
    np.testing.assert_array_equal(first.action, [0, 0])
    np.testing.assert_array_equal(first.reward, [0, 0, 0])
    np.testing.assert_array_equal(second.action, [3, 1])
    np.testing.assert_array_equal(second.reward, [1, 1, 1])


def test_wrappers_pass_other_attributes_on_and_can_be_pickled():
    env = ObservationActionReward(Counting())
    assert env.color == "green"
    with pytest.raises(AttributeError, match="unknown"):
        _ = env.unknown
    copied = pickle.loads(pickle.dumps(ObservationActionReward(Cue(0))))  # noqa: S301, its own data
    np.testing.assert_array_equal(copied.reset().observation.observation, Cue(0).reset().observation)
    env.close()


def test_the_batched_wrapper_equals_the_scalar_one():
    rng = np.random.default_rng(0)
    batch = BatchedObservationActionReward(BatchedCue([3, 4]))
    singles = [ObservationActionReward(Cue(seed)) for seed in (3, 4)]
    steps, scalar_steps = batch.reset(), [single.reset() for single in singles]
    for _ in range(30):
        for i, scalar in enumerate(scalar_steps):
            for mine, other in zip(steps.observation, scalar.observation, strict=True):
                np.testing.assert_array_equal(mine[i], other)
                assert mine.dtype == other.dtype
        actions = rng.integers(2, size=2)
        steps = batch.step(actions)
        scalar_steps = [single.step(action) for single, action in zip(singles, actions, strict=True)]
    assert batch.num_envs == 2


class CountingGym(gym.Env):
    """Observes the number of steps, with rewards 1, 2, 3."""

    def __init__(self, action_space=None, observation_space=None, frame=np.int64):
        self.action_space = action_space or gym.spaces.Discrete(5)
        self.observation_space = observation_space or gym.spaces.Discrete(4)
        self._frame, self._count = frame, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._count = 0
        return self._frame(0), {"seed": seed}

    def step(self, action):
        assert action in self.action_space
        self._count += 1
        return self._frame(self._count), float(self._count), self._count == 3, False, {}


@pytest.mark.parametrize(
    ("space", "action", "zero"),
    [
        (gym.spaces.Discrete(5), 4, 0),
        (gym.spaces.Discrete(5, start=2), 4, 2),
        (gym.spaces.MultiDiscrete([3, 2]), np.array([2, 1]), [0, 0]),
    ],
)
def test_observations_of_gymnasium_have_action_and_reward(space, action, zero):
    env = wrappers.ObservationActionReward(CountingGym(space))
    first, info = env.reset(seed=7)
    second, reward, terminated, truncated, _ = env.step(action)
    assert info == {"seed": 7}
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert isinstance(second, OAR)
    np.testing.assert_array_equal(first.action, zero)
    np.testing.assert_array_equal(second.action, action)
    assert (first.observation, first.reward, second.observation, second.reward) == (0, 0, 1, 1)
    assert first in env.observation_space
    assert second in env.observation_space
    assert env.reset()[0].reward == 0


FRAME = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def frames(shape):
    return lambda count: np.full(shape, count, np.uint8)


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((8, 6), None, (8, 6, 1)),
        ((8, 6, 3), None, (8, 6, 3)),
        ((8, 6, 3, 1), (4, 3), (4, 3, 3)),
        ((8, 6, 3), (84, 84), (84, 84, 3)),
    ],
)
@pytest.mark.parametrize("to_float", [True, False])
def test_pixels_have_the_size_and_dtype_of_their_spec(shape, size, expected, to_float):
    env = PixelObservation(
        Counting(frames(shape), specs.BoundedArray(shape, np.uint8, 0, 255)), size=size, to_float=to_float
    )
    gym_env = wrappers.PixelObservation(
        CountingGym(observation_space=gym.spaces.Box(0, 255, shape, np.uint8), frame=frames(shape)),
        size=size,
        to_float=to_float,
    )
    assert env.observation_spec().shape == gym_env.observation_space.shape == expected
    for count, (pixels, gym_pixels) in enumerate(
        [(env.reset().observation, gym_env.reset()[0]), (env.step(0).observation, gym_env.step(0)[0])]
    ):
        env.observation_spec().validate(pixels)
        assert gym_pixels in gym_env.observation_space
        np.testing.assert_allclose(pixels, count / 255 if to_float else count, rtol=1e-6)
        np.testing.assert_array_equal(pixels, gym_pixels)


def test_resizing_takes_the_mean_of_the_covered_pixels():
    halves = FRAME.reshape(2, 2, 3, 2, 3).mean((1, 3))
    np.testing.assert_array_equal(convert_image(FRAME, (2, 3)), np.rint(halves).astype(np.uint8))
    np.testing.assert_allclose(convert_image(FRAME, (2, 3), to_float=True), halves / 255, rtol=1e-6)
    thirds = convert_image(np.array([[0, 90, 240]], np.uint8), (1, 2), to_float=True)[0, :, 0] * 255
    np.testing.assert_allclose(thirds, [(0 + 90 / 2) / 1.5, (90 / 2 + 240) / 1.5], rtol=1e-6)
    np.testing.assert_array_equal(convert_image(FRAME, (8, 12)), FRAME.repeat(2, 0).repeat(2, 1))


def test_pixels_of_a_mapping():
    def both(count):
        return {"frame": np.full((4, 4), count, np.uint8), "speed": 1.0}

    spec = {"frame": specs.Array((4, 4), np.uint8), "speed": specs.Array((), np.float64)}
    env = PixelObservation(Counting(both, spec), key="frame")
    env.reset()
    np.testing.assert_array_equal(env.step(0).observation, np.ones((4, 4, 1)))
    with raises(InvalidArgumentError, "`key`: unknown; got 'frames', expected one of ['frame', 'speed']"):
        PixelObservation(Counting(both, spec), key="frames")


def test_other_observations_are_rejected():
    with raises(
        InvalidArgumentError,
        "observation: not an image; got the shape (7,), expected [H, W], [H, W, C] or [H, W, C, 1]",
    ):
        PixelObservation(Counting(spec=specs.Array((7,), np.uint8)))
    with raises(InvalidArgumentError, "observation: not an image; got the dtype float32, expected uint8"):
        PixelObservation(Counting(spec=specs.Array((7, 7), np.float32)))
    with raises(InvalidArgumentError, "`key`: the observations are no mapping; got 'x', expected None"):
        PixelObservation(Counting(spec=specs.Array((7, 7), np.uint8)), key="x")
    with raises(InvalidArgumentError, "observation: not an image; got the space Discrete(4), expected a Box of uint8"):
        wrappers.PixelObservation(CountingGym())
    with raises(InvalidArgumentError, "observation: not an image; got the dtype float64, expected uint8"):
        convert_image(np.zeros((3, 3)))


def test_wrappers_combine():
    env = ObservationActionReward(PixelObservation(Cue(0), size=(84, 84), to_float=True))
    env.reset()
    oar = env.step(1).observation
    assert oar.observation.shape == (84, 84, 3)
    assert oar.action == 1
