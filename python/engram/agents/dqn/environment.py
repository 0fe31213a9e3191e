"""The environments this agent can play: a vector observation or Atari's screen, discrete actions."""

from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from engram.agents.dqn.config import is_atari
from engram.errors import InvalidArgumentError

ALLOWED = (
    "allowed is a `Box` observation of one axis with `Discrete` actions,"
    " as CartPole-v1, Acrobot-v1 or MountainCar-v0 have, or an Atari game, as ALE/Pong-v5"
)


class Spaces(NamedTuple):
    """What an agent must know of its environment."""

    shape: tuple[int, ...]
    """Of one observation: (O,) or (H, W)."""
    dtype: npt.DTypeLike
    """Of an observation: f32 or u8."""
    stack: int
    """How many observations the agent looks at, the newest last: 4 on Atari, where one shows no motion, else 1."""
    num_actions: int
    """Actions are 0 ... num_actions - 1."""


class Outcome(NamedTuple):
    """What an action led to."""

    observation: npt.NDArray[Any]  # f32[O] or u8[H, W]
    reward: float
    terminated: bool  # the episode is over by the rules of the environment: nothing follows
    truncated: bool  # cut short, by a time limit say: it could have gone on


class Environment:
    """A Gymnasium environment that speaks single observations and actions 0 ... A - 1; a context manager."""

    def __init__(self, env_id: str) -> None:
        """Open the Gymnasium environment `env_id` and check that this agent can play it.

        Raises:
            InvalidArgumentError: If there is no such environment, it cannot be opened, or its spaces do not fit.
        """
        try:
            env = _open_atari(env_id) if is_atari(env_id) else gym.make(env_id, disable_env_checker=True)
        except ModuleNotFoundError as err:
            if err.name == "ale_py":  # the extra `agents` brings it
                raise
            msg = f"cannot open environment `{env_id}`: {err}; {ALLOWED}"
            raise InvalidArgumentError(msg) from err
        except (gym.error.Error, ImportError) as err:
            msg = f"cannot open environment `{env_id}`: {err}; {ALLOWED}"
            raise InvalidArgumentError(msg) from err
        seen, action = env.observation_space, env.action_space
        axes = 2 if is_atari(env_id) else 1
        if not (isinstance(seen, Box) and len(seen.shape) == axes and isinstance(action, Discrete)):
            env.close()
            msg = f"environment `{env_id}` has observations `{seen}` and actions `{action}`; {ALLOWED}"
            raise InvalidArgumentError(msg)
        dtype, stack = (np.uint8, 4) if is_atari(env_id) else (np.float32, 1)
        self.spaces = Spaces(tuple(seen.shape), dtype, stack, int(action.n))
        self.reward_threshold = env.spec.reward_threshold if env.spec is not None else None
        """The mean return at which Gymnasium calls it solved; None if it does not say."""
        self._first_action = int(action.start)
        self._env = env

    def reset(self, seed: int | None = None) -> npt.NDArray[Any]:
        """Start an episode and return its first observation; `seed` restarts the environment's randomness."""
        observation, _ = self._env.reset(seed=seed)
        return np.asarray(observation, self.spaces.dtype)

    def step(self, action: int) -> Outcome:
        """Do `action`."""
        observation, reward, terminated, truncated, _ = self._env.step(self._first_action + action)
        return Outcome(np.asarray(observation, self.spaces.dtype), float(reward), terminated, truncated)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()


def _open_atari(env_id: str) -> gym.Env[Any, Any]:
    """An Atari game as in Machado et al. 2018: each fourth frame, u8[84, 84] in grey, up to 30 idle frames first."""
    import ale_py  # noqa: PLC0415, only Atari needs it

    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return gym.wrappers.AtariPreprocessing(gym.make(env_id, frameskip=1, disable_env_checker=True))
