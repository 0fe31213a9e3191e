"""The environments this agent can play: a vector observation, discrete actions."""

from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from engram.errors import InvalidArgumentError

ALLOWED = (
    "allowed is a `Box` observation of one axis with `Discrete` actions,"
    " as CartPole-v1, Acrobot-v1 or MountainCar-v0 have"
)


class Outcome(NamedTuple):
    """What an action led to."""

    observation: npt.NDArray[np.float32]  # f32[O]
    reward: float
    terminated: bool  # the episode is over by the rules of the environment: nothing follows
    truncated: bool  # cut short, by a time limit say: it could have gone on


class Environment:
    """A Gymnasium environment that speaks f32[O] observations and actions 0 ... A - 1; a context manager."""

    def __init__(self, env_id: str) -> None:
        """Open the Gymnasium environment `env_id` and check that a DQN on vectors can play it.

        Raises:
            InvalidArgumentError: If there is no such environment, it cannot be opened, or its spaces do not fit.
        """
        try:
            env: gym.Env[Any, Any] = gym.make(env_id, disable_env_checker=True)
        except (gym.error.Error, ImportError) as err:
            msg = f"cannot open environment `{env_id}`: {err}; {ALLOWED}"
            raise InvalidArgumentError(msg) from err
        seen, action = env.observation_space, env.action_space
        if not (isinstance(seen, Box) and len(seen.shape) == 1 and isinstance(action, Discrete)):
            env.close()
            msg = f"environment `{env_id}` has observations `{seen}` and actions `{action}`; {ALLOWED}"
            raise InvalidArgumentError(msg)
        self.num_inputs = seen.shape[0]
        self.num_actions = int(action.n)
        self.reward_threshold = env.spec.reward_threshold if env.spec is not None else None
        """The mean return at which Gymnasium calls it solved; None if it does not say."""
        self._first_action = int(action.start)
        self._env = env

    def reset(self, seed: int | None = None) -> npt.NDArray[np.float32]:
        """Start an episode and return its first observation; `seed` restarts the environment's randomness."""
        observation, _ = self._env.reset(seed=seed)
        return np.asarray(observation, np.float32)

    def step(self, action: int) -> Outcome:
        """Do `action`."""
        observation, reward, terminated, truncated, _ = self._env.step(self._first_action + action)
        return Outcome(np.asarray(observation, np.float32), float(reward), terminated, truncated)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()
